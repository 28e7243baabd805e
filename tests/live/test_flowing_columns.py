"""Columns of a merge go in batches: the same as if they were whole, and most of them not in memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pytest

import velo
from tests.live.rows import DIM, vectors_of
from tests.live.test_column_types import kinds_and_values
from velo import errors
from velo.compaction.sources import Sources
from velo.folder import flow
from velo.folder.flow import Body, Spool, flowed_columns
from velo.folder.metadata import encoded_columns

# Every Arrow type passes through here: the stubs, generic in it, have nothing to check.
pa: Any = pyarrow

_NARROW = pa.dictionary(pa.int8(), pa.string())
_PIECES = 3
_EACH = 70


def texts(random: np.random.Generator, count: int) -> list[Any]:
    """Some that come often, some that come once, some that are missing."""
    made = [f"{random.integers(9)}" if random.random() < 0.5 else random.bytes(9).hex() for _ in range(count)]
    return [None if random.random() < 0.1 else one for one in made]


def lists(random: np.random.Generator, elements: list[Any]) -> list[Any]:
    return [None if random.random() < 0.1 else elements[: random.integers(4)] for _ in elements]


def columns_of(random: np.random.Generator, piece: int) -> Any:
    """A column of each kind that goes a way of its own."""
    own = [f"{piece} {row % 60}" for row in range(_EACH)]
    numbers = random.integers(-(2**60), 2**60, _EACH).tolist()
    gaps = [None if piece == 1 and row % 7 == 0 else row for row in range(_EACH)]
    made = {
        "text": pa.array(texts(random, _EACH), pa.large_string()),
        "tags": pa.array(lists(random, texts(random, _EACH)), pa.list_(pa.string())),
        # 180 values of three segments, which no index of 8 bits counts.
        "narrow": pa.array(own).dictionary_encode().cast(_NARROW),
        "narrow numbers": pa.array([60 * piece + row % 60 for row in range(_EACH)])
        .dictionary_encode()
        .cast(pa.dictionary(pa.int8(), pa.int64())),
        "narrow tags": pa.ListArray.from_arrays(
            pa.array(range(_EACH + 1), pa.int32()), pa.array(own).dictionary_encode().cast(_NARROW)
        ),
        "numbers": pa.array(lists(random, numbers), pa.list_(pa.int64())),
        # Of one piece alone elements are missing, or beyond int64.
        "gaps": pa.array([[one, row] for row, one in enumerate(gaps)], pa.list_(pa.int32())),
        "large": pa.array(
            [[2**63 + row if piece == 2 else row] for row in range(_EACH)], pa.list_(pa.uint64())
        ),
        "whole": pa.array(numbers),
        "truth": pa.array([None if row % 11 == 0 else row % 3 == 0 for row in range(_EACH)]),
        "none": pa.nulls(_EACH),
        "inside": pa.array([None if row % 9 == 0 else {"p": row, "q": f"{row}"} for row in range(_EACH)]),
        "inside coded": pa.StructArray.from_arrays([pa.array(own).dictionary_encode()], names=["p"]),
        "floats": pa.array([[0.5] * (row % 5) for row in range(_EACH)], pa.list_(pa.float32())),
        "fixed": pa.array([[row, None] for row in range(_EACH)], pa.list_(pa.int16(), 2)),
        "map": pa.array([[("k", row)] * (row % 3) for row in range(_EACH)], pa.map_(pa.string(), pa.int8())),
        "bytes": pa.array([b"x" * (row % 6) for row in range(_EACH)]),
    }
    return pa.table(made)


def both_ways(index: velo.Index, folder: Path, random: np.random.Generator) -> tuple[Any, Any]:
    """What lives, flowed and whole, in an order of its own."""
    view = index._folders[0].live.view()
    names = [segment.name for segment in view.segments]
    sources = Sources.alive(view, names, list(range(len(names))), with_delta=True)
    order = random.permutation(sources.count).astype(np.uint32)
    flowing = sources.metadata()
    assert flowing is not None
    table = view.metadata.rows(sources.vertices)
    with Body(folder) as body:
        return flowed_columns(flowing, order, body), (encoded_columns(table, order), table.schema)


def check_same(index: velo.Index, folder: Path, random: np.random.Generator) -> None:
    (arrays, schema), (expected, expected_schema) = both_ways(index, folder, random)
    assert schema.equals(expected_schema, check_metadata=True)
    for name, array, other in zip(schema.names, arrays, expected, strict=True):
        array.validate(full=True)
        assert array.type == other.type, name
        assert array.equals(other), name


@pytest.fixture(params=[False, True], ids=["some rows at a time", "large batches"])
def batches(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches of few rows, blocks of few texts and buffers that take a file soon; or all as it is."""
    if not request.param:
        monkeypatch.setattr(flow, "_BATCH_ROWS", 13)
        monkeypatch.setattr(flow, "_MERGED_VALUES", 5)
        monkeypatch.setattr(flow, "_MERGED_BYTES", 64)
        monkeypatch.setattr(flow, "_MERGED_BYTES_LEAST", 8)
        monkeypatch.setattr(flow, "_IN_MEMORY_BYTES", 50)
        monkeypatch.setattr(flow, "_COPIED_BYTES", 7)
        monkeypatch.setattr(flow, "_PASSED_BYTES", 100)


