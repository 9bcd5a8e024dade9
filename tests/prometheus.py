"""A Prometheus and an Alertmanager of a test's own, on loopback."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlencode
from urllib.request import urlopen

import yaml

ROOT = Path(__file__).resolve().parents[1]
UNPACKED = ROOT / ".local/prometheus/usr/bin"  # by tools/prometheus.sh
EVERY = "1s"  # and the longest time of a scrape, also on a busy machine
READY_WITHIN_S = 60.0


def program(*names: str) -> str:
    """Returns the path of the first of these programs that is there."""
    path = f"{UNPACKED}{os.pathsep}{os.environ['PATH']}"
    found = next((place for name in names if (place := shutil.which(name, path=path))), None)
    assert found, f"{names[0]} is missing: run tools/prometheus.sh"
    return found


def free_ports(count: int) -> list[int]:
    """Returns ports that follow each other, and are free."""
    for _ in range(100):
        with socket.create_server(("127.0.0.1", 0)) as listening:
            first = int(listening.getsockname()[1])
        with ExitStack() as taken:
            try:
                for port in range(first, first + count):
                    taken.enter_context(socket.create_server(("127.0.0.1", port)))
            except OSError:
                continue
            return list(range(first, first + count))
    raise AssertionError("no free ports")


@dataclass(frozen=True)
class Monitoring:
    """Addresses of both programs."""

    prometheus: str
    alertmanager: str

    @property
    def alerts_page(self) -> str:
        """The address of Prometheus' page of alerts. Debian's build has the classic pages only, others the new ones."""
        classic = f"{self.prometheus}/classic/alerts"
        try:
            with urlopen(classic, timeout=10):
                return classic
        except HTTPError:
            return f"{self.prometheus}/alerts"

    def query(self, expression: str) -> list[dict[str, Any]]:
        """Returns the result of an instant query."""
        asked = urlencode({"query": expression})
        answer = _get(f"{self.prometheus}/api/v1/query?{asked}")
        assert answer["status"] == "success", answer
        return list(answer["data"]["result"])

    def alerts(self) -> dict[str, dict[str, Any]]:
        """Returns the alerts that fire at Alertmanager, by name."""
        return {one["labels"]["alertname"]: one for one in _get(f"{self.alertmanager}/api/v2/alerts?active=true")}


def _get(address: str) -> Any:
    with urlopen(address, timeout=10) as answer:
        return json.load(answer)


@contextmanager
def monitoring(directory: Path, ports: list[int], rules: str) -> Iterator[Monitoring]:
    """Runs both programs. Prometheus scrapes the ports, and sends the alerts of the rules to Alertmanager."""
    directory.mkdir()
    own, alerts = free_ports(1)[0], free_ports(1)[0]
    (directory / "alerts.yml").write_text(rules)
    (directory / "alertmanager.yml").write_text("route: {receiver: nobody}\nreceivers: [{name: nobody}]\n")
    targets = [f"127.0.0.1:{port}" for port in ports]
    configuration = {
        "global": {"scrape_interval": EVERY, "scrape_timeout": EVERY, "evaluation_interval": EVERY},
        "rule_files": ["alerts.yml"],
        "alerting": {"alertmanagers": [{"static_configs": [{"targets": [f"127.0.0.1:{alerts}"]}]}]},
        "scrape_configs": [{"job_name": "mirrorlake", "static_configs": [{"targets": targets}]}],
    }
    (directory / "prometheus.yml").write_text(yaml.safe_dump(configuration))
    commands = (
        [
            program("prometheus"),
            f"--config.file={directory}/prometheus.yml",
            f"--storage.tsdb.path={directory}/data",
            f"--web.listen-address=127.0.0.1:{own}",
            "--rules.alert.resend-delay=1s",
        ],
        [
            program("alertmanager", "prometheus-alertmanager"),
            f"--config.file={directory}/alertmanager.yml",
            f"--storage.path={directory}/alerts",
            f"--web.listen-address=127.0.0.1:{alerts}",
            "--cluster.listen-address=",
        ],
    )
    with ExitStack() as running:
        for number, command in enumerate(commands):
            log = running.enter_context((directory / f"{number}.log").open("w"))
            process = running.enter_context(subprocess.Popen(command, stdout=log, stderr=log))
            running.callback(process.terminate)
        for address in (own, alerts):
            _await_ready(f"http://127.0.0.1:{address}/-/ready")
        yield Monitoring(f"http://127.0.0.1:{own}", f"http://127.0.0.1:{alerts}")


def _await_ready(address: str) -> None:
    deadline = time.monotonic() + READY_WITHIN_S
    while time.monotonic() < deadline:
        try:
            with urlopen(address, timeout=10):
                return
        except OSError:  # not yet listening, or 503 while it starts
            time.sleep(0.1)
    raise AssertionError(f"{address} is not ready after {READY_WITHIN_S} s")
