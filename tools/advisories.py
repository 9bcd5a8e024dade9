"""Asks for known advisories about the packages of requirements.lock, with pip-audit, and fails for one that nobody has
accepted.

Usage: python tools/advisories.py PIP_AUDIT LOCK ACCEPTED. A machine that can't ask is told so, and is no failure. An
accepted advisory is a line of ACCEPTED: its id, then the reason.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

DEADLINE_S = 120
ANSWER_S = 10


@dataclass(frozen=True)
class Finding:
    """The advisories about one package.

    Attributes:
        package: its name and version.
        ids: the id and the aliases of each advisory.
    """

    package: str
    ids: tuple[str, ...]


def accepted(text: str) -> dict[str, str]:
    """Reads the accepted advisories: the reason by id.

    Raises:
        ValueError: an id has no reason.
    """
    found: dict[str, str] = {}
    for line in text.splitlines():
        if line.strip() and not line.startswith("#"):
            name, _, reason = line.strip().partition(" ")
            if not reason.strip():
                raise ValueError(f"accepted advisory {name} has no reason")
            found[name] = reason.strip()
    return found


def findings(answer: Mapping[str, Any]) -> tuple[list[Finding], int, int]:
    """Returns the advisories in an answer of pip-audit, and how many packages were and were not looked up."""
    packages = answer.get("dependencies", [])
    known = [each for each in packages if "skip_reason" not in each]
    found = [
        Finding(f"{each['name']} {each['version']}", (one["id"], *one.get("aliases", ())))
        for each in known
        for one in each.get("vulns", ())
    ]
    return found, len(known), len(packages) - len(known)


def verdict(answer: Mapping[str, Any], reasons: Mapping[str, str]) -> tuple[int, list[str]]:
    """Returns the exit code and the lines to print for an answer of pip-audit."""
    found, asked, unanswered = findings(answer)
    lines, failed = [], False
    for one in found:
        reason = next((reasons[each] for each in one.ids if each in reasons), "")
        failed = failed or not reason
        what = f"accepted: {reason}" if reason else "known, and not accepted. Update the package, or accept it"
        lines.append(f"advisory {', '.join(one.ids)} about {one.package}: {what}")
    if unanswered:
        lines.append(f"advisories: nothing could be asked about {unanswered} of {asked + unanswered} packages")
    if asked:
        lines.append(f"advisories: {asked} packages looked up, {len(found)} advisories")
    return int(failed), lines


def main(pip_audit: str, lock: str, accepted_file: str) -> int:
    reasons = accepted(Path(accepted_file).read_text())
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as first:  # where none is answered, 140 would be as well
        entries = Path(lock).read_text().replace("\\\n", " ").splitlines(keepends=True)
        first.write(next(entry for entry in entries if ";" not in entry))
        first.flush()
        for requirements in (first.name, lock):
            answer = ask(pip_audit, requirements)
            if not findings(answer)[1]:
                print("advisories: not checked, as no registry answers from here")
                return 0
    code, lines = verdict(answer, reasons)
    print("\n".join(lines))
    return code


def ask(pip_audit: str, requirements: str) -> Mapping[str, Any]:
    """Returns the answer of pip-audit about a file of requirements; nothing, if it does not come."""
    command = [pip_audit, "--requirement", requirements, "--disable-pip", "--require-hashes", "--format=json"]
    options = ["--progress-spinner=off", f"--timeout={ANSWER_S}", "--vulnerability-service=pypi"]
    try:
        ran = subprocess.run([*command, *options], capture_output=True, text=True, timeout=DEADLINE_S, check=False)
        answer: Mapping[str, Any] = json.loads(ran.stdout)
    except (subprocess.TimeoutExpired, ValueError):
        return {}
    return answer


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
