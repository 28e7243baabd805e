"""What a release says of itself: its notes, and the list of its parts."""

from __future__ import annotations

import re
from importlib.metadata import requires, version
from pathlib import Path
from typing import Any

import pytest
from packaging_help import ROOT, project_version

from tools import debian, notes, sbom


@pytest.fixture
def archives(tmp_path: Path) -> dict[str, Path]:
    """Two architectures' liburing, as distributions lay it out; the second is of another version."""
    found = {}
    for architecture, release in (("x86_64", "2.3"), ("aarch64", "2.9")):
        folder = tmp_path / architecture
        (folder / "pkgconfig").mkdir(parents=True)
        (folder / "pkgconfig" / "liburing.pc").write_text(f"Name: liburing\nVersion: {release}\nURL: here\n")
        found[architecture] = folder / "liburing.a"
    return found


def environment_list(names: set[str]) -> dict[str, Any]:
    """What cyclonedx-py says of an environment that has the wheel: the package is its subject."""
    there = sorted(names | {"pip"})
    parts = [{"type": "library", "bom-ref": f"{name}==1", "name": name, "version": "1"} for name in there]
    needs = [f"{name}==1" for name in sorted(names)]
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "metadata": {"component": {"bom-ref": "root-component", "type": "library", "name": "veloann"}},
        "components": parts,
        "dependencies": [
            {"ref": "root-component", "dependsOn": needs},
            *({"ref": part["bom-ref"]} for part in parts),
        ],
    }


def test_notes_are_the_newest_section_of_the_changelog() -> None:
    changelog = (ROOT / "CHANGELOG.md").read_text()
    text = notes.release_notes(changelog, project_version())
    assert text.startswith(f"# velo {project_version()}\n\n- ")
    assert text.count("\n") > 50
    two = "# Changelog\n\nSome words.\n\n## 2.0 – a day\n\n- new\n\n### Fixed\n\n- b\n\n## 1.0\n\n- old\n"
    assert notes.release_notes(two, "2.0") == "# velo 2.0\n\n- new\n\n### Fixed\n\n- b\n"
    with pytest.raises(ValueError, match=r"begins with 2\.0 – a day, but the version is 1\.0"):
        notes.release_notes(two, "1.0")


def test_requirements_are_those_of_the_package() -> None:
    installed = {
        re.split(r"[<>=!~\[; ]", line)[0] for line in requires("veloann") or [] if "extra ==" not in line
    }
    assert sbom.core_requirements() == {sbom.normal(name) for name in installed}
    assert sbom.package_version() == project_version()


def test_native_parts_have_the_versions_that_are_linked(archives: dict[str, Path]) -> None:
    parts = {(part["name"], part["version"]): part for part in sbom.native_parts(archives)}
    pinned = re.search(r'"ziglang==([^"]+)"', (ROOT / "pyproject.toml").read_text())
    assert pinned
    assert version("ziglang") == pinned[1]
    assert set(parts) == {("liburing", "2.3"), ("liburing", "2.9"), ("zig", pinned[1])}
    machines = {key: [entry["value"] for entry in part["properties"]] for key, part in parts.items()}
    assert machines[("liburing", "2.9")] == ["aarch64"]
    assert machines[("zig", pinned[1])] == ["x86_64", "aarch64"]
    assert set(archives) == set(debian.MACHINES.values())


def test_a_complete_list_has_no_fault(archives: dict[str, Path]) -> None:
    made = environment_list(sbom.core_requirements())
    bom = sbom.completed(made, sbom.native_parts(archives))
    assert sbom.faults_of(bom, archives) == []
    subject = bom["metadata"]["component"]
    assert subject["purl"] == f"pkg:pypi/veloann@{project_version()}"
    assert "pip" not in {part["name"] for part in bom["components"]}
    edges = {edge["ref"]: edge.get("dependsOn", []) for edge in bom["dependencies"]}
    assert set(edges) == {part["bom-ref"] for part in bom["components"]} | {"root-component"}
    assert set(edges["root-component"]) == set(edges) - {"root-component"}


@pytest.mark.parametrize(
    ("lost", "fault"),
    [("numpy", "numpy is missing"), ("liburing", "liburing 2.9 is missing"), ("zig", "zig .* is missing")],
)
def test_a_list_that_lacks_a_part_is_refused(archives: dict[str, Path], lost: str, fault: str) -> None:
    made = environment_list(sbom.core_requirements() - {lost})
    parts = [part for part in sbom.native_parts(archives) if part["name"] != lost]
    faults = sbom.faults_of(sbom.completed(made, parts), archives)
    assert any(re.fullmatch(fault, found) for found in faults), faults


def test_a_list_of_another_version_is_refused(archives: dict[str, Path]) -> None:
    bom = sbom.completed(environment_list(sbom.core_requirements()), sbom.native_parts(archives))
    bom["metadata"]["component"]["version"] = "0.0.9"
    assert sbom.faults_of(bom, archives) == ["it is about veloann 0.0.9"]
