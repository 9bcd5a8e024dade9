#!/usr/bin/env bash
# Sees to it that there are Prometheus and Alertmanager for the tests of alerts and dashboards: those on the PATH, or the
# system's packages, unpacked into .local/prometheus (and their templates and pages into their places). No service is started.
set -eu
cd "$(dirname "$0")/.."
place=.local/prometheus
templates=/usr/share/prometheus/alertmanager # where Debian's Alertmanager looks, wherever it is itself
pages=/usr/share/prometheus/web              # where Debian's Prometheus looks for its own
PATH="$PWD/$place/usr/bin:$PATH"
is_there() {
  command -v prometheus && command -v promtool &&
    { [ ! -x "$place/usr/bin/prometheus" ] || [ -f "$pages/templates/alerts.html" ]; } &&
    { command -v alertmanager || { command -v prometheus-alertmanager && [ -f "$templates/default.tmpl" ]; }; }
}
if is_there >/dev/null; then exit 0; fi
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
  echo "setting up: Prometheus and Alertmanager for tests into $place (half a minute)"
  rm -rf "$place"
  mkdir -p "$place"
  exec 9<tools && flock 9 # one apt-get at a time: make browser may run beside this
  apt-get update >/dev/null
  # The last four are what the pages load.
  wanted="prometheus prometheus-alertmanager libjs-jquery libjs-popper.js libjs-bootstrap4 fonts-glyphicons-halflings"
  # shellcheck disable=SC2086
  (cd "$place" && apt-get download $wanted >/dev/null 2>apt.log || { cat apt.log >&2 && exit 1; })
  for package in "$place"/*.deb; do dpkg-deb -x "$package" "$place"; done
  rm -f "$place"/*.deb "$place/apt.log"
  mkdir -p "$templates"
  cp "$place$templates"/*.tmpl "$templates"
  mkdir -p "$pages"
  cp -rL "$place$pages"/. "$pages" 2>/dev/null || [ -f "$pages/static/jquery/jquery.min.js" ] # links of other pages lead nowhere
else
  echo "missing: prometheus, promtool and alertmanager, for the tests of alerts and dashboards" >&2
  echo "  install them: Debian/Ubuntu: apt install prometheus prometheus-alertmanager; macOS: brew install prometheus alertmanager" >&2
  exit 1
fi
