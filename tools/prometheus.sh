#!/usr/bin/env bash
# Sees to it that there are Prometheus and Alertmanager for the tests of alerts and dashboards: those on the PATH, or the
# system's packages, unpacked into .local/prometheus. Nothing is installed, and no service is started.
set -eu
cd "$(dirname "$0")/.."
place=.local/prometheus
PATH="$PWD/$place/usr/bin:$PATH"
if command -v prometheus >/dev/null && command -v promtool >/dev/null &&
  { command -v alertmanager || command -v prometheus-alertmanager; } >/dev/null; then exit 0; fi
if command -v apt-get >/dev/null && command -v dpkg-deb >/dev/null; then
  echo "setting up: Prometheus and Alertmanager for tests into $place (half a minute)"
  rm -rf "$place"
  mkdir -p "$place"
  if [ "$(id -u)" = 0 ]; then apt-get update >/dev/null; fi
  (cd "$place" && apt-get download prometheus prometheus-alertmanager >/dev/null 2>&1)
  for package in "$place"/*.deb; do dpkg-deb -x "$package" "$place"; done
  rm -f "$place"/*.deb
else
  echo "missing: prometheus, promtool and alertmanager, for the tests of alerts and dashboards" >&2
  echo "  install them: Debian/Ubuntu: apt install prometheus prometheus-alertmanager; macOS: brew install prometheus alertmanager" >&2
  exit 1
fi