@pytest.mark.usefixtures("batches")
def test_columns_merged_in_batches_equal_columns_merged_at_once(
    tmp_path: Path, random: np.random.Generator
) -> None:
    """Of segments that have all columns, and some; of the delta; with rows that are dead."""
    pieces = [columns_of(random, piece) for piece in range(_PIECES)]
    vectors = vectors_of(_EACH)
    with velo.create(tmp_path / "i", dim=DIM, metadata=pieces[0].schema, threads=1) as index:
        for piece in pieces[:2]:
            index.insert(vectors, metadata=piece)
            index.flush()
            check_same(index, tmp_path, random)
        index.add_columns({"color": "red", "sizes": pa.list_(pa.string())})
        added = {"color": pa.array(texts(random, _EACH)), "sizes": pa.array([["s", None]] * _EACH)}
        last = pieces[2]
        for name, array in added.items():
            last = last.append_column(name, array)
        index.insert(vectors, metadata=last)
        check_same(index, tmp_path, random)  # that piece is in the delta
        index.delete(random.choice(_PIECES * _EACH, _EACH, replace=False))
        check_same(index, tmp_path, random)
        before = index.rows().sort_by("id")
        index.optimize()
        assert [segment["dead"] for segment in index.info()["live"]["parts"]] == [0]
        after = index.rows().sort_by("id")
        assert after.schema.names == before.schema.names
        for name in after.schema.names:
            assert after[name].to_pylist() == before[name].to_pylist(), name
        assert index.verify() > 0


@pytest.mark.usefixtures("batches")
def test_columns_of_every_type(tmp_path: Path, random: np.random.Generator) -> None:
    tried = 0
    for number, (kind, array) in enumerate(kinds_and_values(random)):
        try:
            array.validate(full=True)
            index = velo.create(
                tmp_path / f"{number}", dim=DIM, metadata=pa.schema([("column", kind)]), threads=1
            )
        except (pa.ArrowInvalid, errors.InvalidArgumentError):  # Arrow itself makes some that are invalid
            continue
        with index:
            table = pa.table({"column": array})
            for rows in (table.slice(0, 4), table.slice(2)):
                index.insert(vectors_of(len(rows)), metadata=rows)
            index.delete([1])
            check_same(index, tmp_path, random)
        tried += 1
    assert tried > 50


