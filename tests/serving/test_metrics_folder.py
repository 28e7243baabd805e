"""The folder that gateways count in: what a killed server leaves goes, what a living one has stays."""

from __future__ import annotations

import fcntl
import os
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from velo_serving.hosting import metrics_folder as module
from velo_serving.hosting.metrics_folder import OWNER, PREFIX, metrics_folder


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder for temporary files."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def left_by_a_killed(temporary: Path, name: str) -> Path:
    """Make the folder of a killed server, with the id of its process and its counters."""
    folder = temporary / f"{PREFIX}{name}"
    folder.mkdir()
    (folder / OWNER).touch()
    (folder / "counter_0.db").touch()
    return folder


def test_abandoned_folders_are_removed_and_used_ones_kept(temporary: Path) -> None:
    left_by_a_killed(temporary, "left")
    (temporary / f"{PREFIX}ownerless").mkdir()  # killed before it could own it
    others = temporary / "velo-something"
    others.mkdir()
    with metrics_folder() as (first, _), metrics_folder() as (second, _):
        assert set(temporary.iterdir()) == {Path(first), Path(second), others}
    assert list(temporary.iterdir()) == [others]


def test_the_descriptor_of_a_gateway_keeps_the_folder(temporary: Path) -> None:
    """Gateways go on for a while when their parent was killed."""
    folder = left_by_a_killed(temporary, "orphans")
    parents = os.open(folder / OWNER, os.O_RDWR)
    fcntl.flock(parents, fcntl.LOCK_EX)
    gateways = os.dup(parents)
    os.close(parents)
    with metrics_folder():
        assert folder.exists()
    os.close(gateways)
    with metrics_folder():
        assert not folder.exists()


def test_links_files_and_folders_of_others_are_left_alone(
    temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = temporary / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "data").touch()
    link = temporary / f"{PREFIX}link"
    link.symlink_to(elsewhere)
    file = temporary / f"{PREFIX}file"
    file.touch()
    inside = left_by_a_killed(temporary, "inside")
    (inside / OWNER).unlink()
    (inside / OWNER).symlink_to(elsewhere / "data")
    mine = left_by_a_killed(temporary, "mine")
    with metrics_folder():
        assert link.is_symlink()
        assert file.exists()
        assert inside.exists()
        assert not mine.exists()
    theirs = left_by_a_killed(temporary, "theirs")
    user = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: user + 1)
    with metrics_folder():
        assert theirs.exists()
    assert list(elsewhere.iterdir()) == [elsewhere / "data"]


def test_a_folder_that_another_server_takes_away_before_it_is_owned(
    temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[str] = []
    plain = tempfile.mkdtemp

    def swept(**options: Any) -> str:
        made.append(plain(**options))
        if len(made) == 1:
            module._sweep()
        return made[-1]

    monkeypatch.setattr(tempfile, "mkdtemp", swept)
    with metrics_folder() as (folder, _):
        assert made == [made[0], folder]
        assert list(temporary.iterdir()) == [Path(folder)]


def test_a_lock_on_a_removed_file_does_not_count(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between opening the file and locking it another server took the folder away, or made it its own."""
    plain = fcntl.flock
    for made_anew in (False, True):
        folder = left_by_a_killed(temporary, f"race-{made_anew}")

        def late(owner: int, how: int, folder: Path = folder, made_anew: bool = made_anew) -> None:
            (folder / OWNER).unlink()
            if made_anew:
                (folder / OWNER).touch()
            plain(owner, how)

        monkeypatch.setattr(fcntl, "flock", late)
        assert module._own(folder) is None
        assert (folder / "counter_0.db").exists()


def test_servers_that_start_at_once_keep_their_folders(temporary: Path) -> None:
    servers, rounds = 8, 20
    barrier = threading.Barrier(servers)

    def serve() -> None:
        try:
            for _ in range(rounds):
                barrier.wait(60)
                with metrics_folder() as (folder, _):
                    (Path(folder) / "counter_0.db").touch()
                    barrier.wait(60)
                    assert {one.name for one in Path(folder).iterdir()} == {OWNER, "counter_0.db"}
                    barrier.wait(60)
        except BaseException:
            barrier.abort()  # the others do not wait for one that failed
            raise

    with ThreadPoolExecutor(servers) as pool:
        for ended in [pool.submit(serve) for _ in range(servers)]:
            ended.result()
    assert list(temporary.iterdir()) == []
