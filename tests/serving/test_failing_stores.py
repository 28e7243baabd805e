"""A store that fails in the middle of what it brings: a typed error, nothing half-staged, a second try."""

from __future__ import annotations

import io
import random
import shutil
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.fs
import pytest

import velo
from velo.errors import CorruptIndexError
from velo.folder.manifest import MANIFEST_FILE
from velo_serving import read_collection
from velo_serving.catalog.locations import checksum_of, send_folder, shard_folder, stage
from velo_serving.protocol.errors import LocationError
from velo_serving.routing.local_backend import open_shards

VECTORS = np.random.default_rng(7).standard_normal((600, 16)).astype(np.float32)

#: Of the store of these tests; Arrow knows none of this name.
SCHEME = "faulty://"

FAULT = "the peer is gone"


class Store(pyarrow.fs.FileSystemHandler):  # type: ignore[misc]
    """Local folders that fail after a number of bytes, until they are repaired."""

    def __init__(self) -> None:
        self._local = pyarrow.fs.LocalFileSystem()
        self._lock = threading.Lock()
        self.bytes_left: int | None = None
        #: Whether it is well after a failure.
        self.fails_once = False
        self.passed = self.failures = 0

    def pass_on(self, count: int) -> None:
        """Count bytes, and fail where they are too many."""
        with self._lock:
            self.passed += count
            if self.bytes_left is None:
                return
            self.bytes_left -= count
            if self.bytes_left >= 0:
                return
            self.failures += 1
            if self.fails_once:
                self.bytes_left = None
            raise OSError(FAULT)

    def get_type_name(self) -> str:
        return "faulty"

    def normalize_path(self, path: str) -> str:
        return path

    def get_file_info(self, paths: Any) -> Any:
        return self._local.get_file_info(paths)

    def get_file_info_selector(self, selector: Any) -> Any:
        return self._local.get_file_info(selector)

    def create_dir(self, path: str, recursive: bool) -> None:
        self._local.create_dir(path, recursive=recursive)

    def delete_dir(self, path: str) -> None:
        self._local.delete_dir(path)

    def delete_dir_contents(self, path: str, missing_dir_ok: bool = False) -> None:
        self._local.delete_dir_contents(path, missing_dir_ok=missing_dir_ok)

    def delete_root_dir_contents(self) -> None:
        raise NotImplementedError  # pyarrow's handler has to have it; a call would be a mistake

    def delete_file(self, path: str) -> None:
        self._local.delete_file(path)

    def move(self, src: str, dest: str) -> None:
        self._local.move(src, dest)

    def copy_file(self, src: str, dest: str) -> None:
        self._local.copy_file(src, dest)

    def open_input_stream(self, path: str) -> Any:
        return pa.PythonFile(File(self, path, "rb"), mode="r")

    def open_input_file(self, path: str) -> Any:
        return self.open_input_stream(path)

    def open_output_stream(self, path: str, metadata: Any) -> Any:
        return pa.PythonFile(File(self, path, "wb"), mode="w")

    def open_append_stream(self, path: str, metadata: Any) -> Any:
        raise NotImplementedError  # as above