@pytest.mark.usefixtures("batches")
def test_dictionaries_become_one(tmp_path: Path, random: np.random.Generator) -> None:
    for _ in range(30):
        drawn = [
            sorted({chr(97 + random.integers(26)) * random.integers(6) for _ in range(random.integers(40))})
            for _ in range(random.integers(1, 5))
        ]
        used = [random.random(len(one)) < random.random() for one in drawn]
        given = [pa.array(one, pa.large_string()) for one in drawn]
        codes = [np.full(len(one), -1, np.int32) for one in drawn]
        with Body(tmp_path) as body:
            merged = Spool(pa.large_string(), "c", body)
            flow.merge_dictionaries(given, used, codes, merged)
            values = merged.place()(body).to_pylist()
        wanted = {
            one for texts, some in zip(drawn, used, strict=True) for one in np.array(texts, object)[some]
        }
        assert values == sorted(wanted)
        for texts, some, of_one in zip(drawn, used, codes, strict=True):
            for text, is_used, code in zip(texts, some, of_one, strict=True):
                assert (values[code] == text) if is_used else code == -1


def test_more_than_offsets_count_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flow, "_OFFSET_MAX", 10)
    with Body(tmp_path) as body:
        narrow, wide = Spool(pa.binary(), "c", body), Spool(pa.large_binary(), "c", body)
        for _ in range(2):
            wide.append(pa.array([b"12345", b"6"], pa.large_binary()))
        narrow.append(pa.array([b"12345", b"6"]))
        with pytest.raises(errors.InvalidArgumentError, match="'c'"):
            narrow.append(pa.array([b"12345"]))


_WRITES = """
import sys
import numpy as np, pyarrow as pa, velo

random = np.random.default_rng(0)
schema = pa.schema(
    [("text", pa.string()), ("tags", pa.list_(pa.string())), ("floats", pa.list_(pa.float32())),
     ("bytes", pa.binary()), ("number", pa.int64())]
)
with velo.create(sys.argv[1], dim=8, metadata=schema, threads=1, durability="process") as index:
    for _ in range(6):
        texts = [random.bytes(8_000).hex() for _ in range(300)]
        columns = {
            "text": texts,
            "tags": [[one[:5_000], one[5_000:]] for one in texts],
            "floats": pa.array([[0.5] * 2_000] * len(texts), pa.list_(pa.float32())),
            "bytes": [one.encode() for one in texts],
            "number": range(len(texts)),
        }
        vectors = random.normal(size=(len(texts), 8)).astype(np.float32)
        index.insert(vectors, metadata=pa.table(columns, schema=schema))
        index.flush()
"""

_MERGES = """
import sys, threading, time
import velo

def own():
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith("RssAnon"))

def look():
    global peak
    while not ended:
        peak = max(peak, own())
        time.sleep(0.001)

with velo.open(sys.argv[1], writable=True, memory="16MiB", merge_memory="16MiB", threads=1) as index:
    index.delete([1_799])
    index.flush()  # loads the code of compaction and the types of the library
    before = peak = own()
    ended = False
    looks = threading.Thread(target=look)
    looks.start()
    index.delete(range(0, 1_800, 5))
    index.optimize()
    ended = True
    looks.join()
    assert [segment["dead"] for segment in index.info()["live"]["parts"]] == [0]
print(peak - before, *[name for name in ("pandas",) if name in sys.modules])
"""


def test_a_merge_holds_a_part_of_its_columns_in_memory(run_python: Any, tmp_path: Path) -> None:
    """Pages of files are left out: the system takes them back."""
    done = run_python(_WRITES, tmp_path / "i")
    assert done.returncode == 0, done.stderr
    columns = sum(file.stat().st_size for file in (tmp_path / "i").rglob("columns.arrow"))
    # The graph of 1,440 rows takes a MiB, Arrow's pool a few.
    bound = 40 << 20
    assert columns > 2 * bound
    done = run_python(_MERGES, tmp_path / "i")
    assert done.returncode == 0, done.stderr
    taken, *imported = done.stdout.split()
    assert int(taken) < bound
    assert imported == []
