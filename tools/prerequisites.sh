#!/usr/bin/env bash
# Names what is missing on this machine, and what to install. Argument: the Python interpreter to use.
set -u
missing=0
need() {
  printf 'missing: %s\n  install it: %s\n' "$1" "$2" >&2
  missing=1
}

python=${1:-}
if [ -z "$python" ] || ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
  need "Python 3.11 or newer (found: ${python:-none})" "Debian/Ubuntu: apt install python3 python3-venv; macOS: brew install python@3.11; or make PYTHON=/path/to/python3.11"
elif ! "$python" -c 'import venv, ensurepip' 2>/dev/null; then
  need "Python's venv module" "Debian/Ubuntu: apt install python3-venv"
fi
java_version=$("${JAVA_HOME:+$JAVA_HOME/bin/}java" -version 2>&1 | sed -n 's/.*version "\([0-9]*\).*/\1/p' | head -n 1)
if [ -z "$java_version" ] || [ "$java_version" -lt 17 ] || [ "$java_version" -gt 23 ]; then
  need "Java 17 to 23, of which Spark supports 17 and 21 (found: ${java_version:-none})" "Debian 12 and Ubuntu: apt install openjdk-17-jdk-headless; Debian 13: apt install openjdk-21-jdk-headless; macOS: brew install openjdk@17"
fi
if ! command -v mvn >/dev/null; then
  need "Maven" "Debian/Ubuntu: apt install maven; macOS: brew install maven"
fi
exit $missing
