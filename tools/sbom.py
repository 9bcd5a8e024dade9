"""Lists what mirrorlake is made of: the Python packages of .venv and the jars of .local/jars, as CycloneDX 1.6.

Usage, in the environment of `make audit`: python tools/sbom.py PACKAGES.json JARS SBOM.json, where PACKAGES.json comes
from cyclonedx-py. Jars have the SHA-256 of the file here.
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
import zipfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

NAME = re.compile(r"(.+?)-(\d[\w.\-]*)")
POM = re.compile(r"META-INF/maven/([^/]+)/([^/]+)/pom\.properties")
REPOSITORY = Path.home() / ".m2/repository"  # from where Maven copies the jars


def jar_components(directory: Path) -> Iterator[dict[str, Any]]:
    """Yields a component for each jar below a directory, once for several copies of it."""
    seen: set[str] = set()
    for path in sorted(directory.rglob("*.jar")):
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        if digest not in seen:
            seen.add(digest)
            yield _component(path, digest)


def _component(path: Path, digest: str) -> dict[str, Any]:
    named = NAME.fullmatch(path.stem)
    name, version = named.groups() if named else (path.stem, "")
    group = _group(path, name, version)
    for dot in (match.start() for match in re.finditer(r"\.", name) if not group):  # named <group>.<artifact>
        if _groups().get((name[dot + 1 :], version)) == name[:dot]:
            group, name = name[:dot], name[dot + 1 :]
            break
    place = f"maven/{group}/{name}" if group else f"generic/{name}"
    purl = f"pkg:{place}@{version}" if version else f"pkg:{place}"
    return {
        "type": "library",
        "bom-ref": f"{purl}#{digest[:12]}",
        **({"group": group} if group else {}),
        "name": name,
        **({"version": version} if version else {}),
        "purl": purl,
        "hashes": [{"alg": "SHA-256", "content": digest}],
    }


def _group(path: Path, name: str, version: str) -> str:
    """Returns the group of a jar: as it says itself, else by its place in Maven's repository, else nothing."""
    with zipfile.ZipFile(path) as jar:
        found = [match.groups() for entry in jar.namelist() if (match := POM.fullmatch(entry))]
    own = [group for group, artifact in found if artifact == name]
    return own[0] if own else _groups().get((name, version), "")


@cache
def _groups() -> dict[tuple[str, str], str]:
    """Returns the group of each artifact and version in Maven's repository."""
    places = (path.relative_to(REPOSITORY).parts for path in REPOSITORY.rglob("*.jar"))
    return {place[-3:-1]: ".".join(place[:-3]) for place in places if len(place) > 3}


def main(packages: str, jars: str, target: str) -> int:
    from cyclonedx.schema import SchemaVersion
    from cyclonedx.validation.json import JsonStrictValidator

    bom = json.loads(Path(packages).read_text())
    python = bom.get("components", [])
    found = list(jar_components(Path(jars)))
    if not (python and found):
        print(
            f"sbom: {len(python)} Python packages and {len(found)} jars are found. Run make setup first",
            file=sys.stderr,
        )
        return 1
    bom["components"] = [*python, *found]
    text = json.dumps(bom, indent=1, sort_keys=True)
    problem = JsonStrictValidator(SchemaVersion.V1_6).validate_str(text)
    if problem:
        print(f"sbom: what was made is not CycloneDX: {problem}", file=sys.stderr)
        return 1
    Path(target).write_text(text + "\n")
    print(f"made {target}: {len(python)} Python packages, {len(found)} jars")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