class File(io.FileIO):
    """A file whose bytes count; a failure comes after what lies before it was passed on."""

    def __init__(self, store: Store, path: str, mode: str) -> None:
        super().__init__(path, mode)
        self._store = store

    def read(self, size: int | None = -1) -> bytes:
        piece = super().read(-1 if size is None else size)
        self._store.pass_on(len(piece))
        return piece

    def write(self, data: Any) -> int:
        view = memoryview(data)
        left = self._store.bytes_left
        if left is not None and left < view.nbytes:
            super().write(view[: max(0, left)])
        self._store.pass_on(view.nbytes)
        return super().write(view)


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Store:
    """A store at ``faulty://``, and a cache of this test's own."""
    opened = Store()
    system = pyarrow.fs.PyFileSystem(opened)

    class Known(pyarrow.fs.FileSystem):  # type: ignore[misc]
        @staticmethod
        def from_uri(url: str) -> tuple[Any, str]:
            assert url.startswith(SCHEME), url
            return system, url.removeprefix(SCHEME)

    monkeypatch.setattr(pyarrow.fs, "FileSystem", Known)
    monkeypatch.setattr("velo_serving.catalog.locations.CHUNK_BYTES", 4096)
    monkeypatch.setenv("VELO_CACHE", str(tmp_path / "cache"))
    return opened


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A collection of two shards; not to be changed."""
    folder = tmp_path_factory.mktemp("built") / "photos.velo"
    return velo.build_collection(folder, VECTORS, shards=2, calibrate=False, threads=1)


def staged(tmp_path: Path) -> list[Path]:
    """What the cache holds, but for locks."""
    return [entry for entry in (tmp_path / "cache").iterdir() if entry.suffix != ".lock"]


def same(one: Path, other: Path) -> bool:
    names = sorted(entry.name for entry in one.iterdir())
    return names == sorted(entry.name for entry in other.iterdir()) and all(
        (one / name).read_bytes() == (other / name).read_bytes() for name in names
    )


def test_a_failed_download_leaves_nothing_and_can_be_repeated(
    store: Store, built: Path, tmp_path: Path
) -> None:
    folder = built / "shard-00000"
    url = f"{SCHEME}{folder}"
    first = stage(url)
    whole = store.passed
    assert whole > sum(entry.stat().st_size for entry in folder.iterdir())
    assert same(first, folder)
    shutil.rmtree(first)
    seed = 20
    print(f"seed {seed}")
    draw = random.Random(seed)
    after = [0, 1, whole - 1, *(draw.randrange(whole) for _ in range(40))]
    for count in after:
        store.bytes_left = count
        with pytest.raises(LocationError, match=FAULT) as caught:
            stage(url)
        assert str(folder) in str(caught.value), "it does not say which place"
        assert staged(tmp_path) == [], f"after {count} of {whole} bytes"
    assert store.failures == len(after)
    store.bytes_left = None
    assert same(stage(url), folder)


def test_the_next_location_is_tried_after_a_failure(store: Store, built: Path, tmp_path: Path) -> None:
    folder = built / "shard-00001"
    checksum = checksum_of((folder / MANIFEST_FILE).read_bytes())
    places = [f"{SCHEME}{tmp_path}/nothing-here", f"{SCHEME}{folder}"]
    store.bytes_left = 10_000
    with pytest.raises(LocationError, match="nothing-here"):
        shard_folder("1", places, checksum=checksum)
    assert store.failures == 1
    assert staged(tmp_path) == []
    store.bytes_left = None
    found = Path(shard_folder("1", places, checksum=checksum))
    assert same(found, folder)
    # From now on the store is not asked, however it is.
    store.bytes_left = 0
    assert Path(shard_folder("1", places, checksum=checksum)) == found
    assert store.failures == 1


def test_concurrent_downloads_of_a_shard_do_not_disturb_each_other(
    store: Store, built: Path, tmp_path: Path
) -> None:
    """One of them meets the failure, the other one has the shard."""
    folder = built / "shard-00000"
    store.bytes_left = sum(entry.stat().st_size for entry in folder.iterdir()) // 2
    store.fails_once = True
    outcomes: list[Any] = []

    def run() -> None:
        try:
            outcomes.append(stage(f"{SCHEME}{folder}"))
        except LocationError as error:
            outcomes.append(error)

    threads = [threading.Thread(target=run) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    (failure,) = (one for one in outcomes if isinstance(one, LocationError))
    assert FAULT in str(failure)
    (found,) = (one for one in outcomes if isinstance(one, Path))
    assert same(found, folder)
    assert staged(tmp_path) == [found]


def test_a_collection_opens_once_its_store_is_well(store: Store, built: Path, tmp_path: Path) -> None:
    url = f"{SCHEME}{built}"
    store.bytes_left = 5
    with pytest.raises(LocationError, match=FAULT):
        read_collection(url)
    store.bytes_left = None
    collection = read_collection(url)
    store.bytes_left = 3 * store.passed
    with pytest.raises(LocationError, match=FAULT):
        open_shards(collection, threads=1)
    store.bytes_left = None
    shards = open_shards(collection, threads=1)
    assert len(staged(tmp_path)) == len(shards) == 2
    for shard in shards:
        shard.close()


def test_a_shard_that_was_half_sent_is_no_shard(store: Store, built: Path, tmp_path: Path) -> None:
    """The manifest goes last, and is half there at most: no index. Sent again, it is one."""
    folder = built / "shard-00000"
    url = f"{SCHEME}{tmp_path}/sent"
    size = sum(entry.stat().st_size for entry in folder.iterdir())
    for share in (0.1, 0.5, 0.99):
        store.bytes_left = int(share * size)
        with pytest.raises(LocationError, match=FAULT):
            send_folder(folder, url)
        store.bytes_left = None
        with pytest.raises((LocationError, CorruptIndexError), match=MANIFEST_FILE):
            stage(url)
        assert staged(tmp_path) == []
    send_folder(folder, url)
    assert same(stage(url), folder)
