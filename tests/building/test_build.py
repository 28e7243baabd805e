"""Building: every kind of input gives the same index, and bad input leaves none."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import velo
from tests.long import count
from velo import errors
from velo.building.build import build_shard
from velo.formats import write_vectors
from velo.formats.files import as_source
from velo.options import BuildOptions
from velo.testing import brute_force, recall_at_k, synthetic_metadata, synthetic_vectors
from velo.types import MetricName

QUICK: dict[str, Any] = {"degree": 16, "links_kept": 16, "build_list_size": 40, "threads": 1}


def rows_of(n: int = 900, dim: int = 24, seed: int = 5) -> np.ndarray:
    return synthetic_vectors(n, dim, seed=seed)


def contents(path: Path) -> dict[str, bytes]:
    """What an index is made of, but for the manifest, which holds its uuid, and pages, salted with it."""
    return {name: (path / name).read_bytes() for name in ("codes.bin", "links.bin", "ids.arrow")}


def assert_no_index(path: Path) -> None:
    """Nothing opens there, and nothing was left."""
    with pytest.raises(errors.NotAnIndexError):
        velo.open(path)
    assert not path.exists()


# ---- input


def test_every_kind_of_input_gives_the_same_index(tmp_path: Path) -> None:
    rows = rows_of()
    write_vectors(tmp_path / "v.fbin", rows)
    write_vectors(tmp_path / "v.fvecs", rows)
    write_vectors(tmp_path / "v.npy", rows)
    write_vectors(tmp_path / "v.parquet", rows)
    write_vectors(tmp_path / "v.arrow", rows)
    write_vectors(tmp_path / "v.hdf5", rows)
    read_only = rows.copy()
    read_only.flags.writeable = False
    wide = np.zeros((len(rows), 60), np.float32)
    wide[:, 10:34] = rows
    apart = np.zeros((len(rows), 48), np.float32)
    apart[:, ::2] = rows
    backwards = rows[::-1].copy()[::-1]
    inputs: dict[str, Any] = {
        "float64": rows.astype(np.float64),
        "read-only": read_only,
        "columns of a wider array": wide[:, 10:34],
        "every second column": apart[:, ::2],
        "Fortran order": np.asfortranarray(rows),
        "backwards": backwards,
        "big-endian": rows.astype(">f4"),
        "memmap": np.load(tmp_path / "v.npy", mmap_mode="r"),
        "nested lists": rows.tolist(),
        "Arrow": pa.FixedSizeListArray.from_arrays(pa.array(rows.reshape(-1)), rows.shape[1]),
        **{f"path {name}": str(tmp_path / name) for name in ("v.fbin", "v.fvecs", "v.npy", "v.parquet")},
        **{f"path {name}": tmp_path / name for name in ("v.arrow", "v.hdf5")},
    }
    velo.build(tmp_path / "first", rows, **QUICK).close()
    expected = contents(tmp_path / "first")
    for number, (name, given) in enumerate(inputs.items()):
        path = tmp_path / f"index-{number}"
        velo.build(path, given, **QUICK).close()
        assert contents(path) == expected, name


@pytest.mark.parametrize("dtype", ["float32", "float16", "uint8", "int8"])
@pytest.mark.parametrize("metric", ["l2", "ip", "cosine"])
def test_every_type_and_metric_finds_its_neighbors(dtype: str, metric: Any, tmp_path: Path) -> None:
    made = synthetic_vectors(1300, 40, seed=9)
    if dtype == "uint8":
        made = np.clip(made * 20 + 100, 0, 255)
    elif dtype == "int8":
        made = np.clip(made * 20, -128, 127)
    rows, queries = made[:1200].astype(dtype), made[1200:].astype(dtype)
    truth = brute_force(rows, queries, 10, metric=metric)
    how: dict[str, Any] = {"metric": metric, "store_vectors": True, "calibrate": False, "threads": 1}
    with velo.build(tmp_path / "i", rows, **how) as index:
        assert (index.n, index.dim, index.metric) == (1200, 40, metric)
        assert index.info()["dtype"] == dtype
        result = index.search(queries, 10, list_size=150)
        assert recall_at_k(result.ids, truth.ids) >= 0.95
        # Distances are estimates from codes, in the metric's own unit.
        same = result.ids == truth.ids
        assert np.allclose(
            result.distances[same], truth.distances[same], rtol=0.1, atol=0.02 * np.ptp(truth.distances)
        )
        assert np.array_equal(index.get_vectors(np.arange(1200)), rows.astype(np.float32))


def test_one_thread_and_one_seed_give_one_index(tmp_path: Path) -> None:
    rows = rows_of()
    for name, seed in (("a", 3), ("b", 3), ("c", 4)):
        velo.build(tmp_path / name, rows, seed=seed, **QUICK).close()
    assert contents(tmp_path / "a") == contents(tmp_path / "b")
    assert contents(tmp_path / "a") != contents(tmp_path / "c")


def test_one_vector(tmp_path: Path) -> None:
    with velo.build(tmp_path / "one", np.ones((1, 8), np.float32)) as index:
        result = index.search(np.zeros((2, 8), np.float32), k=3)
        assert result.ids.tolist() == [[0, -1, -1]] * 2
        assert result.counts.tolist() == [1, 1]
        assert np.isinf(result.distances[:, 1:]).all()
        assert index.verify() == 1


@pytest.mark.parametrize("n", [2, 3, 5, 17])
def test_a_few_vectors_are_all_found(n: int, tmp_path: Path) -> None:
    rows = rows_of(n, 9)
    with velo.build(tmp_path / "few", rows) as index:
        result = index.search(rows, k=n + 5)
        assert (result.counts == n).all()
        assert (np.sort(result.ids[:, :n], axis=1) == np.arange(n)).all()
        assert (result.ids[:, n:] == -1).all()
        assert result.ids[:, 0].tolist() == list(range(n))


def test_thousands_of_equal_vectors(tmp_path: Path) -> None:
    rows = np.full((count(5_000, 100_000), 16), 7, np.uint8)
    rows[3_777] = 200
    with velo.build(tmp_path / "equal", rows) as index:
        result = index.search(np.full(16, 7, np.uint8), k=10)
        assert result.counts.tolist() == [10]
        assert len(set(result.ids.tolist())) == 10
        assert 3_777 not in result.ids
        other = index.search(np.full(16, 200, np.uint8), k=1, list_size=200)
        assert other.counts.tolist() == [1]
        index.verify()


# ---- ids and metadata


def test_ids_of_every_kind(tmp_path: Path) -> None:
    rows = rows_of(300)
    numbers = np.arange(300) * -7 + 3
    names = [f"picture {number} ü" for number in range(300)]
    for place, ids in enumerate((numbers, names, pa.array(names), numbers.astype(np.int32))):
        with velo.build(tmp_path / str(place), rows, ids=ids, **QUICK) as index:
            result = index.search(rows[:20], k=3)
            assert result.ids[:, 0].tolist() == [ids[row] if place != 2 else names[row] for row in range(20)]
            found = index.search(rows[0], k=400)
            assert int(found.counts[0]) == 300
            assert found.ids[300] == (None if place in (1, 2) else -1)


def test_duplicate_ids_are_refused(tmp_path: Path) -> None:
    ids = np.arange(300)
    ids[250] = 17
    with pytest.raises(errors.DuplicateIdError, match="17 of row 250 was given to row 17 already") as caught:
        velo.build(tmp_path / "i", rows_of(300), ids=ids)
    assert caught.value.row == 250
    assert_no_index(tmp_path / "i")


@pytest.mark.parametrize("ids", [list(range(299)), ["a"] * 299 + [None], [1.5] * 300])
def test_wrong_ids_are_refused(ids: list[Any], tmp_path: Path) -> None:
    with pytest.raises(errors.InvalidArgumentError) as caught:
        velo.build(tmp_path / "i", rows_of(300), ids=ids)
    assert caught.value.argument == "ids"
    assert_no_index(tmp_path / "i")


def test_metadata_comes_back_with_the_hits(tmp_path: Path) -> None:
    rows, table = rows_of(400), synthetic_metadata(400, seed=2)
    pq.write_table(table, tmp_path / "m.parquet")
    for number, given in enumerate(
        (table, table.to_pydict(), tmp_path / "m.parquet", str(tmp_path / "m.parquet"))
    ):
        with velo.build(tmp_path / str(number), rows, metadata=given, **QUICK) as index:
            result = index.search(rows[:5], k=4, return_metadata=["tags", "label"])
            for query in range(5):
                expected = table.select(["tags", "label"]).take(result.ids[query])
                assert result.metadata[query].to_pydict() == expected.to_pydict()
            assert index.info()["columns"] == table.column_names


def test_metadata_of_another_length_is_refused(tmp_path: Path) -> None:
    with pytest.raises(errors.InvalidArgumentError) as caught:
        velo.build(tmp_path / "i", rows_of(300), metadata=synthetic_metadata(299))
    assert caught.value.argument == "metadata"
    assert_no_index(tmp_path / "i")


# ---- bad vectors


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.float64])
def test_a_value_that_is_not_finite_is_named_by_its_row(value: float, dtype: Any, tmp_path: Path) -> None:
    rows = rows_of(300).astype(dtype)
    rows[123, 4] = value
    with pytest.raises(errors.NotFiniteError) as caught:
        velo.build(tmp_path / "i", rows)
    assert caught.value.row == 123
    assert caught.value.argument == "vectors"
    assert_no_index(tmp_path / "i")


def test_a_row_in_a_later_chunk_is_named_by_its_own_number(tmp_path: Path) -> None:
    rows = np.ones((200_000, 24), np.float32)  # 19 MB: three chunks
    rows[180_000, 0] = np.nan
    with pytest.raises(errors.NotFiniteError) as caught:
        velo.build(tmp_path / "i", rows)
    assert caught.value.row == 180_000


def test_a_float64_beyond_float32_is_refused(tmp_path: Path) -> None:
    rows = rows_of(50).astype(np.float64)
    rows[7, 0] = 1e300
    with pytest.raises(errors.NotFiniteError) as caught:
        velo.build(tmp_path / "i", rows)
    assert caught.value.row == 7


@pytest.mark.parametrize(
    ("vectors", "kind"),
    [
        (np.zeros((0, 8), np.float32), errors.EmptyError),
        ([], errors.VeloError),
        (np.zeros((5, 0), np.float32), errors.DimensionMismatchError),
        (np.zeros(8, np.float32), errors.DimensionMismatchError),
        (np.zeros((2, 3, 4), np.float32), errors.DimensionMismatchError),
        ([[1.0, 2.0], [3.0]], errors.DimensionMismatchError),
        (np.zeros((5, 8), np.int64), errors.DtypeError),
        (np.zeros((5, 8), np.complex64), errors.DtypeError),
        (np.zeros((5, 8), bool), errors.DtypeError),
        (np.array([["a", "b"]]), errors.DtypeError),
        (pa.array(["a", "b"]), errors.DtypeError),
    ],
)
def test_values_that_are_no_vectors_are_refused(
    vectors: Any, kind: type[errors.VeloError], tmp_path: Path
) -> None:
    with pytest.raises(kind) as caught:
        velo.build(tmp_path / "i", vectors)
    assert caught.value.argument == "vectors"
    assert_no_index(tmp_path / "i")


def test_too_many_dimensions_are_refused(tmp_path: Path) -> None:
    with pytest.raises(errors.InvalidArgumentError) as caught:
        velo.build(tmp_path / "i", np.zeros((2, 20_000), np.uint8))
    assert caught.value.argument == "dim"
    assert_no_index(tmp_path / "i")


def test_a_truncated_file_of_vectors(tmp_path: Path) -> None:
    write_vectors(tmp_path / "v.fbin", rows_of(300))
    whole = (tmp_path / "v.fbin").read_bytes()
    (tmp_path / "v.fbin").write_bytes(whole[:-100])
    with pytest.raises(errors.FormatError) as caught:
        velo.build(tmp_path / "i", tmp_path / "v.fbin")
    assert caught.value.file == str(tmp_path / "v.fbin")
    assert caught.value.position == len(whole) - 100
    assert_no_index(tmp_path / "i")


def test_a_source_that_changes_between_the_passes(tmp_path: Path) -> None:
    class Fickle:
        shape = (300, 24)
        dtype = np.dtype(np.float32)
        passes = 0

        def chunks(self, rows: int) -> Any:
            Fickle.passes += 1
            yield rows_of(300 if Fickle.passes == 1 else 250)

    with pytest.raises(errors.DimensionMismatchError, match="ended after 250"):
        velo.build(tmp_path / "i", Fickle())
    assert_no_index(tmp_path / "i")


# ---- folders


def test_an_existing_folder_is_overwritten_only_on_request(tmp_path: Path) -> None:
    velo.build(tmp_path / "i", rows_of(200), **QUICK).close()
    before = (tmp_path / "i" / "manifest.json").read_bytes()
    with pytest.raises(errors.IndexExistsError):
        velo.build(tmp_path / "i", rows_of(300), **QUICK)
    assert (tmp_path / "i" / "manifest.json").read_bytes() == before
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "letter.txt").write_text("dear")
    for overwrite in (False, True):
        with pytest.raises(errors.IndexExistsError):
            velo.build(tmp_path / "other", rows_of(300), overwrite=overwrite, **QUICK)
    assert os.listdir(tmp_path / "other") == ["letter.txt"]
    (tmp_path / "file").write_text("")
    with pytest.raises(errors.VeloError):
        velo.build(tmp_path / "file", rows_of(300), **QUICK)
    with pytest.raises(errors.InvalidArgumentError) as caught:
        velo.build(tmp_path / "no" / "parent", rows_of(300), **QUICK)
    assert caught.value.argument == "path"
    (tmp_path / "empty").mkdir()
    velo.build(tmp_path / "empty", rows_of(300), **QUICK).close()


def test_overwriting_keeps_the_old_index_until_the_new_one_is_complete(tmp_path: Path) -> None:
    rows = rows_of(300)
    velo.build(tmp_path / "i", rows[:200], **QUICK).close()
    with velo.open(tmp_path / "i") as old:
        bad = rows.copy()
        bad[299] = np.nan
        with pytest.raises(errors.NotFiniteError):
            velo.build(tmp_path / "i", bad, overwrite=True, **QUICK)
        with velo.open(tmp_path / "i") as again:
            assert len(again) == 200
        with velo.build(tmp_path / "i", rows, overwrite=True, **QUICK) as new:
            assert len(new) == 300
            assert len(old) == 200
            assert old.search(rows[5], k=1).ids.tolist() == [5], "an open index keeps its files"
    assert os.listdir(tmp_path) == ["i"]


def test_a_read_only_folder(tmp_path: Path, run_python: Any) -> None:
    """In a child that is not root, whom permission bits do not bind."""
    program = """
        import os, sys
        import numpy as np
        import velo
        from velo import _native, errors
        _native.native()  # that user may not be allowed to read what it imports
        if os.getuid() == 0:
            os.setgid(65534)
            os.setuid(65534)
        try:
            velo.build(sys.argv[1], np.ones((100, 8), np.float32))
        except errors.PermissionDeniedError as error:
            assert isinstance(error, PermissionError)
            print("refused:", error)
        """
    folder = tmp_path / "locked"
    folder.mkdir()
    folder.chmod(0o555)
    for parent in (tmp_path, *tmp_path.parents):
        if parent == Path(parent.anchor) or not parent.is_relative_to("/tmp"):
            break
        if parent != Path("/tmp"):
            parent.chmod(parent.stat().st_mode | 0o055)
    done = run_python(program, folder / "i")
    assert done.stdout.startswith("refused:"), done.stderr
    assert os.listdir(folder) == []


# ---- no space, no memory


@pytest.mark.parametrize("limit", [4096, 100_000])
def test_no_space_left(limit: int, tmp_path: Path, run_python: Any) -> None:
    """A limit of file sizes fails writes wherever they are, as a full disk does."""
    program = """
        import resource, signal, sys
        import numpy as np
        import velo
        from velo import errors
        from velo.testing import synthetic_vectors, synthetic_metadata
        rows = synthetic_vectors(3_000, 64)
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), int(sys.argv[2])))
        try:
            velo.build(sys.argv[1], rows, metadata=synthetic_metadata(3_000), degree=16, links_kept=8)
        except errors.NoSpaceError as error:
            assert isinstance(error, OSError)
            print("refused:", error)
        """
    done = run_python(program, tmp_path / "i", limit)
    assert done.stdout.startswith("refused:"), done.stderr
    assert_no_index(tmp_path / "i")


@pytest.mark.skipif(os.getuid() != 0, reason="mounting a small tmpfs takes root")
@pytest.mark.parametrize("size", ["100k", "1m", "1600k"])
def test_a_full_file_system(size: str, tmp_path: Path) -> None:
    mounted = tmp_path / "small"
    mounted.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(mounted)],
        capture_output=True,
        check=False,
    )
    if done.returncode != 0:
        pytest.skip(
            f"LOUD: mount is refused here ({done.stderr!r}); the limit of file sizes is tested instead"
        )
    try:
        with pytest.raises(errors.NoSpaceError):
            velo.build(mounted / "i", synthetic_vectors(10_000, 64), degree=16, links_kept=8)
        assert_no_index(mounted / "i")
    finally:
        subprocess.run(["umount", str(mounted)], check=True)


def test_a_build_budget_too_small_states_the_minimum(tmp_path: Path) -> None:
    rows = rows_of(3000)
    with pytest.raises(errors.BudgetTooSmallError) as caught:
        velo.build(tmp_path / "i", rows, build_memory=10_000)
    needed = caught.value.needed_bytes
    assert needed is not None
    assert needed > 10_000
    assert str(needed) in str(caught.value)
    assert_no_index(tmp_path / "i")
    velo.build(tmp_path / "i", rows, build_memory=needed).close()


def test_a_wrong_budget_is_refused_before_anything_is_built(tmp_path: Path) -> None:
    with pytest.raises(errors.InvalidArgumentError) as caught:
        velo.build(tmp_path / "i", rows_of(3000), memory="15 percent")
    assert caught.value.argument == "memory"
    assert_no_index(tmp_path / "i")


# ---- progress, cancelling


def test_progress_rises_to_the_end(tmp_path: Path) -> None:
    told: list[tuple[int, int]] = []

    def progress(done: int, total: int) -> None:
        told.append((done, total))

    velo.build(tmp_path / "i", rows_of(3000), progress=progress).close()
    assert {total for _, total in told} == {3000}
    done = [done for done, _ in told]
    assert done == sorted(done)
    assert done[-1] == 3000
    assert all(0 <= one <= 3000 for one in done)


@pytest.mark.parametrize("after", [0, 2, 20])
def test_cancelling_leaves_nothing(after: int, tmp_path: Path) -> None:
    calls = 0

    def progress(done: int, total: int) -> bool:
        nonlocal calls
        calls += 1
        return calls <= after

    rows = synthetic_vectors(30_000, 32)
    with pytest.raises(errors.CancelledError):
        velo.build(tmp_path / "i", rows, metadata={"a": range(30_000)}, degree=64, progress=progress)
    assert_no_index(tmp_path / "i")


def test_an_error_of_the_callback_ends_the_build(tmp_path: Path) -> None:
    def progress(done: int, total: int) -> bool:
        if done > total // 10:
            raise RuntimeError("mine")
        return True

    with pytest.raises(RuntimeError, match="mine"):
        velo.build(tmp_path / "i", synthetic_vectors(30_000, 32), progress=progress)
    assert_no_index(tmp_path / "i")


def test_a_file_is_streamed_and_not_held(tmp_path: Path, run_python: Any) -> None:
    """The peak of a build grows by what its graph and codes take, not by the vectors."""
    rows, dim = count(2_000, 8_000), 4_096  # 33 or 131 MB as float32
    with open(tmp_path / "v.fbin", "wb") as file:
        file.write(np.array([rows, dim], "<u4").tobytes())
        for block in range(8):
            file.write(np.random.default_rng(block).normal(size=(rows // 8, dim)).astype("<f4").tobytes())
    program = """
        import resource, sys
        import velo
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        budget = int(sys.argv[3]) * (4_096 + 400)
        quick = {"degree": 16, "links_kept": 8, "build_list_size": 20, "calibrate": False}
        velo.build(sys.argv[1], sys.argv[2], build_memory=budget, **quick).close()
        grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
        print(grown - budget)
        """
    done = run_python(program, tmp_path / "i", tmp_path / "v.fbin", rows)
    assert done.returncode == 0, done.stderr
    print(done.stdout)
    assert int(done.stdout) < count(16, 64) << 20


@pytest.mark.parametrize(
    ("build_memory", "metric"),
    [
        (None, "l2"),
        (1_300_000, "ip"),
        (400_000, "l2"),
        *(
            pytest.param(
                memory,
                metric,
                marks=pytest.mark.long(
                    guarded_by="tests/building/test_build.py::test_a_build_without_checkpoints_writes_the_same_index"
                ),
            )
            for memory, metric in ((None, "ip"), (1_300_000, "l2"), (400_000, "ip"))
        ),
    ],
)
def test_a_build_without_checkpoints_writes_the_same_index(
    tmp_path: Path, build_memory: int | None, metric: MetricName
) -> None:
    """In memory, in files, and in partitions."""
    vectors = synthetic_vectors(2_000, 32, seed=5)
    options = BuildOptions(metric=metric, threads=1, seed=3, store_vectors=True, calibrate=False)
    written = {}
    for name, transient in (("kept", False), ("transient", True)):
        seen: set[str] = set()

        def watch(*_: object, name: str = name, seen: set[str] = seen) -> bool:
            seen.update(entry.name for entry in (tmp_path / name).glob("*.work"))
            return True

        build_shard(
            tmp_path / name,
            as_source(vectors),
            options,
            build_memory=build_memory,
            watch=watch,
            transient=transient,
        )
        written[name] = {one.name: one.read_bytes() for one in (tmp_path / name).iterdir()}
        if transient and build_memory is None:
            assert not seen
        assert ("encode.work" in seen) == (not transient)
        assert ("partitions.work" in seen) == (build_memory == 400_000 and not transient), seen
    assert written["kept"] == written["transient"]
