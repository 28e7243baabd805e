"""One folder takes the place of another: nothing that was complete is lost, whatever happens meanwhile."""

from __future__ import annotations

import errno
import os
import resource
from pathlib import Path

import pytest

from velo.errors import (
    DeviceError,
    IndexExistsError,
    InvalidArgumentError,
    NoSpaceError,
    OutOfMemoryError,
    PermissionDeniedError,
)
from velo.folder.replace import durable_file, folder_to_fill, os_failure

LAST = "last.json"


def complete(folder: Path, text: str) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / LAST).write_text(text)
    return folder


def test_without_overwrite_or_with_nothing_complete_it_is_the_folder_itself(tmp_path: Path) -> None:
    with folder_to_fill(tmp_path / "new", True, LAST) as folder:
        assert folder == tmp_path / "new"
    target = complete(tmp_path / "old", "1")
    with folder_to_fill(target, False, LAST) as folder:
        assert folder == target


def test_the_new_folder_takes_the_old_ones_place_at_the_end(tmp_path: Path) -> None:
    target = complete(tmp_path / "i", "old")
    with open(target / LAST) as held:
        with folder_to_fill(target, True, LAST) as folder:
            complete(folder, "new")
            (folder / "inner").mkdir()
            assert (target / LAST).read_text() == "old"
        assert held.read() == "old", "what is open stays"
    assert (target / LAST).read_text() == "new"
    assert os.listdir(tmp_path) == ["i"]


def test_a_failure_leaves_the_old_one(tmp_path: Path) -> None:
    target = complete(tmp_path / "i", "old")
    with pytest.raises(ZeroDivisionError), folder_to_fill(target, True, LAST):
        _ = 1 / 0
    assert (target / LAST).read_text() == "old"
    assert os.listdir(tmp_path) == ["i"]


def test_an_unfinished_folder_is_found_again_and_a_complete_one_is_emptied(tmp_path: Path) -> None:
    target = complete(tmp_path / "i", "old")
    left = tmp_path / ".i.building"
    left.mkdir()
    (left / "work").write_text("half")
    with folder_to_fill(target, True, LAST) as folder:
        assert folder == left
        assert os.listdir(folder) == ["work"]
        complete(folder, "new")
        complete(left / "shard", "")
    complete(left, "of unknown vectors")
    complete(left / "shard", "")
    with folder_to_fill(target, True, LAST) as folder:
        assert os.listdir(folder) == []
        complete(folder, "newer")
    assert (target / LAST).read_text() == "newer"


def test_two_never_fill_one_folder(tmp_path: Path) -> None:
    target = complete(tmp_path / "i", "old")
    with folder_to_fill(target, True, LAST) as folder:
        with pytest.raises(IndexExistsError, match="another build"), folder_to_fill(target, True, LAST):
            pass
        complete(folder, "new")
    assert (target / LAST).read_text() == "new"


def test_a_file_takes_its_name_when_it_is_complete(tmp_path: Path) -> None:
    path = tmp_path / "f"
    with durable_file(path) as file:
        file.write(b"one")
        assert not path.exists()
    with pytest.raises(TypeError), durable_file(path) as file:
        file.writelines([b"two", "no bytes"])
    assert path.read_bytes() == b"one"
    assert os.listdir(tmp_path) == ["f"]


def test_what_the_system_refuses_is_typed() -> None:
    assert isinstance(os_failure(OSError(28, "full"), "f"), NoSpaceError)
    assert isinstance(os_failure(OSError(13, "no"), "f"), PermissionDeniedError)
    for code in (errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG, errno.EEXIST):
        other = os_failure(OSError(code, "no"), "f")
        assert type(other) is InvalidArgumentError
        assert other.file == "f"
    for code in (errno.EIO, errno.EMFILE, errno.ENFILE, errno.ESTALE):
        assert type(os_failure(OSError(code, "broken"), "f")) is DeviceError
    assert "ulimit" in str(os_failure(OSError(errno.EMFILE, "many"), "f"))
    assert isinstance(os_failure(OSError(errno.ENOMEM, "none"), "f"), OutOfMemoryError)


def test_no_descriptor_left_is_no_fault_of_the_caller(tmp_path: Path) -> None:
    target = complete(tmp_path / "t", "one")
    free = os.dup(0)
    os.close(free)
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (free, before[1]))
        with pytest.raises(DeviceError, match="ulimit"), folder_to_fill(target, True, LAST):
            raise AssertionError("there is no descriptor")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert (target / LAST).read_text() == "one"
