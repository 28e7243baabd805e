"""Readers and writers: written rows are read back, in chunks, and damage is reported with file and byte."""

from __future__ import annotations

import builtins
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from velo import errors
from velo.formats import SUFFIXES, open_vectors, read_truth, write_truth, write_vectors
from velo.formats.files import as_source
from velo.formats.source import ArraySource, RawSource, native_dtype

DTYPES = {".fbin": "float32", ".fvecs": "float32", ".u8bin": "uint8", ".bvecs": "uint8", ".i8bin": "int8"}
DTYPES |= {".ibin": "int32", ".ivecs": "int32"}


def rows_of(random: np.random.Generator, dtype: str, shape: tuple[int, int]) -> np.ndarray:
    if np.dtype(dtype).kind == "f":
        return random.normal(size=shape).astype(dtype)
    low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
    return random.integers(low, high, size=shape, dtype=dtype, endpoint=True)


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("shape", [(1, 1), (7, 3), (300, 17)])
def test_round_trip_in_chunks(
    suffix: str, shape: tuple[int, int], random: np.random.Generator, tmp_path: Path
) -> None:
    for dtype in [DTYPES[suffix]] if suffix in DTYPES else ["float32", "float16", "uint8", "int8", "float64"]:
        rows = rows_of(random, dtype, shape)
        path = tmp_path / f"vectors{suffix}"
        write_vectors(path, rows)
        source = open_vectors(path)
        assert source.shape == shape
        assert source.dtype == np.dtype(dtype)
        for size in (1, 4, 1000):
            chunks = [chunk.copy() for chunk in source.chunks(size)]
            assert all(1 <= len(chunk) <= size for chunk in chunks)
            assert np.array_equal(np.concatenate(chunks), rows)
        start, stop = shape[0] // 3, shape[0] - shape[0] // 4
        middle = [chunk.copy() for chunk in source.chunks(2, start, stop)]
        assert np.array_equal(np.concatenate([rows[:0], *middle]), rows[start:stop])
        assert np.array_equal(source.read(), rows)


@pytest.mark.parametrize(
    "suffix", [".fbin", ".u8bin", ".i8bin", ".ibin", ".fvecs", ".bvecs", ".ivecs", ".npy"]
)
@pytest.mark.parametrize("cut", [1, 5, 40])
def test_a_truncated_file_is_named_with_its_byte(suffix: str, cut: int, tmp_path: Path) -> None:
    path = tmp_path / f"vectors{suffix}"
    write_vectors(path, np.ones((9, 12), DTYPES.get(suffix, "float32")))
    whole = path.read_bytes()
    path.write_bytes(whole[:-cut])
    with pytest.raises(errors.FormatError) as caught:
        open_vectors(path)
    assert caught.value.file == str(path)
    assert caught.value.position is not None
    assert 0 <= caught.value.position <= len(whole)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize(
    "content", [b"", b"x", b"\xff" * 64, b"nonsense, and more than a header's worth of it"]
)
def test_nonsense_is_refused(suffix: str, content: bytes, tmp_path: Path) -> None:
    path = tmp_path / f"vectors{suffix}"
    path.write_bytes(content)
    if suffix in (".fvecs", ".bvecs", ".ivecs") and content == b"":
        assert open_vectors(path).shape[0] == 0
        return
    with pytest.raises(errors.FormatError, match="vectors"):
        open_vectors(path)


@pytest.mark.parametrize("suffix", [".parquet", ".arrow", ".hdf5"])
@pytest.mark.parametrize("keep", [0.2, 0.6, 0.95])
def test_a_truncated_container_is_refused(suffix: str, keep: float, tmp_path: Path) -> None:
    path = tmp_path / f"vectors{suffix}"
    write_vectors(path, np.ones((500, 12), np.float32))
    whole = path.read_bytes()
    path.write_bytes(whole[: int(len(whole) * keep)])
    with pytest.raises(errors.FormatError, match="vectors"):
        open_vectors(path)


def test_trailing_bytes_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.fbin"
    write_vectors(path, np.ones((3, 4), np.float32))
    path.write_bytes(path.read_bytes() + b"\0\0\0\0")
    with pytest.raises(errors.FormatError, match="take 56 bytes, the file has 60") as caught:
        open_vectors(path)
    assert caught.value.position == 56


