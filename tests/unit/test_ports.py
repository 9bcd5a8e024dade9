"""Ports of local servers."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mirrorlake.local.ports import PORTS, free_port

LIB = Path(__file__).resolve().parents[2] / "lib"
CHOOSER = "import sys; from mirrorlake.local.ports import free_port; print(free_port(int(sys.argv[1])), flush=True)"


@contextmanager
def chosen_elsewhere(wanted: int) -> Iterator[int]:
    """Yields the port that another process has chosen; nothing listens on it."""
    command = [sys.executable, "-c", f"{CHOOSER}; sys.stdin.read()", str(wanted)]
    with subprocess.Popen(command, cwd=LIB, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin
        assert process.stdout
        yield int(process.stdout.readline())
        process.stdin.close()


def test_no_two_processes_choose_one_port_before_anything_listens_on_it() -> None:
    ours = free_port()
    with chosen_elsewhere(ours) as theirs:
        assert theirs != ours
        assert free_port(theirs) != theirs


def test_a_port_is_free_again_once_the_process_that_chose_it_has_ended() -> None:
    with chosen_elsewhere(0) as theirs:
        assert theirs in PORTS
    assert free_port(theirs) == theirs


def test_a_process_gets_different_ports_and_the_one_that_it_had_if_it_asks_for_it() -> None:
    ports = {free_port() for _ in range(50)}
    assert len(ports) == 50
    assert free_port(min(ports)) in ports
