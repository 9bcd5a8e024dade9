"""Files of the package are found in a checkout and where it is installed; jars are fetched once."""

from __future__ import annotations

from pathlib import Path

import pytest
from mirrorlake import resources
from mirrorlake.errors import ConfigurationError
from mirrorlake.local import __main__ as commands
from mirrorlake.local.jars import fetch_jars, have_jars
from mirrorlake.notebook import runtime

ROOT = Path(__file__).resolve().parents[2]
MAVEN = """\
#!/bin/sh
for word in "$@"; do case $word in -Djars=*) jars=${word#-Djars=};; spark|kafka) profile=$word;; esac; done
[ "$profile" != "$FAILS_FOR" ] || { printf '\\033[1;31m[ERROR]\\033[m no network\\n'; exit 1; }
mkdir "$jars/$profile" && touch "$jars/$profile/$profile.jar"
"""


@pytest.fixture
def maven(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Makes a directory that is the whole PATH besides the shell's, with a Maven that downloads nothing."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name, text in {"mvn": MAVEN, "java": "#!/bin/sh\n"}.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    for name in ("mkdir", "touch"):
        (folder / name).symlink_to(next(path for path in (Path("/bin", name), Path("/usr/bin", name)) if path.exists()))
    monkeypatch.setenv("PATH", str(folder))
    return folder


def test_in_a_checkout_files_and_jars_are_at_its_top_level(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert resources.checkout() == resources.home() == ROOT
    assert resources.expectations() == ROOT / "expectations"
    assert resources.notebooks() == ROOT / "notebooks"


@pytest.mark.parametrize(("folder", "home"), [("notebooks", f"{ROOT}/"), (".", ""), ("/", "")])
def test_a_notebook_that_runs_in_its_own_folder_finds_what_the_checkout_has(
    folder: str, home: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT / folder)
    found = runtime.parameters({"config": ".local/mirrorlake.properties", "flow": "west->east"}, {})
    assert (found.config, found.warehouse) == (f"{home}.local/mirrorlake.properties", f"{home}.local/warehouse")
    given = runtime.parameters({"config": "mine.properties"}, {"MIRRORLAKE_WAREHOUSE": "/data"})
    assert (given.config, given.warehouse, given.flow) == ("mine.properties", "/data", "a->b")
    assert resources.pom() == ROOT / "pom.xml"


def test_an_installed_package_carries_the_files_and_has_its_jars_in_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package, work = tmp_path / "site-packages/mirrorlake", tmp_path / "work"
    (package / "expectations").mkdir(parents=True)
    work.mkdir()
    monkeypatch.setattr(resources, "PACKAGE", package)
    monkeypatch.chdir(work)
    assert resources.checkout() is None
    assert resources.home() == work
    assert (resources.expectations(), resources.pom()) == (package / "expectations", package / "pom.xml")


def test_jars_are_fetched_anew_when_the_maven_project_changes(tmp_path: Path, maven: Path) -> None:
    pom = tmp_path / "pom.xml"
    pom.write_text("<project/>")
    assert not have_jars(tmp_path, pom)
    fetch_jars(tmp_path, pom)
    assert have_jars(tmp_path, pom)
    jars = tmp_path / ".local/jars"
    assert sorted(jar.name for jar in jars.rglob("*.jar")) == ["hadoop-defaults.jar", "kafka.jar", "spark.jar"]
    (jars / "kafka/older.jar").touch()
    pom.write_text("<project>newer</project>")
    assert not have_jars(tmp_path, pom)
    fetch_jars(tmp_path, pom)
    assert sorted(jar.name for jar in jars.rglob("*.jar")) == ["hadoop-defaults.jar", "kafka.jar", "spark.jar"]


def test_a_maven_that_fails_is_quoted_and_leaves_no_jars_that_pass_for_whole(
    tmp_path: Path, maven: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAILS_FOR", "kafka")
    with pytest.raises(ConfigurationError, match=r"the jars of profile kafka of .*pom.xml:\n\[ERROR\] no network"):
        fetch_jars(tmp_path, ROOT / "pom.xml")
    assert not have_jars(tmp_path, ROOT / "pom.xml")


def test_jars_that_cannot_be_fetched_anew_stay_as_they_were(
    tmp_path: Path, maven: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pom = tmp_path / "pom.xml"
    pom.write_text("<project/>")
    fetch_jars(tmp_path, pom)
    pom.write_text("<project>newer</project>")
    monkeypatch.setenv("FAILS_FOR", "kafka")
    with pytest.raises(ConfigurationError, match="no network"):
        fetch_jars(tmp_path, pom)
    assert (tmp_path / ".local/jars/kafka/kafka.jar").exists()
    pom.write_text("<project/>")
    assert have_jars(tmp_path, pom)


def test_java_and_maven_that_are_missing_are_named_before_anything_is_deleted(tmp_path: Path, maven: Path) -> None:
    fetch_jars(tmp_path, ROOT / "pom.xml")
    for name in ("mvn", "java"):
        (maven / name).unlink()
    with pytest.raises(ConfigurationError, match="Java 17 and Maven not found"):
        fetch_jars(tmp_path, ROOT / "pom.xml")
    assert have_jars(tmp_path, ROOT / "pom.xml")


@pytest.mark.parametrize("arguments", [[], ["begin"], ["start", "stop"]])
def test_a_command_that_does_not_exist_is_answered_with_those_that_do(arguments: list[str]) -> None:
    with pytest.raises(SystemExit, match=r"usage: .* setup\|start\|stop\|jars\|archive"):
        commands.main(arguments)