def test_a_row_of_another_length_is_found(tmp_path: Path) -> None:
    path = tmp_path / "a.fvecs"
    write_vectors(path, np.ones((10, 4), np.float32))
    content = bytearray(path.read_bytes())
    content[6 * 20 : 6 * 20 + 4] = struct.pack("<i", 5)
    path.write_bytes(content)
    with pytest.raises(errors.FormatError, match="row 6 says 5 dimensions") as caught:
        list(open_vectors(path).chunks(4))
    assert caught.value.row == 6
    assert caught.value.position == 120


def test_a_file_that_shrinks_while_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a.fbin"
    write_vectors(path, np.ones((10, 4), np.float32))
    source = open_vectors(path)
    path.write_bytes(path.read_bytes()[:80])
    with pytest.raises(errors.FormatError, match="ended early") as caught:
        list(source.chunks(3))
    assert caught.value.position == 80


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    for suffix in SUFFIXES:
        with pytest.raises(errors.FormatError):
            open_vectors(tmp_path / f"none{suffix}")
    with pytest.raises(errors.InvalidArgumentError, match="unknown suffix"):
        open_vectors(tmp_path / "vectors.txt")


def test_fortran_order_and_objects(tmp_path: Path, random: np.random.Generator) -> None:
    rows = np.asfortranarray(random.normal(size=(20, 5)))
    np.save(tmp_path / "f.npy", rows)
    assert np.array_equal(open_vectors(tmp_path / "f.npy").read(), rows)
    np.save(tmp_path / "o.npy", np.array([[1, "a"]], object), allow_pickle=True)
    with pytest.raises(errors.FormatError, match="Python objects"):
        open_vectors(tmp_path / "o.npy")
    np.save(tmp_path / "c.npy", np.zeros((2, 3, 4)))
    with pytest.raises(errors.FormatError, match=r"not \(n, d\)"):
        open_vectors(tmp_path / "c.npy")


def test_lists_of_equal_length_and_the_columns_name(tmp_path: Path) -> None:
    rows = np.arange(12, dtype=np.float32).reshape(4, 3)
    table = pa.table(
        {
            "name": ["a", "b", "c", "d"],
            "first": pa.array(list(rows), pa.list_(pa.float32())),
            "second": pa.FixedSizeListArray.from_arrays(pa.array(-rows.reshape(-1)), 3),
        }
    )
    path = tmp_path / "t.parquet"
    pq.write_table(table, path, row_group_size=3)
    with pytest.raises(errors.FormatError, match="'first', 'second'"):
        open_vectors(path)
    assert np.array_equal(open_vectors(path, column="first").read(), rows)
    assert np.array_equal(open_vectors(path, column="second").read(), -rows)
    with pytest.raises(errors.FormatError, match="no column 'third'"):
        open_vectors(path, column="third")
    with pytest.raises(errors.FormatError, match="no column 'name'"):
        open_vectors(path, column="name")


def test_nulls_and_ragged_lists_are_told_by_row(tmp_path: Path) -> None:
    ragged = pa.array([[1.0, 2.0], [1.0, 2.0], [1.0]])
    with pytest.raises(errors.DimensionMismatchError, match="row 2 has 1 elements, not 2") as caught:
        as_source(ragged).read()
    assert caught.value.row == 2
    with pytest.raises(errors.NotFiniteError, match="row 1 is null"):
        as_source(pa.array([[1.0, 2.0], None])).read()
    with pytest.raises(errors.NotFiniteError, match="row 1 holds a null"):
        as_source(pa.array([[1.0, 2.0], [3.0, None]], pa.list_(pa.float64(), 2))).read()


def test_arrow_arrays_are_not_copied(random: np.random.Generator) -> None:
    flat = pa.array(random.normal(size=60).astype(np.float32))
    column = pa.FixedSizeListArray.from_arrays(flat, 6)
    chunk = next(as_source(column).chunks(4))
    assert np.shares_memory(chunk, flat.to_numpy())
    chunked = pa.chunked_array([column.slice(0, 3), column.slice(3)])
    assert np.array_equal(as_source(chunked).read(), flat.to_numpy().reshape(10, 6))
    assert np.array_equal(as_source(pa.table({"v": chunked})).read(), flat.to_numpy().reshape(10, 6))
    assert np.array_equal(as_source(column.slice(4, 3)).read(), flat.to_numpy().reshape(10, 6)[4:7])


