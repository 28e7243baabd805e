"""What the README shows runs as it stands: each block in a folder that holds nothing but the examples."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest
from packaging_help import ROOT, run

README = (ROOT / "README.md").read_text()


def section(title: str) -> str:
    return README.split(f"\n### {title}\n", 1)[1].split("\n#", 1)[0]


def block(title: str, language: str) -> str:
    (found,) = re.findall(rf"```{language}\n(.*?)```", section(title), flags=re.DOTALL)
    return str(found)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    return tmp_path


@pytest.fixture
def env() -> dict[str, str]:
    """This interpreter's commands first, as after activating its environment."""
    path = [str(ROOT), str(ROOT / "serving"), *filter(None, [os.environ.get("PYTHONPATH")])]
    commands = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, "PATH": commands, "PYTHONPATH": os.pathsep.join(path)}


def test_library(checkout: Path, env: dict[str, str]) -> None:
    out = run(sys.executable, "-c", block("As a library", "python"), cwd=checkout, env=env)
    assert "brand" in out
    assert (checkout / "sample.velo" / "manifest.json").exists()


@pytest.mark.ray
@pytest.mark.slow
def test_ray(checkout: Path, env: dict[str, str]) -> None:
    quiet = env | {"RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0", "RAY_USAGE_STATS_ENABLED": "0"}
    out = run(sys.executable, "-c", block("On Ray", "python"), cwd=checkout, env=quiet)
    ids = [int(word) for word in re.findall(r"\d+", out.strip().splitlines()[-1])]
    assert len(ids) == 10
    assert all(0 <= one < 20_000 for one in ids)


@pytest.mark.slow
def test_http(checkout: Path, env: dict[str, str]) -> None:
    no_server_stays = "trap 'kill $(jobs -p) 2>/dev/null || true' EXIT\n"
    out = run("bash", "-euc", no_server_stays + block("Over HTTP", "sh"), cwd=checkout, env=env)
    assert "4 of 4 shards" in out


def test_links_lead_somewhere() -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", README):
        if "://" not in target:
            assert (ROOT / target).exists(), target


def test_the_first_commands_are_the_door_s() -> None:
    first = re.findall(r"```sh\n(.*?)```", README, flags=re.DOTALL)[0]
    commands = [line.split("#")[0].split() for line in first.splitlines()]
    assert commands == [["./dev", "demo"], ["./dev", "test"]]
    door = (ROOT / "dev").read_text()
    for _, command in commands:
        assert re.search(rf"^{command}\)", door, flags=re.MULTILINE), command
