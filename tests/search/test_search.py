"""Searching: what is found, how it is asked for, and what is refused."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import velo
from velo import errors
from velo.testing import brute_force, exact_distances, recall_at_k, synthetic_metadata, synthetic_vectors

COUNTERS = {
    "reads",
    "rounds",
    "bytes_read",
    "cache_hits",
    "estimates",
    "expanded",
    "filtered",
    "records_scored",
    "records_used",
    "shared_reads",
    "outside",
    "latency_us",
}


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """An index over 4,000 made-up vectors with metadata and row numbers as ids, and its vectors."""
    rows = synthetic_vectors(4_100, 32, seed=8)
    path = tmp_path_factory.mktemp("small") / "i"
    table = synthetic_metadata(4_000, seed=8)
    with velo.build(path, rows[:4000], metadata=table, threads=2, degree=32, links_kept=32) as index:
        yield index, rows[:4000], rows[4000:], table


# ---- what is found


def test_recall_on_real_descriptors(sample: Any, sample_index: velo.Index) -> None:
    result = sample_index.search(sample.queries, 10)
    assert result.ids.shape == result.distances.shape == (200, 10)
    exact = exact_distances(sample.base, sample.queries, result.ids)
    recall = recall_at_k(
        result.ids,
        sample.truth,
        k=10,
        found_distances=exact,
        true_distances=sample.truth_distances.astype(np.float64),
    )
    assert recall >= 0.95
    assert float(result.stats["reads"].mean()) <= 20
    assert (np.diff(result.distances, axis=1) >= 0).all()
    assert np.allclose(result.distances, exact, rtol=0.1)


def test_a_longer_list_finds_more(sample: Any, sample_index: velo.Index) -> None:
    def recall(**asked: Any) -> float:
        return recall_at_k(sample_index.search(sample.queries, 10, **asked).ids, sample.truth, k=10)

    short, long = recall(list_size=20), recall(list_size=300)
    assert short < long
    assert long >= 0.98
    assert recall(recall=0.99) >= recall(recall=0.8)


def test_filtered_recall_and_reads(sample: Any, sample_index: velo.Index) -> None:
    wanted = sample.asked.column("uniform10").to_pylist()
    filters = [velo.col("uniform10") == value for value in wanted]
    result = sample_index.search(sample.queries, 10, filter=filters)
    assert recall_at_k(result.ids, sample.truth_filtered, k=10) >= 0.90
    labels = np.asarray(sample.labels.column("uniform10"))
    for query, value in enumerate(wanted):
        found = result.ids[query][: result.counts[query]]
        assert (labels[found] == value).all()
    late = sample_index.search(
        sample.queries, 10, filter=filters, tuning=velo.SearchTuning(filter_plan="late"), list_size=100
    )
    assert result.stats["reads"].mean() < late.stats["reads"].mean()


def test_both_devices_find_the_same(sample: Any, sample_path: Path) -> None:
    found = {}
    for io in ("uring", "threads"):
        try:
            index = velo.open(sample_path, memory="20%", io=io, threads=2)  # type: ignore[arg-type]
        except errors.PermissionDeniedError as error:
            pytest.skip(f"LOUD: io_uring is refused here, so the devices cannot be compared: {error}")
        with index:
            assert index.info()["device"]["name"] == io
            found[io] = index.search(sample.queries, 10)
    assert np.array_equal(found["uring"].ids, found["threads"].ids)
    assert np.array_equal(found["uring"].distances, found["threads"].distances)


@pytest.mark.parametrize("plan", ["links_in_memory", "links_on_disk"])
def test_both_plans_reach_the_recall(plan: Any, sample: Any, sample_path: Path) -> None:
    with velo.open(sample_path, plan=plan, tuning=velo.OpenTuning(cache_share=0.0)) as index:
        assert index.info()["plan"] == plan
        result = index.search(sample.queries[:100], 10, list_size=100)
        assert recall_at_k(result.ids, sample.truth[:100], k=10) >= 0.95
    # All pages of a query may have been on their way for others.
    assert (result.stats["reads"] + result.stats["shared_reads"] > 0).all()
    assert result.stats["bytes_read"].any()


def test_the_bound_saves_reads(sample: Any, sample_path: Path) -> None:
    stats = {}
    with velo.open(sample_path, plan="links_on_disk", tuning=velo.OpenTuning(queries_in_flight=1)) as index:
        for name, tuning in {"bound": None, "no bound": velo.SearchTuning(sigma=100)}.items():
            result = index.search(sample.queries[:100], 10, list_size=100, tuning=tuning)
            assert recall_at_k(result.ids, sample.truth[:100], k=10) >= 0.95, name
            stats[name] = result.stats
    assert stats["no bound"]["reads"].mean() > stats["bound"]["reads"].mean()


def test_records_that_are_used_are_counted_where_it_is_asked_for(sample: Any, sample_path: Path) -> None:
    with velo.open(sample_path) as index:
        counted = index.search(sample.queries[:20], 10, tuning=velo.SearchTuning(count_used=True)).stats
        plain = index.search(sample.queries[:20], 10).stats
    assert (counted["records_used"] > 0).all()
    assert (counted["records_used"] <= counted["records_scored"]).all()
    assert not plain["records_used"].any()


@pytest.mark.parametrize("plan", ["links_in_memory", "links_on_disk"])
def test_a_query_asked_again_is_answered_by_the_cache(plan: Any, sample: Any, sample_path: Path) -> None:
    tuning = velo.OpenTuning(cache_share=0.5)
    with velo.open(sample_path, plan=plan, tuning=velo.OpenTuning(cache_share=0.0)) as index:
        without = index.search(sample.queries, 10, list_size=100)
    with velo.open(sample_path, plan=plan, memory=1.0, tuning=tuning) as index:
        index.search(sample.queries, 10, list_size=100)
        again = index.search(sample.queries, 10, list_size=100)
    assert again.stats["cache_hits"].mean() > 0
    assert again.stats["reads"].mean() <= 0.2 * without.stats["reads"].mean()
    found, before = (recall_at_k(result.ids, sample.truth, k=10) for result in (again, without))
    assert found >= before - 0.01


def test_queries_in_flight_together_share_reads(sample: Any, sample_path: Path) -> None:
    many = np.repeat(sample.queries[:5], 40, axis=0)
    with velo.open(
        sample_path, threads=1, tuning=velo.OpenTuning(queries_in_flight=1, cache_share=0.0)
    ) as index:
        own = index.search(many, 10)
    with velo.open(
        sample_path, threads=1, tuning=velo.OpenTuning(queries_in_flight=16, cache_share=0.0)
    ) as index:
        assert index.info()["plan"] == "links_in_memory"
        together = index.search(many, 10)
    assert np.array_equal(own.ids, together.ids)
    assert (own.stats["shared_reads"] == 0).all()
    wanted = together.stats["reads"] + together.stats["shared_reads"]
    assert np.array_equal(wanted, own.stats["reads"])
    # The first to come finds nothing on its way.
    assert together.stats["shared_reads"][0] == 0


def test_buffered_reads_find_the_same(sample: Any, sample_path: Path) -> None:
    with velo.open(sample_path) as direct:
        expected = direct.search(sample.queries[:50], 10)
    with velo.open(sample_path, tuning=velo.OpenTuning(buffered=True)) as index:
        assert not index.info()["device"]["direct"]
        assert np.array_equal(index.search(sample.queries[:50], 10).ids, expected.ids)


def test_alone_or_in_a_batch(small: Any) -> None:
    index, _, queries, _ = small
    batch = index.search(queries, 7)
    for number, query in enumerate(queries):
        alone = index.search(query, 7)
        assert alone.ids.shape == alone.distances.shape == (7,)
        assert np.array_equal(alone.ids, batch.ids[number])
        assert np.array_equal(alone.distances, batch.distances[number])


def test_queries_of_every_type_and_layout(small: Any) -> None:
    index, _, queries, _ = small
    expected = index.search(queries, 5).ids
    assert np.array_equal(index.search(queries.astype(np.float64), 5).ids, expected)
    assert np.array_equal(index.search(np.asfortranarray(queries), 5).ids, expected)
    assert np.array_equal(index.search(queries.tolist(), 5).ids, expected)
    assert np.array_equal(index.search(queries.astype(">f4"), 5).ids, expected)
    read_only = queries.copy()
    read_only.flags.writeable = False
    assert np.array_equal(index.search(read_only, 5).ids, expected)
    half = index.search(queries.astype(np.float16), 5).ids
    assert recall_at_k(half, expected) > 0.95
    assert index.search(np.ones(32, np.uint8), 5).ids.shape == (5,)
    assert index.search(np.ones(32, np.int8), 5).ids.shape == (5,)


def test_more_than_there_are(small: Any) -> None:
    index, _, queries, _ = small
    result = index.search(queries[:2], k=4096)
    assert result.ids.shape == (2, 4096)
    for counted, ids, distances in zip(result.counts, result.ids, result.distances, strict=True):
        assert 3_900 <= counted <= 4_000
        assert len(set(ids[:counted].tolist())) == counted
        assert (ids[counted:] == -1).all()
        assert np.isinf(distances[counted:]).all()
        assert np.isfinite(distances[:counted]).all()


def test_no_query_at_all(small: Any) -> None:
    index = small[0]
    result = index.search(np.zeros((0, 32), np.float32), k=4, return_metadata=["label"])
    assert result.ids.shape == (0, 4)
    assert result.metadata == []
    assert result.to_arrow().num_rows == 0


def test_counters(small: Any) -> None:
    index, _, queries, _ = small
    result = index.search(queries, 10)
    assert set(result.stats) == COUNTERS
    for name, values in result.stats.items():
        assert values.shape == (len(queries),), name
    page = index.info()["page_size"]
    assert np.array_equal(result.stats["bytes_read"], result.stats["reads"].astype(np.uint64) * page)
    assert (result.stats["rounds"] <= result.stats["reads"] + result.stats["shared_reads"]).all()
    assert (result.stats["estimates"] >= result.stats["expanded"]).all()
    assert (result.counts == 10).all()


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", ">f4", "uint8", "int8"])
def test_one_query_is_answered_like_one_of_many(small: Any, dtype: str) -> None:
    index, _, queries, _ = small
    queries = np.clip(queries * 10, 0, 100).astype(dtype)
    together = index.search(queries[:4], 7, list_size=40)
    alone = [index.search(query, 7, list_size=40) for query in queries[:4]]
    for row, one in enumerate(alone):  # all kept: none shares its arrays with a later one
        assert one.ids.shape == one.distances.shape == (7,)
        assert np.array_equal(one.ids, together.ids[row])
        assert np.array_equal(one.distances, together.distances[row])
        assert one.counts.tolist() == [7]
        assert one.expected == together.expected
        assert set(one.stats) == COUNTERS
        for name in ("estimates", "expanded", "rounds", "records_scored"):
            assert one.stats[name].tolist() == [together.stats[name][row]], name
    for form in (queries[:1], np.asfortranarray(queries)[0], queries[:1, ::-1][:, ::-1], queries[0].tolist()):
        found = index.search(form, 7, list_size=40)
        assert np.array_equal(found.ids.reshape(7), alone[0].ids)
        assert found.ids.ndim == np.ndim(form)


def test_one_query_is_refused_like_many(small: Any) -> None:
    index, _, queries, _ = small
    query = queries[0].copy()
    for wrong, error in (
        (query[:-1], errors.DimensionMismatchError),
        (query.astype(np.int64), errors.DtypeError),
        (query.astype(object), errors.DtypeError),
        (np.where(np.arange(len(query)) == 3, np.nan, query).astype(np.float32), errors.NotFiniteError),
    ):
        with pytest.raises(error) as caught:
            index.search(wrong, 7)
        assert caught.value.argument == "queries"
    with pytest.raises(errors.InvalidArgumentError) as refused:
        index.search(query, 7, list_size=0)
    assert refused.value.argument == "list_size"
    few = index.search(query, 4096)
    assert (few.ids[few.counts[0] :] == -1).all()
    assert (few.ids[: few.counts[0]] >= 0).all()


# ---- filters


def test_filters_in_every_form(small: Any) -> None:
    index, rows, queries, table = small
    labels = np.asarray(table.column("label"))
    mask = labels == 3
    truth = brute_force(rows, queries, 10, mask=mask)
    dresses = {
        "expression": velo.col("label") == 3,
        "dict": {"label": 3},
        "mask": mask,
        "Arrow mask": pa.array(mask),
        "list of bool": mask.tolist(),
        "ids": np.flatnonzero(mask),
        "list of ids": np.flatnonzero(mask).tolist(),
        "set of ids": set(np.flatnonzero(mask).tolist()),
        "one each": [velo.col("label") == 3] * len(queries),
    }
    found = {name: index.search(queries, 10, filter=dress, list_size=200) for name, dress in dresses.items()}
    for name, result in found.items():
        assert np.array_equal(result.ids, found["expression"].ids), name
        assert mask[result.ids].all(), name
    assert recall_at_k(found["mask"].ids, truth.ids) >= 0.95


@pytest.mark.parametrize("share", [1.0, 0.5, 0.05, 0.002, 0.00025])
def test_any_share_of_the_rows(share: float, small: Any, random: np.random.Generator) -> None:
    index, rows, queries, _ = small
    mask = np.zeros(len(rows), bool)
    mask[random.permutation(len(rows))[: max(1, int(share * len(rows)))]] = True
    truth = brute_force(rows, queries, 10, mask=mask)
    result = index.search(queries, 10, filter=mask, list_size=150)
    assert recall_at_k(result.ids, truth.ids) >= 0.9
    assert (result.counts <= mask.sum()).all()
    real = result.ids[result.ids >= 0]
    assert mask[real].all()


def test_a_filter_that_nothing_passes(small: Any) -> None:
    index, _, queries, _ = small
    for none in ({"label": 77}, np.zeros(4000, bool), np.zeros(0, np.int64), set(), {"$or": []}):
        result = index.search(queries[:3], 5, filter=none, return_metadata=["label"])
        assert (result.ids == -1).all()
        assert np.isinf(result.distances).all()
        assert result.counts.tolist() == [0, 0, 0]
        assert [one.num_rows for one in result.metadata] == [0, 0, 0]
        assert result.stats["reads"].sum() == 0


def test_a_filter_for_each_query(small: Any) -> None:
    index, _, queries, table = small
    labels = np.asarray(table.column("label"))
    each = [None if number % 5 == 0 else {"label": number % 10} for number in range(len(queries))]
    result = index.search(queries, 6, filter=each)
    for number, one in enumerate(each):
        alone = index.search(queries[number], 6, filter=one)
        assert np.array_equal(result.ids[number], alone.ids)
        if one is not None:
            assert (labels[result.ids[number]] == number % 10).all()
    masks = np.stack([labels == number % 10 for number in range(len(queries))])
    by_mask = index.search(queries, 6, filter=masks)
    assert np.array_equal(by_mask.ids[1:5], result.ids[1:5])


def deep(condition: dict[str, Any], depth: int) -> dict[str, Any]:
    for _ in range(depth):
        condition = {"$and": [condition]}
    return condition


@pytest.mark.parametrize(
    "given",
    [
        velo.col("label").isin([]),
        {"label": {"$in": []}},
        {"type": "in", "key": "label", "value": []},
        "label IN ()",
        "label = 99",
        {"label": 1000},
        "label = 3 AND label = 4",
        np.zeros(4000, bool),
        [],
    ],
)
def test_filters_that_match_nothing_find_nothing(given: Any, small: Any) -> None:
    index, _, queries, _ = small
    given = np.zeros(0, np.int64) if isinstance(given, list) else given  # no ids
    result = index.search(queries[:3], 5, filter=given)
    assert result.counts.tolist() == [0, 0, 0]
    assert (result.ids == -1).all()
    assert result.stats["reads"].sum() == 0


@pytest.mark.parametrize(
    ("given", "kind"),
    [
        ({"colour": 3}, errors.UnknownColumnError),
        (velo.col("colour") == 3, errors.UnknownColumnError),
        ({"label": "three"}, errors.FilterTypeError),
        ({"label": {"$all": [1]}}, errors.FilterTypeError),
        ({"tags": 3}, errors.FilterTypeError),
        ({"label": {"$near": 3}}, errors.FilterError),
        (b"label == 3", errors.FilterTypeError),
        ("label = = 3", errors.FilterError),
        ("SELECT * FROM t", errors.FilterError),
        ("label = 3; DROP TABLE t", errors.FilterError),
        ("label = (SELECT 1)", errors.FilterError),
        ("label = 'three'", errors.FilterTypeError),
        ("colour = 3", errors.UnknownColumnError),
        ("NOT " * 1000 + "label = 3", errors.FilterError),
        ({"brand": "\ud800"}, errors.FilterError),
        ("brand = '\ud800'", errors.FilterError),
        ({"price": {"$gt": float("nan")}}, errors.FilterError),
        ({"price": {"$between": [0.1, float("nan")]}}, errors.FilterError),
        ({"type": "near", "key": "label", "value": 3}, errors.FilterError),
        ({"type": "eq", "key": "colour", "value": 3}, errors.UnknownColumnError),
        (deep({"label": 3}, 1000), errors.FilterError),
        (3.5, errors.FilterTypeError),
        (np.zeros(3999, bool), errors.FilterError),
        (["a", "b"], errors.FilterTypeError),
        ([{"label": 1}] * 2, errors.InvalidArgumentError),
        ([{"label": 1}, {"colour": 1}, None], errors.UnknownColumnError),
    ],
)
def test_bad_filters_are_refused(given: Any, kind: type[errors.VeloError], small: Any) -> None:
    index, _, queries, _ = small
    with pytest.raises(kind) as caught:
        index.search(queries[:3], 5, filter=given)
    assert caught.value.argument == "filter"
    assert index.search(queries[:3], 5).ids.shape == (3, 5)


def test_an_index_without_metadata(tmp_path: Path) -> None:
    rows = synthetic_vectors(500, 16)
    with velo.build(tmp_path / "i", rows, ids=[f"v{number}" for number in range(500)]) as index:
        with pytest.raises(errors.UnknownColumnError):
            index.search(rows[0], filter={"label": 1})
        with pytest.raises(errors.UnknownColumnError):
            index.search(rows[0], return_metadata=["label"])
        assert index.search(rows[0], 2, return_metadata=True).metadata.num_columns == 0
        mask = np.zeros(500, bool)
        mask[[4, 77]] = True
        assert set(index.search(rows[0], 2, filter=mask).ids) == {"v4", "v77"}
        assert set(index.search(rows[0], 3, filter=["v5", "v6", "nobody"]).ids) == {"v5", "v6", None}
        with pytest.raises(errors.FilterTypeError):
            index.search(rows[0], filter=[5, 6])
        with pytest.raises(errors.UnsupportedError):
            index.get_vectors(["v5"])


# ---- what is refused


@pytest.mark.parametrize(
    ("queries", "kind"),
    [
        (np.zeros(31, np.float32), errors.DimensionMismatchError),
        (np.zeros((3, 33), np.float32), errors.DimensionMismatchError),
        (np.zeros((1, 3, 32), np.float32), errors.DimensionMismatchError),
        (np.float32(3), errors.VeloError),
        ([[1.0] * 32, [1.0] * 31], errors.DimensionMismatchError),
        (np.zeros(32, np.int64), errors.DtypeError),
        (np.zeros(32, bool), errors.DtypeError),
        (["a"] * 32, errors.DtypeError),
        (None, errors.VeloError),
        ({}, errors.VeloError),
    ],
)
def test_bad_queries_are_refused(queries: Any, kind: type[errors.VeloError], small: Any) -> None:
    with pytest.raises(kind) as caught:
        small[0].search(queries)
    assert caught.value.argument == "queries"


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_queries_that_are_not_finite(value: float, dtype: Any, small: Any) -> None:
    queries = np.zeros((5, 32), dtype)
    queries[3, 9] = value
    with pytest.raises(errors.NotFiniteError) as caught:
        small[0].search(queries)
    assert (caught.value.argument, caught.value.row) == ("queries", 3)


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("k", 0),
        ("k", -3),
        ("k", 1.0),
        ("k", "ten"),
        ("k", 1 << 25),
        ("recall", 1.0),
        ("recall", -0.1),
        ("list_size", 0),
        ("timeout_s", 0),
        ("timeout_s", float("nan")),
        ("return_metadata", ["colour"]),
    ],
)
def test_arguments_are_checked(argument: str, value: Any, small: Any) -> None:
    index, _, queries, _ = small
    index.search(queries[0], k=1)
    with pytest.raises(errors.VeloError) as caught:
        index.search(queries[0], **{argument: value})
    assert caught.value.argument == argument


def test_opening_is_checked(sample_path: Path) -> None:
    for argument, value in (
        ("io", "fast"),
        ("plan", "b"),
        ("threads", 0),
        ("memory", -1),
        ("memory", "lots"),
    ):
        with pytest.raises(errors.InvalidArgumentError) as caught:
            velo.open(sample_path, **{argument: value})  # type: ignore[arg-type]
        assert caught.value.argument == argument


def test_a_budget_too_small_states_the_minimum(sample_path: Path) -> None:
    with pytest.raises(errors.BudgetTooSmallError) as caught:
        velo.open(sample_path, memory=1000)
    needed = caught.value.needed_bytes
    assert needed is not None
    with velo.open(sample_path, memory=needed) as index:
        assert index.info()["plan"] == "links_on_disk", "the minimum has no room for links"
        assert index.search(np.zeros(128, np.uint8)).ids.shape == (10,)
    with pytest.raises(errors.BudgetTooSmallError):
        velo.open(sample_path, memory=needed - 1)


def test_a_timeout(sample: Any, sample_index: velo.Index) -> None:
    many = np.tile(sample.queries, (50, 1))
    with pytest.raises(errors.SearchTimeoutError) as caught:
        sample_index.search(many, 100, list_size=2000, timeout_s=0.005)
    assert isinstance(caught.value, TimeoutError)
    assert sample_index.search(sample.queries, 10, timeout_s=60).ids.shape == (200, 10)


# ---- looking


def test_explain(sample: Any, sample_index: velo.Index) -> None:
    told = sample_index.explain(sample.queries[0], k=5, filter=velo.col("uniform10") == 3, list_size=80)
    labels = np.asarray(sample.labels.column("uniform10"))
    assert told.matches == int((labels == 3).sum())
    assert told.result.ids.shape == (5,)
    shown = repr(told)
    for word in ("links_in_memory", "reads", "rounds", "hops", f"{told.matches:,} of 20,000", "µs"):
        assert word in shown
    assert told.to_dict()["reads"] == int(told.result.stats["reads"][0])
    assert 0 < int(told.result.stats["records_used"][0]) <= int(told.result.stats["records_scored"][0])
    assert sample_index.explain(sample.queries[0]).matches is None
    with pytest.raises(errors.InvalidArgumentError):
        sample_index.explain(sample.queries[:2])


def test_info(sample_index: velo.Index, sample_path: Path) -> None:
    info = sample_index.info()
    assert (info["n"], info["dim"], info["metric"], info["dtype"]) == (20_000, 128, "l2", "uint8")
    assert info["memory_bytes"]["codes"] >= 20_000 * (128 * 4 // 8 + 4)
    assert set(info["disk_bytes"]) == {entry.name for entry in sample_path.iterdir()}
    assert info["memory_budget_bytes"] == 20_000 * 128 * 4 // 5
    budgeted = ("codes", "links", "cache", "pages")
    assert sum(info["memory_bytes"][name] for name in budgeted) <= info["memory_budget_bytes"]
    assert info["stores_vectors"]
    assert len(info["uuid"]) == 36
    assert "uniform10" in info["columns"]
    assert info["device"]["reason"]
    assert len(sample_index) == 20_000
    assert repr(sample_index).startswith("velo.Index(")


def test_get_vectors(sample: Any, sample_index: velo.Index, random: np.random.Generator) -> None:
    wanted = random.integers(0, 20_000, size=300)
    assert np.array_equal(sample_index.get_vectors(wanted), sample.base[wanted])
    assert sample_index.get_vectors([]).shape == (0, 128)
    assert np.array_equal(sample_index.get_vectors(17), sample.base[17:18])
    with pytest.raises(errors.UnknownIdError) as caught:
        sample_index.get_vectors([5, 20_000])
    assert caught.value.row == 1
    assert isinstance(caught.value, KeyError)


def test_metadata_and_arrow(sample: Any, sample_index: velo.Index) -> None:
    result = sample_index.search(sample.queries[:4], 6, return_metadata=["price", "tags", "brand", "ts"])
    table = result.to_arrow()
    assert table.column_names == ["query", "rank", "id", "distance", "price", "tags", "brand", "ts"]
    assert table.num_rows == 24
    expected = sample.labels.select(["price", "tags", "brand", "ts"]).take(table.column("id"))
    assert table.select(["price", "tags", "brand", "ts"]).to_pydict() == expected.to_pydict()
    one = sample_index.search(sample.queries[0], 6, return_metadata=True)
    assert isinstance(one.metadata, pa.Table)
    assert one.metadata.column_names == sample.labels.column_names
    assert sample_index.search(sample.queries[0], 6).metadata is None


def test_pickling_opens_again(sample: Any, sample_index: velo.Index) -> None:
    again = pickle.loads(pickle.dumps(sample_index))
    with again:
        assert again.info()["memory_budget_bytes"] == sample_index.info()["memory_budget_bytes"]
        assert np.array_equal(
            again.search(sample.queries[:5]).ids, sample_index.search(sample.queries[:5]).ids
        )


def test_pickles_of_earlier_versions_find_their_classes() -> None:
    """A pickle names the module of its class."""
    hits = ("Expectation", "GroupedResult", "RangeResult", "SearchResult")
    modules = dict.fromkeys(hits, "velo.results.hits")
    modules |= {"Explanation": "velo.results.explanation", "Written": "velo.results.written"}
    modules |= {
        "Index": "velo.index.index",
        "ShardedIndex": "velo.index.sharded",
        "NotAnIndexError": "velo.errors",
    }
    assert {name: getattr(velo, name).__module__ for name in modules} == modules
