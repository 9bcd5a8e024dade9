#!/usr/bin/env bash
# Sees to it that there is a browser for the tests that open pages: Chromium and its driver, from the system's packages.
set -eu
if command -v chromium >/dev/null && command -v chromedriver >/dev/null; then exit 0; fi
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
  echo "setting up: Chromium for tests (half a minute)"
  exec 9<"$(dirname "$0")" && flock 9 # one apt-get at a time: make prometheus may run beside this
  (apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends chromium chromium-driver) >/dev/null
else
  echo "missing: chromium and chromedriver, for the tests that open pages" >&2
  echo "  install them: Debian/Ubuntu: apt install chromium chromium-driver" >&2
  exit 1
fi
