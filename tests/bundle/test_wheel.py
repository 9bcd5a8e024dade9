"""The wheel: its contents, and that it works where it is installed, in an otherwise empty folder.

Its dependencies are those of this environment, through a .pth file. The repository's `lib` is on no path.
"""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "lib/mirrorlake"
TOPIC, PARTITIONS, RECORDS = "orders", 2, 100


def run(*command: str | Path, cwd: Path) -> str:
    """Runs a command that must succeed, without this process's path; returns its output."""
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, (command, done.stdout[-3000:], done.stderr[-3000:])
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    options = ("--quiet", "--no-deps", "--no-build-isolation", "--no-index")
    run(sys.executable, "-m", "pip", "wheel", *options, "--wheel-dir", folder, ROOT, cwd=folder)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns the interpreter of an environment in which the wheel is installed."""
    folder = tmp_path_factory.mktemp("installed")
    run(sys.executable, "-m", "venv", "--without-pip", folder, cwd=folder)
    python = folder / "bin/python"
    packages = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=folder).strip())
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    pip = (sys.executable, "-m", "pip", "--python", python)
    run(*pip, "install", "--quiet", "--no-deps", "--no-index", wheel, cwd=folder)
    return python


@contextmanager
def clusters(python: Path, home: Path) -> Iterator[dict[str, str]]:
    """Starts the two local clusters by the command that a user types; yields their bootstrap servers."""
    try:
        run(python, "-m", "mirrorlake.local", "start", cwd=home)
        lines = (home / ".local/mirrorlake.properties").read_text().splitlines()
        properties = dict(line.split(" = ") for line in lines if " = " in line)
        yield {name: properties[f"{name}.bootstrap.servers"] for name in "ab"}
    finally:
        run(python, "-m", "mirrorlake.local", "stop", cwd=home)


def produce(servers: str) -> list[tuple[bytes, bytes]]:
    """Creates the topic and fills it; returns key and value of every record."""
    admin = AdminClient({"bootstrap.servers": servers})
    admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1)])[TOPIC].result()
    producer = Producer({"bootstrap.servers": servers})
    records = [(b"key-%d" % number, b"value-%d" % number) for number in range(RECORDS)]
    for key, value in records:
        producer.produce(TOPIC, value, key)
    assert producer.flush(30) == 0
    return records


def consume(servers: str, topic: str) -> list[tuple[bytes, bytes]]:
    """Reads as many committed records as were produced."""
    settings = {"group.id": "test", "auto.offset.reset": "earliest", "isolation.level": "read_committed"}
    consumer = Consumer({"bootstrap.servers": servers, **settings})
    consumer.subscribe([topic])
    messages = consumer.consume(RECORDS, timeout=30)
    consumer.close()
    return [(message.key(), message.value()) for message in messages]


def test_the_wheel_carries_every_file_that_the_package_reads(wheel: Path) -> None:
    carried = {
        "expectations": [*(ROOT / "expectations").glob("*.json")],
        "notebooks": [*(ROOT / "notebooks").glob("*.ipynb")],
        "ledger/sql": [*(PACKAGE / "ledger/sql").glob("*.sql")],
        "notebook/templates/report": [*(PACKAGE / "notebook/templates/report").iterdir()],
        "local": [PACKAGE / "local/log4j2.properties", PACKAGE / "local/worker_python"],
        ".": [ROOT / "pom.xml", PACKAGE / "py.typed"],
    }
    assert all(carried.values())
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if name.startswith("mirrorlake/")}
        files = {f"mirrorlake/{Path(folder, file.name)}": file for folder, there in carried.items() for file in there}
        for name, file in files.items():
            assert archive.read(name) == file.read_bytes()
        assert {name for name in names if not name.endswith(".py")} == set(files)
        modules = {f"mirrorlake/{file.relative_to(PACKAGE)}" for file in PACKAGE.rglob("*.py")}
        assert {name for name in names if name.endswith(".py")} == modules
        mode = archive.getinfo("mirrorlake/local/worker_python").external_attr >> 16
        assert mode & stat.S_IXUSR, "Spark starts it as its Python interpreter"
        assert any(name.endswith("/licenses/LICENSE") for name in archive.namelist())


def test_in_an_empty_folder_clusters_start_and_the_carried_notebook_mirrors(python: Path, tmp_path: Path) -> None:
    installed = Path(run(python, "-c", "import mirrorlake; print(mirrorlake.__path__[0])", cwd=tmp_path).strip())
    assert python.parents[1] in installed.parents
    jars = tmp_path / ".local/jars"
    jars.mkdir(parents=True)
    for fetched in (ROOT / ".local/jars").iterdir():  # a minute's work, unless they are those of another pom.xml
        (jars / fetched.name).symlink_to(fetched)
    mirrorlake = python.with_name("mirrorlake")
    assert "doctor" in run(mirrorlake, "--help", cwd=tmp_path)
    with clusters(python, tmp_path) as servers:
        records = produce(servers["a"])
        examined = json.loads(run(mirrorlake, "doctor", "--output", "json", cwd=tmp_path))
        assert (examined["healthy"], examined["flows"]) == (True, ["a->b"])
        notebook = run(python, "-c", "from mirrorlake import resources; print(resources.notebooks())", cwd=tmp_path)
        given = ("-p", "config", ".local/mirrorlake.properties", "-p", "warehouse", ".local/warehouse")
        source = Path(notebook.strip()) / "mirror.ipynb"
        run(python, "-m", "papermill", "--no-progress-bar", source, "mirror-run.ipynb", *given, cwd=tmp_path)
        cells = json.loads((tmp_path / "mirror-run.ipynb").read_text())["cells"]
        (result,) = [cell for cell in cells if "result" in cell["metadata"].get("tags", [])]
        assert json.loads("".join(result["outputs"][0]["text"]))["records"] == RECORDS
        assert sorted(consume(servers["b"], f"a.{TOPIC}")) == sorted(records)
    assert installed.is_dir()
    assert (tmp_path / ".local/warehouse/mirrorlake/offset_syncs/_delta_log").is_dir()
