"""Words and vectors in one call, against definitions in numpy, whatever the index is made of."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import velo
from tests.cli.test_cli import document, run
from velo.fulltext import file as words_file
from velo.fulltext.tokens import words_in
from velo.options import Fusion

DIM = 8
VOCABULARY = [
    "red",
    "green",
    "blue",
    "car",
    "house",
    "tree",
    "boat",
    "sea",
    "sun",
    "moon",
    "Café",
    "x86",
    "éclair",
    "naïve",
    "2024",
]


def texts_of(count: int, seed: int = 1) -> list[str | None]:
    """Texts of different lengths, so that no two score alike; some are missing, some empty."""
    random = np.random.default_rng(seed)
    weights = 1 / np.arange(1, len(VOCABULARY) + 1)
    texts: list[str | None] = []
    for row in range(count):
        words = random.choice(VOCABULARY, int(random.integers(0, 9)), p=weights / weights.sum())
        filler = ["filler"] * row
        texts.append(None if row % 11 == 3 else "" if row % 50 == 7 else ", ".join([*words, *filler]))
    return texts


def vectors_of(count: int, seed: int = 2) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(count, DIM)).astype(np.float32)


def plain(text: str | None) -> list[str]:
    """The words of a text whose only accents are those above."""
    accents = str.maketrans("éï", "ei")
    return re.findall(r"[a-z0-9]+", (text or "").lower().translate(accents))


def bm25(texts: list[str | None], query: str) -> np.ndarray:
    """What each text scores: the definition, in which dead rows count as those that live."""
    rows = [plain(text) for text in texts]
    lengths = np.array([len(row) for row in rows], float)
    there = lengths > 0
    usual, total = lengths.sum() / there.sum(), there.sum()
    scores = np.zeros(len(rows))
    for word in sorted(set(plain(query))):
        times = np.array([row.count(word) for row in rows], float)
        having = (times > 0).sum()
        weight = np.log(1 + (total - having + 0.5) / (having + 0.5))
        scores += np.where(
            times > 0, weight * times * 2.2 / (times + 1.2 * (0.25 + 0.75 * lengths / usual)), 0
        )
    return scores


def expected(
    fusion: Fusion, scores: np.ndarray, distances: np.ndarray, passes: np.ndarray, k: int
) -> dict[int, float]:
    """Of each row that may be among the hits what it scores."""
    depth = fusion.depth_of(k)
    rows = np.flatnonzero(passes)
    nearest = rows[np.argsort(distances[rows], kind="stable")][:depth]
    having = rows[scores[rows] > 0]
    best = having[np.argsort(-scores[having], kind="stable")][:depth]
    total: dict[int, float] = {}
    for weight, found, values in ((fusion.vectors, nearest, -distances), (fusion.words, best, scores)):
        if not weight:
            continue
        for rank, row in enumerate(found):
            if isinstance(fusion, velo.RRF):
                points = 1 / (fusion.constant + rank + 1)
            else:
                worst, top = values[found[-1]], values[found[0]]
                points = 1.0 if worst == top else (values[row] - worst) / (top - worst)
            total[int(row)] = total.get(int(row), 0.0) + weight * points
    return total


FUSIONS = [
    velo.RRF(),
    velo.RRF(constant=1.0, words=3.0, depth=40),
    velo.RRF(vectors=0.0),
    velo.RRF(words=0.0),
    velo.Weighted(),
    velo.Weighted(vectors=0.2, words=0.8, depth=25),
]


def check(
    index: velo.Index,
    texts: list[str | None],
    vectors: np.ndarray,
    passes: np.ndarray,
    *,
    counted: np.ndarray | None = None,
    filter: Any = None,  # noqa: A002
    ids: np.ndarray | None = None,
) -> None:
    """Hold an index against the definition: of rows `counted` BM25 knows, those that pass may be found."""
    ids = np.arange(len(texts)) if ids is None else ids
    query, text, k = vectors[5] + np.float32(0.1), "blue CAFE moon Naïve", 10
    distances = ((vectors.astype(float) - query) ** 2).sum(axis=1)
    known = np.ones(len(texts), bool) if counted is None else counted
    scores = np.zeros(len(texts))
    scores[known] = bm25([one for one, there in zip(texts, known, strict=True) if there], text)
    for fusion in FUSIONS:
        found = index.search(query, k, text=text, fusion=fusion, filter=filter, exact=True, recall=1.0)
        wanted = expected(fusion, scores, distances, passes, k)
        best = sorted(wanted.values(), reverse=True)[:k]
        assert int(found.counts[0]) == len(best)
        assert found.scores is not None
        np.testing.assert_allclose(found.scores[: len(best)], best, rtol=1e-4, atol=1e-6)
        for one, score, distance in zip(found.ids, found.scores, found.distances, strict=True):
            if one < 0:
                continue
            row = int(np.flatnonzero(ids == one)[0])
            assert passes[row]
            assert wanted[row] == pytest.approx(score, rel=1e-4, abs=1e-6)
            assert distance == pytest.approx(distances[row], rel=1e-3)


N = 700
QUICK: dict[str, Any] = {"text": "text", "store_vectors": True, "threads": 1, "calibrate": False}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Iterator[velo.Index]:
    path = tmp_path_factory.mktemp("words") / "a.velo"
    table = pa.table({"text": pa.array(texts_of(N)), "number": range(N)})
    with velo.build(path, vectors_of(N), metadata=table, **QUICK) as index:
        yield index


def test_what_was_built_finds_as_defined(built: velo.Index) -> None:
    check(built, texts_of(N), vectors_of(N), np.ones(N, bool))


def test_filters_hold_for_both(built: velo.Index) -> None:
    passes = np.arange(N) % 3 == 1
    check(built, texts_of(N), vectors_of(N), passes, filter=passes)
    check(built, texts_of(N), vectors_of(N), np.arange(N) < 40, filter="number < 40")
    check(built, texts_of(N), vectors_of(N), np.arange(N) < 0, filter="number < 0")


def test_a_filter_and_a_text_a_query(built: velo.Index) -> None:
    queries = vectors_of(3)
    texts = ["moon", "car sea", "nothing of it"]
    filters = ["number < 100", None, "number >= 600"]
    together = built.search(queries, 5, text=texts, filter=filters, return_metadata=["number"])
    assert together.scores is not None
    assert together.metadata is not None
    for row, (query, text, condition) in enumerate(zip(queries, texts, filters, strict=True)):
        alone = built.search(query, 5, text=text, filter=condition)
        assert alone.scores is not None
        assert alone.ids.tolist() == together.ids[row].tolist()
        assert alone.scores.tolist() == together.scores[row].tolist()
        assert together.metadata[row]["number"].to_pylist() == together.ids[row].tolist()
    same = built.search(queries, 5, text="moon")
    assert same.ids[0].tolist() == built.search(queries[0], 5, text="moon").ids.tolist()
    assert same.to_arrow().column_names == ["query", "rank", "id", "distance", "score"]


def test_words_alone(built: velo.Index) -> None:
    """Without queries nothing is read, and the scores are those of the definition."""
    text = "blue CAFE moon"
    scores = bm25(texts_of(N), text)
    passes = np.arange(N) % 2 == 0
    best = np.argsort(-np.where(passes, scores, 0), kind="stable")[:8]
    found = built.search(None, 8, text=text, filter=passes, return_metadata=["number"])
    assert found.scores is not None
    assert found.metadata is not None
    assert found.ids.tolist() == best.tolist() == found.metadata["number"].to_pylist()
    np.testing.assert_allclose(found.scores, scores[best], rtol=1e-5)
    assert np.isinf(found.distances).all()
    assert found.stats["reads"].tolist() == [0]
    several = built.search(None, 3, text=[text, "nothing of it"])
    assert several.ids.shape == (2, 3)
    assert several.counts.tolist() == [3, 0]
    awaited = asyncio.run(built.search_async(None, 3, text=[text]))
    assert awaited.ids.tolist() == several.ids[:1].tolist()


def test_awaited_it_finds_the_same(built: velo.Index) -> None:
    query = vectors_of(1)[0]

    async def search() -> velo.SearchResult:
        return await built.search_async(query, 7, text="red moon", fusion="weighted", filter="number < 300")

    awaited = asyncio.run(search())
    blocking = built.search(query, 7, text="red moon", fusion="weighted", filter="number < 300")
    assert awaited.ids.tolist() == blocking.ids.tolist()


def test_rows_that_come_and_go(tmp_path: Path) -> None:
    """Each call is seen when it returns, in the delta, in segments, and in what these become."""
    schema = pa.schema([("text", pa.string()), ("number", pa.int64())])
    texts, vectors = texts_of(N), vectors_of(N)
    alive = np.zeros(N, bool)
    with velo.create(tmp_path / "a.velo", dim=DIM, metadata=schema, text="text", threads=1) as index:

        def insert(rows: np.ndarray) -> None:
            table = {"text": pa.array([texts[row] for row in rows], pa.string()), "number": rows}
            index.upsert(vectors[rows], rows, table)
            alive[rows] = True

        insert(np.arange(300))
        check(index, texts, vectors, alive, counted=np.arange(N) < 300)
        index.flush()
        for row in range(300, 320):
            insert(np.array([row]))
        insert(np.arange(320, 500))
        check(index, texts, vectors, alive, counted=np.arange(N) < 500)
        index.flush()
        insert(np.arange(500, N))
        check(index, texts, vectors, alive)
        check(index, texts, vectors, alive & (np.arange(N) % 2 == 0), filter=list(range(0, N, 2)))
        index.delete(list(range(100)))
        alive[:100] = False
        check(index, texts, vectors, alive)
        index.optimize()
        check(index, texts, vectors, alive, counted=alive)
        # An update is seen when it returns, and what it took away is not found any more.
        index.update([200], {"text": "unheard"})
        texts[200] = "unheard"
        found = index.search(vectors[5], 1, text="unheard", fusion=velo.RRF(vectors=0.0))
        assert found.ids.tolist() == [200]
        index.update([200], {"text": None})
        assert index.search(vectors[5], 1, text="unheard", fusion=velo.RRF(vectors=0.0)).counts[0] == 0
        texts[200] = None
        index.optimize()
        check(index, texts, vectors, alive, counted=alive)
    with velo.open(tmp_path / "a.velo") as index:
        check(index, texts, vectors, alive, counted=alive)


def test_a_built_index_that_is_written_to(tmp_path: Path) -> None:
    """Its words go with it into the segment that it becomes."""
    path, texts, vectors = tmp_path / "a.velo", texts_of(N), vectors_of(N)
    table = {"text": pa.array(texts[:400], pa.string())}
    velo.build(path, vectors[:400], metadata=table, **QUICK).close()
    made = (path / "columns.words").stat().st_ino
    alive = np.ones(N, bool)
    with velo.open(path, writable=True, threads=1) as index:
        index.insert(vectors[400:], metadata={"text": pa.array(texts[400:], pa.string())})
        check(index, texts, vectors, alive)
    with velo.open(path, writable=True, threads=1) as index:
        check(index, texts, vectors, alive)
        words = list(path.rglob("*.words"))
        assert [one.stat().st_ino for one in words] == [made]
        assert words[0].parent != path
        index.optimize()
        check(index, texts, vectors, alive)
        index.snapshot(tmp_path / "b.velo")
    with velo.open(tmp_path / "b.velo") as copy:
        assert len(list((tmp_path / "b.velo").rglob("*.words"))) == 1
        check(copy, texts, vectors, alive)


def test_shards_find_as_one_index(tmp_path: Path) -> None:
    texts, vectors = texts_of(N), vectors_of(N)
    table = {"text": pa.array(texts, pa.string()), "number": np.arange(N)}
    velo.build_collection(
        tmp_path / "a.velo",
        vectors,
        shards=3,
        metadata=table,
        **QUICK,
    )
    with velo.open(tmp_path / "a.velo", writable=True) as index:
        check(index, texts, vectors, np.ones(N, bool))
        check(index, texts, vectors, np.arange(N) > 350, filter="number > 350")
        index.delete([1, 5, 600])
        check(index, texts, vectors, ~np.isin(np.arange(N), [1, 5, 600]))


def test_blocks_of_rows_are_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(words_file, "_BLOCK", 64)
    monkeypatch.setattr(words_file, "_AT_ONCE", 10)
    texts, vectors = texts_of(N), vectors_of(N)
    table = {"text": pa.array(texts, pa.string())}
    with velo.build(tmp_path / "a.velo", vectors, metadata=table, **QUICK) as index:
        check(index, texts, vectors, np.ones(N, bool))


@pytest.mark.parametrize("kind", [pa.large_string(), pa.dictionary(pa.int32(), pa.string())])
def test_other_types_of_text(tmp_path: Path, kind: Any) -> None:
    texts, vectors = texts_of(200), vectors_of(200)
    table = pa.table({"text": pa.array(texts, pa.string()).cast(kind)})
    with velo.build(tmp_path / "a.velo", vectors, metadata=table, **QUICK) as index:
        check(index, texts, vectors, np.ones(200, bool))


def test_words_of_many_languages() -> None:
    assert sorted(words_in("ÉCLAIR naïve Straße ΑΘΗΝΑ Москва")) == [
        "eclair",
        "naive",
        "straße",
        "αθηνα",
        "москва",
    ]
    assert words_in("日本語 テキスト") == ["テキスト", "日本語"]
    assert sorted(words_in('x86-64 "OR" a* NEAR(b) -c')) == ["64", "a", "b", "c", "near", "or", "x86"]
    assert words_in("") == words_in(" ,;\0") == []


# ---- what is refused


def test_bad_arguments(built: velo.Index, tmp_path: Path) -> None:
    query = vectors_of(1)[0]

    def refused(
        argument: str | None, error: type[velo.VeloError] = velo.errors.InvalidArgumentError, **how: Any
    ) -> None:
        with pytest.raises(error) as raised:
            built.search(query, **how)
        assert raised.value.argument == argument, how

    refused("text", text=5)
    refused("text", text=["a", "b"])
    refused("text", text=[b"a"])
    refused("text", text="x" * 70_000)
    refused("text", text="\ud800")
    refused("fusion", text="a", fusion="best")
    refused("fusion", fusion="rrf")
    for how in ({"text": "a", "fusion": "rrf"}, {"text": 7}):
        with pytest.raises(velo.errors.InvalidArgumentError):
            built.search(None, **how)
    refused("text", text="a", candidates=[1])
    refused("group_by", text="a", group_by="number")
    refused("group_by", text="a", group_size=2)
    refused("unknown", unknown="skip")
    refused("unknown", candidates=[1], unknown="maybe")
    refused("k", text="a", k=5000)
    refused("depth", text="a", k=20, fusion=velo.RRF(depth=10))
    refused("candidates", candidates=[[1], [2]])
    refused("candidates", candidates=["a"])
    refused("ids", velo.errors.UnknownIdError, candidates=[10_000])
    with pytest.raises(velo.errors.DimensionMismatchError):
        built.search(query[:3], text="a")
    for bad in ({"constant": -1}, {"words": float("nan")}, {"vectors": 0, "words": 0}, {"depth": 0}):
        with pytest.raises(velo.errors.InvalidArgumentError):
            velo.RRF(**bad)
    table = {"text": ["a"] * 50, "number": list(range(50))}
    vectors = vectors_of(50)
    for column, error in (
        ("number", velo.errors.InvalidArgumentError),
        ("no", velo.errors.UnknownColumnError),
        (7, velo.errors.InvalidArgumentError),
    ):
        with pytest.raises(error) as raised:
            velo.build(tmp_path / "b.velo", vectors, metadata=table, text=column)  # type: ignore[arg-type]
        assert raised.value.argument == "text"
        with pytest.raises(error) as raised:
            velo.create(
                tmp_path / "b.velo",
                dim=3,
                metadata=pa.schema([("text", pa.string()), ("number", pa.int64())]),
                text=column,  # type: ignore[arg-type]
            )
        assert raised.value.argument == "text"
    with pytest.raises(velo.errors.InvalidArgumentError):
        velo.build(tmp_path / "b.velo", vectors, text="text")
    with pytest.raises(velo.errors.UnknownColumnError):
        velo.create(tmp_path / "b.velo", dim=3, text="text")
    assert not (tmp_path / "b.velo").exists()
    with (
        velo.build(tmp_path / "b.velo", vectors, metadata=table, threads=1) as index,
        pytest.raises(velo.errors.UnsupportedError),
    ):
        index.search(query, text="a")


# ---- metadata that is exchanged


def test_other_metadata_has_other_words(tmp_path: Path) -> None:
    texts, vectors = texts_of(200), vectors_of(200)
    with velo.build(
        tmp_path / "a.velo",
        vectors,
        metadata={"text": ["before"] * 200},
        **QUICK,
    ) as index:
        assert index.search(vectors[0], 5, text="before", fusion=velo.RRF(vectors=0)).counts[0] == 5
        index.set_metadata({"number": range(200), "text": pa.array(texts, pa.string())})
        assert index.search(vectors[0], 5, text="before", fusion=velo.RRF(vectors=0)).counts[0] == 0
        check(index, texts, vectors, np.ones(200, bool))
        assert [one.name for one in (tmp_path / "a.velo").glob("*.words")] == ["columns.2.words"]
        with pytest.raises(velo.errors.UnknownColumnError):
            index.set_metadata({"number": range(200)})
        with pytest.raises(velo.errors.InvalidArgumentError):
            index.set_metadata({"text": range(200)})
        index.add_columns({"other": 7})
        check(index, texts, vectors, np.ones(200, bool))


def test_the_command_builds_words(tmp_path: Path) -> None:
    table = pa.table({"vec": list(vectors_of(100)), "text": [f"row n{row}" for row in range(100)]})
    pq.write_table(table, tmp_path / "a.parquet")
    command = [sys.executable, "-m", "velo", "build", str(tmp_path / "a.parquet"), str(tmp_path / "a.velo")]
    subprocess.run([*command, "--keep-columns", "--text", "text"], check=True, capture_output=True)
    with velo.open(tmp_path / "a.velo") as index:
        assert index.search(None, 1, text="n42").ids.tolist() == [42]


def test_the_commands_make_fill_and_search(tmp_path: Path) -> None:
    vectors, texts = vectors_of(40), [f"row n{row} {'moon' if row % 4 == 0 else 'sun'}" for row in range(40)]
    pq.write_table(pa.table({"vec": list(vectors), "text": texts}), tmp_path / "rows.parquet")
    np.save(tmp_path / "queries.npy", vectors[3:5])
    path = tmp_path / "a.velo"
    for wrong in (("--text", "other"), ("--text", "text", "--column", "text:int32")):
        assert run("create", path, "--dim", DIM, "--column", "text:string", *wrong).returncode == 1
        assert not path.exists()
    document("create", path, "--dim", DIM, "--column", "text:string", "--text", "text")
    document("insert", path, tmp_path / "rows.parquet", "--keep-columns")
    with velo.open(path) as index:
        wanted = index.search(vectors[3:5], 6, text="moon n9", fusion="weighted")
        words = index.search(None, 6, text="moon n9")
    assert wanted.scores is not None
    assert words.scores is not None
    both = ("--text", "moon n9", "--fusion", "weighted", "-k", 6)
    found = document("search", path, tmp_path / "queries.npy", *both)
    assert found["ids"] == wanted.ids.tolist()
    np.testing.assert_allclose(found["scores"], wanted.scores)
    np.testing.assert_allclose(found["distances"], wanted.distances)
    alone = document("search", path, "--text", "moon n9", "-k", 6, "--filter", "text != 'row n0 moon'")
    assert alone["queries"] == 1
    assert alone["ids"][0][0] == 9
    assert 0 not in alone["ids"][0]
    assert alone["distances"] == [[None] * 6]
    shown = run("search", path, "--text", "moon n9", "-k", 6).stdout.splitlines()
    assert shown[0].split() == ["query", "id", "distance", "score"]
    assert shown[1].split() == ["0", "9", f"{words.scores[0]:.4g}"]
    for name in ("out.npz", "out.parquet"):
        document("search", path, tmp_path / "queries.npy", *both, "--output", tmp_path / name)
    with np.load(tmp_path / "out.npz") as arrays:
        np.testing.assert_array_equal(arrays["scores"], wanted.scores)
    kept = pq.read_table(tmp_path / "out.parquet")
    np.testing.assert_array_equal(kept["score"], wanted.scores.ravel())
    for words_of_command, said in (
        (("--text", "a", "--fusion", "rrf"), "fusion goes with queries"),
        ((tmp_path / "queries.npy", "--fusion", "rrf"), "fusion goes with text"),
        ((tmp_path / "queries.npy", "--text", "a", "--fusion", "best"), "'rrf', 'weighted'"),
        ((tmp_path / "queries.npy", "--text", "a", "--group-by", "text"), "without text"),
        ((tmp_path / "queries.npy", "--text", "a", "--radius", 1), "do not go together"),
        (("--text", "a", "--explain"), "plain searches"),
    ):
        done = run("search", path, *words_of_command)
        assert done.returncode == 1, words_of_command
        assert said in done.stderr
        assert done.stderr.count("\n") == 1
    assert "give a file of queries, --text, or both" in run("search", path).stderr


def test_an_index_without_rows_and_columns_that_come(tmp_path: Path) -> None:
    query = np.zeros(DIM, np.float32)
    schema = pa.schema([("text", pa.string())])
    with velo.create(tmp_path / "a.velo", dim=DIM, metadata=schema, text="text", threads=1) as index:
        assert index.search(query, 3, text="moon").counts.tolist() == [0]
        assert index.search(None, 3, text="moon").counts.tolist() == [0]
        index.insert(vectors_of(3), metadata={"text": ["moon", "sun", None]})
        index.flush()
        index.add_columns({"stock": 5})
        index.insert(vectors_of(1), metadata={"text": ["the moon"], "stock": [6]})
        found = index.search(None, 3, text="moon", return_metadata=["stock"])
        assert found.metadata is not None
        assert dict(zip(found.ids.tolist(), found.metadata["stock"].to_pylist(), strict=False)) == {
            0: 5,
            3: 6,
        }
        index.optimize()
        assert index.search(query, 3, text="moon", filter="stock = 6", fusion=velo.RRF(vectors=0)).ids[0] == 3
    with velo.open(tmp_path / "a.velo", writable=True, threads=1) as index:
        index.delete([0, 3])
        assert index.search(None, 3, text="moon").counts.tolist() == [0]
        index.delete([1, 2])
        index.optimize()
        assert index.search(query, 3, text="sun").counts.tolist() == [0]
        index.insert(vectors_of(1), metadata={"text": ["sun"], "stock": [1]})
        assert index.search(None, 3, text="sun").counts.tolist() == [1]


def test_deadlines_hold(built: velo.Index) -> None:
    with pytest.raises(velo.errors.SearchTimeoutError):
        built.search(vectors_of(1)[0], 5, text="red moon", timeout_s=1e-9)
    assert built.search(vectors_of(1)[0], 5, text="red moon", timeout_s=60).counts[0] == 5


def test_a_text_of_many_words(built: velo.Index) -> None:
    """The rarest count; what is asked is as fast as the words that count."""
    text = " ".join(f"nowhere{number}" for number in range(3000)) + " moon"
    found = built.search(None, 5, text=text)
    assert found.ids.tolist() == built.search(None, 5, text="moon").ids.tolist()
