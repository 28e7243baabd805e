"""The parts list of a release, as CycloneDX.

Python's packages are listed by ``cyclonedx-py`` from an environment that holds the wheel and nothing else.
What is compiled into the library no environment knows: liburing and what Zig brings are added here.
"""

from __future__ import annotations

import ast
import re
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent

Component = dict[str, Any]


def package_version() -> str:
    """The version of the package, where the build takes it from."""
    text = (ROOT / "velo" / "__init__.py").read_text(encoding="utf-8")
    found = re.search(r'^__version__ = "([^"]+)"$', text, flags=re.MULTILINE)
    assert found
    return found[1]


def core_requirements() -> set[str]:
    """Names of what the package needs without extras."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    found = re.search(r"^dependencies = (\[.*?^\])", text, flags=re.MULTILINE | re.DOTALL)
    assert found
    return {normal(re.split(r"[<>=!~\[; ]", line)[0]) for line in ast.literal_eval(found[1])}


def normal(name: str) -> str:
    """A package's name as an index compares it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def liburing_version(archive: Path) -> str:
    """What the ``liburing.pc`` beside a ``liburing.a`` says."""
    text = (archive.parent / "pkgconfig" / "liburing.pc").read_text(encoding="utf-8")
    found = re.search(r"^Version:\s*(\S+)$", text, flags=re.MULTILINE)
    assert found, archive
    return found[1]


def native_parts(archives: dict[str, Path]) -> list[Component]:
    """What is compiled in: liburing of each architecture, and of Zig its library and compiler runtime."""
    versions: dict[str, list[str]] = {}
    for architecture, archive in archives.items():
        versions.setdefault(liburing_version(archive), []).append(architecture)
    parts = [
        _part(
            "liburing",
            found,
            "liburing.a, linked into libvelo.so",
            {"expression": "LGPL-2.1-only OR MIT"},
            architectures,
        )
        for found, architectures in versions.items()
    ]
    zig = "Zig's standard library and compiler runtime, compiled into libvelo.so"
    return [*parts, _part("zig", version("ziglang"), zig, {"license": {"id": "MIT"}}, list(archives))]


def _part(
    name: str, found: str, description: str, license_choice: dict[str, Any], architectures: list[str]
) -> Component:
    return {
        "type": "library",
        "bom-ref": f"native:{name}@{found}",
        "name": name,
        "version": found,
        "description": description,
        "licenses": [license_choice],
        "purl": f"pkg:generic/{name}@{found}",
        "properties": [{"name": "velo:architecture", "value": value} for value in architectures],
    }


def completed(bom: dict[str, Any], parts: list[Component]) -> dict[str, Any]:
    """The packages of an environment that velo needs (not pip), and the native parts."""
    subject = bom["metadata"]["component"]
    edges = {edge["ref"]: edge.get("dependsOn", []) for edge in bom["dependencies"]}
    edges[subject["bom-ref"]] = sorted([*edges[subject["bom-ref"]], *(part["bom-ref"] for part in parts)])
    reached: set[str] = set()
    waiting = [subject["bom-ref"]]
    while waiting:
        ref = waiting.pop()
        if ref not in reached:
            reached.add(ref)
            waiting += edges.get(ref, [])
    version_here = package_version()
    purl = f"pkg:pypi/{subject['name']}@{version_here}"
    return {
        **bom,
        "metadata": {**bom["metadata"], "component": {**subject, "version": version_here, "purl": purl}},
        "components": [part for part in [*bom["components"], *parts] if part["bom-ref"] in reached],
        "dependencies": [{"ref": ref, "dependsOn": edges.get(ref, [])} for ref in sorted(reached)],
    }


def faults_of(bom: dict[str, Any], archives: dict[str, Path]) -> list[str]:
    """What a list lacks or says wrong; none, if it may go out."""
    subject = bom["metadata"]["component"]
    faults = []
    if (subject["name"], subject.get("version")) != ("veloann", package_version()):
        faults.append(f"it is about {subject['name']} {subject.get('version')}")
    listed = {(normal(part["name"]), part["version"]) for part in bom["components"]}
    names = {name for name, _ in listed}
    faults += [f"{name} is missing" for name in sorted(core_requirements() - names)]
    for part in native_parts(archives):
        if (part["name"], part["version"]) not in listed:
            faults.append(f"{part['name']} {part['version']} is missing")
    return faults