def test_what_counts_as_vectors(random: np.random.Generator, tmp_path: Path) -> None:
    rows = random.normal(size=(5, 4))
    assert as_source([[1, 2], [3, 4]]).dtype == np.float32
    assert np.array_equal(as_source(tuple(map(tuple, rows))).read(), rows.astype(np.float32))

    class Mine:
        shape = (5, 4)
        dtype = np.dtype(np.float64)

        def chunks(self, size: int) -> Any:
            yield rows[:2]
            yield rows[2:]

    assert np.array_equal(as_source(Mine()).read(), rows)
    assert np.array_equal(np.concatenate(list(as_source(Mine()).chunks(9, 1, 4))), rows[1:4])
    Mine.shape = (6, 4)
    with pytest.raises(errors.DimensionMismatchError, match="ended after 5"):
        as_source(Mine()).read()
    with pytest.raises(errors.DimensionMismatchError, match="differ in length"):
        as_source([[1.0, 2.0], [3.0]])
    with pytest.raises(errors.DimensionMismatchError, match=r"\(n, d\)"):
        as_source(np.zeros(5))


def test_reading_a_memmap_gives_its_pages_back(tmp_path: Path) -> None:
    path = tmp_path / "big.npy"
    np.save(path, np.ones((64, 1 << 18), np.float32))  # 64 MiB
    mapped = np.load(path, mmap_mode="r")

    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

    before, most = resident(), 0
    for chunk in as_source(mapped).chunks(4):
        assert float(chunk.sum()) == chunk.size
        most = max(most, resident() - before)
    assert most < 32 << 20
    assert float(mapped[-1].sum()) == 1 << 18, "the mapping still reads"


def test_changes_in_a_copy_on_write_memmap_stay(tmp_path: Path) -> None:
    path = tmp_path / "a.npy"
    np.save(path, np.ones((8, 4), np.float32))
    mapped = np.load(path, mmap_mode="c")
    mapped[3] = 7
    list(as_source(mapped).chunks(2))
    assert mapped[3, 0] == 7


def test_element_types() -> None:
    assert native_dtype(np.dtype(np.float64)) == np.float32
    assert native_dtype(np.dtype(">f4")) == np.dtype("<f4")
    for name in ("float32", "float16", "uint8", "int8"):
        assert native_dtype(np.dtype(name)).name == name
    for name in ("int32", "int64", "bool", "complex64", "U3", "O"):
        with pytest.raises(errors.DtypeError) as caught:
            native_dtype(np.dtype(name))
        assert caught.value.argument == "vectors"


def test_hdf5_without_h5py(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    real = builtins.__import__

    def refuse(name: str, *rest: Any) -> Any:
        if name == "h5py":
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(errors.MissingDependencyError, match="pip install h5py"):
        open_vectors(tmp_path / "a.hdf5")


def test_truth_files(random: np.random.Generator, tmp_path: Path) -> None:
    ids = random.integers(0, 1000, size=(6, 5))
    distances = random.random((6, 5), dtype=np.float32)
    write_truth(tmp_path / "t.bin", ids, distances)
    truth = read_truth(tmp_path / "t.bin")
    assert np.array_equal(truth.ids, ids)
    assert np.array_equal(truth.distances, distances)
    write_vectors(tmp_path / "t.ivecs", ids.astype(np.int32))
    assert np.array_equal(read_truth(tmp_path / "t.ivecs").ids, ids)
    whole = (tmp_path / "t.bin").read_bytes()
    for size in (0, 5, len(whole) - 1):
        (tmp_path / "t.bin").write_bytes(whole[:size])
        with pytest.raises(errors.FormatError) as caught:
            read_truth(tmp_path / "t.bin")
        assert caught.value.position == size


def test_sources_say_what_they_are(tmp_path: Path) -> None:
    write_vectors(tmp_path / "a.fbin", np.ones((3, 4), np.float32))
    source = open_vectors(tmp_path / "a.fbin")
    assert isinstance(source, RawSource)
    assert "a.fbin" in repr(source)
    assert len(source) == 3
    with pytest.raises(errors.InvalidArgumentError):
        list(ArraySource(np.ones((2, 2))).chunks(0))
