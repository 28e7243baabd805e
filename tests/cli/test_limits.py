"""The command takes what lies at a limit and refuses what lies beyond, in one line and with exit code 1."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from velo.cli.app import app
from velo.formats import write_vectors
from velo.options import BuildOptions, k_of_one_search, limit_of

LOW = {
    name: limit_of(name).low
    for name in ("memory_bits", "record_bits", "degree", "build_list_size", "alpha", "links_kept", "threads")
}
HIGH = {name: limit_of(name).high for name in LOW}


def run(*arguments: Any) -> tuple[int, str, str]:
    done = CliRunner().invoke(app, [str(one) for one in arguments])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done.exit_code, done.stdout, done.stderr


def flags(options: dict[str, Any]) -> list[Any]:
    return [segment for name, value in options.items() for segment in (f"--{name.replace('_', '-')}", value)]


def refused(argument: str, *arguments: Any) -> None:
    code, stdout, stderr = run(*arguments)
    assert code == 1, stderr
    assert stderr.startswith(f"velo: {argument} must be ")
    assert stderr.count("\n") == 1
    code, stdout, _ = run(*arguments, "--json")
    error = json.loads(stdout)["error"]
    assert (code, error["type"], error["argument"]) == (1, "InvalidArgumentError", argument)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("limits")
    rows = np.random.default_rng(4).standard_normal((300, 8)).astype(np.float32)
    write_vectors(folder / "rows.fbin", rows)
    code, _, stderr = run("build", folder / "rows.fbin", folder / "i.velo", "--threads", 1, "--no-calibrate")
    assert code == 0, stderr
    return folder


@pytest.mark.parametrize("ends", [LOW, HIGH | {"threads": 1}], ids=["low", "high"])
def test_a_build_at_its_limits(files: Path, tmp_path: Path, ends: dict[str, Any]) -> None:
    code, _, stderr = run("build", files / "rows.fbin", tmp_path / "i", *flags(ends), "--no-calibrate")
    assert code == 0, stderr


@pytest.mark.parametrize("name", list(LOW))
def test_a_build_beyond_its_limits(files: Path, tmp_path: Path, name: str) -> None:
    for value in (LOW[name] - 1, HIGH[name] + 1):
        refused(name, "build", files / "rows.fbin", tmp_path / "i", f"--{name.replace('_', '-')}={value}")
    assert not (tmp_path / "i").exists()


def test_shards(files: Path, tmp_path: Path) -> None:
    for shards in (0, limit_of("shards").high + 1):
        refused("shards", "build", files / "rows.fbin", tmp_path / "c", f"--shards={shards}")
    assert not (tmp_path / "c").exists()


@pytest.mark.parametrize("name", ["k", "list_size"])
def test_a_search_at_its_limits_and_beyond(files: Path, name: str) -> None:
    flag = f"--{name.replace('_', '-')}"
    command = ("search", files / "i.velo", files / "rows.fbin", "--first", 2, "--threads", 1, "--show", 0)
    low, high = limit_of(name)
    # The most that k may be is an answer of hundreds of megabytes: more than one search brings will do.
    for value in (low, high if name == "list_size" else k_of_one_search() + 1):
        code, _, stderr = run(*command, f"{flag}={value}")
        assert code == 0, stderr
    for value in (low - 1, high + 1):
        refused(name, *command, f"{flag}={value}")


def test_threads_limit_and_group_size(files: Path) -> None:
    command = ("search", files / "i.velo", files / "rows.fbin", "--first", 1)
    low, high = limit_of("threads")
    for value in (low - 1, high + 1):
        refused("threads", *command, f"--threads={value}")
        refused("threads", "serve", files / "i.velo", f"--threads={value}", "--port", 0)
    for value in (0, limit_of("limit").high + 1):
        refused("limit", *command, "--radius", 1, f"--limit={value}")
    for value in (0, limit_of("group_hits").high + 1):
        refused("group_size", *command, "--group-by", "a", f"--group-size={value}")


def test_help_says_each_limit() -> None:
    shown = " ".join(run("build", "--help")[1].split())
    for name in LOW:
        assert f"{LOW[name]} to {HIGH[name]}." in shown, name
    for one in BuildOptions.public_fields():
        assert f"--{one.name.replace('_', '-')}" in shown
        assert one.help.partition(" that ")[0] in shown
