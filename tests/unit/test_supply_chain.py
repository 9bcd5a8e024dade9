"""What is installed is pinned by its hash, listed, and checked against known advisories."""

from __future__ import annotations

import importlib.util
import re
import sys
import zipfile
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]
PINNED = re.compile(r"^([A-Za-z0-9._-]+)(?:\[[^]]*\])?==([^\s;]+)", re.MULTILINE)
LOCKS = [
    ("requirements.txt", "requirements.lock"),
    ("requirements-runtime.txt", "requirements-runtime.lock"),
    ("tools/audit.txt", "tools/audit.lock"),
    ("tools/docs.txt", "tools/docs.lock"),
]


def tool(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / f"tools/{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def pins(text: str) -> dict[str, str]:
    return {name.lower().replace("_", "-"): version for name, version in PINNED.findall(text)}


@pytest.mark.parametrize(("wanted", "lock"), LOCKS)
def test_everything_that_is_installed_is_locked_with_hashes(wanted: str, lock: str) -> None:
    text = (ROOT / lock).read_text()
    locked = pins(text)
    assert pins((ROOT / wanted).read_text()).items() <= locked.items(), "make lock writes it anew"
    entries = text.replace("\\\n", " ").splitlines()
    assert len(entries) >= len(locked)
    for entry in entries:
        assert re.fullmatch(r"[\w.\-]+(\[[\w\-,]+\])?==\S+( ;[^#@]+?)?(\s+--hash=sha256:[0-9a-f]{64})+\s*", entry), (
            entry[:80]
        )
    assert "://" not in text


def test_the_oldest_python_is_the_same_everywhere() -> None:
    """The lock is for all of its releases: 3.11 means 3.11.0 to uv. Debian 12 has 3.11.2."""
    said = {
        "pyproject.toml": r'requires-python = ">=(\S+)"',
        "Makefile": r"--python-version (\S+)",
        "tools/prerequisites.sh": r"need \"Python (\S+) or newer",
        "README.md": r"Python (\S+) or newer",
        "CONTRIBUTING.md": r"Python (\S+) or newer",
    }
    found = {name: re.search(pattern, (ROOT / name).read_text())[1] for name, pattern in said.items()}
    assert set(found.values()) == {"3.11"}, found
    assert "sys.version_info < (3, 11)" in (ROOT / "tools/prerequisites.sh").read_text()


def test_make_setup_installs_nothing_without_its_hash() -> None:
    installs = re.findall(r"pip install .*", (ROOT / "Makefile").read_text())
    assert [line for line in installs if "--require-hashes" in line and "requirements.lock" in line]
    assert not [line for line in installs if "--require-hashes" not in line and "uv==" not in line]


def test_a_jar_is_listed_with_its_group_version_and_hash(tmp_path: Path) -> None:
    for place in ("a", "b"):
        (tmp_path / place).mkdir()
        with zipfile.ZipFile(tmp_path / place / "kafka-tools_2.13-4.3.0.jar", "w") as jar:
            jar.writestr(zipfile.ZipInfo("META-INF/maven/org.example/kafka-tools_2.13/pom.properties"), "")
            jar.writestr(zipfile.ZipInfo("META-INF/maven/org.shaded/other/pom.properties"), "")
    (component,) = tool("sbom").jar_components(tmp_path)
    assert (component["group"], component["name"], component["version"]) == ("org.example", "kafka-tools_2.13", "4.3.0")
    assert component["purl"] == "pkg:maven/org.example/kafka-tools_2.13@4.3.0"
    assert re.fullmatch("[0-9a-f]{64}", component["hashes"][0]["content"])


def test_a_known_advisory_fails_unless_it_is_accepted_with_a_reason() -> None:
    advisories = tool("advisories")
    clean = {"name": "clean", "version": "1", "vulns": []}
    bad = {"name": "bad", "version": "2", "vulns": [{"id": "PYSEC-1", "aliases": ["CVE-1"]}]}
    unknown = {"name": "unknown", "skip_reason": "not found"}
    code, lines = advisories.verdict({"dependencies": [clean, bad, unknown]}, {})
    assert code == 1
    assert lines[0].startswith("advisory PYSEC-1, CVE-1 about bad 2: known, and not accepted")
    assert lines[1:] == [
        "advisories: nothing could be asked about 1 of 3 packages",
        "advisories: 2 packages looked up, 1 advisories",
    ]
    assert advisories.verdict({"dependencies": [bad]}, {"CVE-1": "unused"})[0] == 0
    assert advisories.verdict({"dependencies": [unknown]}, {})[0] == 0
    assert advisories.accepted("# no\n\nCVE-1 we call no such function\n") == {"CVE-1": "we call no such function"}
    with pytest.raises(ValueError, match="CVE-1 has no reason"):
        advisories.accepted("CVE-1\n")
