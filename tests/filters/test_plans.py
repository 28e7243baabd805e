"""Plans of a filtered search: one recall for every share and kind of label, and what each plan reads."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import velo
from tests.long import count
from tests.rungs import LINKS, ON_DISK, PAGES, PAGES_LEAST, budget_of
from velo import errors

K = 10
SHARES = (1.0, 0.5, 0.2, 0.1, 0.05, 0.02, 0.01, 0.005, 0.001, 1 / 20_000)
#: Four standard deviations of the mean recall of 200 queries; that of one query has a deviation of about 0.1.
CHANCE = 0.03


class Truth:
    """Exact squared distances of queries to rows."""

    def __init__(self, rows: np.ndarray, queries: np.ndarray) -> None:
        self.queries = queries
        base, asked = rows.astype(np.float32), queries.astype(np.float32)
        self.distances = (base**2).sum(1) + (asked**2).sum(1)[:, None] - 2 * asked @ base.T

    def recall(self, result: velo.SearchResult, masks: Any) -> float:
        """Hits at least as near as the k-th match, over the existing matches; every hit must pass."""
        shares = []
        for query, row in enumerate(self.distances):
            mask = masks[query]
            found = result.ids[query][: result.counts[query]]
            assert mask[found].all()
            assert len(set(found.tolist())) == len(found)
            wanted = min(K, int(mask.sum()))
            assert len(found) <= wanted
            if wanted:
                bound = np.partition(row[mask], wanted - 1)[wanted - 1]
                shares.append((row[found] <= bound).sum() / wanted)
        return float(np.mean(shares))


@pytest.fixture(scope="module")
def truth(sample: Any) -> Truth:
    return Truth(sample.base, sample.queries)


@pytest.fixture(scope="module")
def index(sample_path: Path) -> Any:
    with velo.open(sample_path, memory="20%", threads=2) as opened:
        yield opened


@pytest.fixture(scope="module")
def few_rows(sample: Any) -> np.ndarray:
    """The rows of the indexes in ``rung``: most of the time of these tests is that of their builds."""
    return sample.base[: count(4_000, len(sample.base))]


@pytest.fixture(scope="module")
def truth_of_few(sample: Any, few_rows: np.ndarray) -> Truth:
    return Truth(few_rows, sample.queries)


@pytest.fixture(scope="module")
def of_bits(few_rows: np.ndarray, tmp_path_factory: pytest.TempPathFactory) -> Callable[[int, bool], Path]:
    """An index with these bits in memory, with or without codes of pages; the same one in every run."""

    @functools.cache
    def build(bits: int, page_codes: bool) -> Path:
        path = tmp_path_factory.mktemp("rungs") / "i.velo"
        options = {} if bits == 4 else {**ON_DISK.build, "page_codes": page_codes}
        velo.build(path, few_rows, threads=1, **options).close()
        return path

    return build


@pytest.fixture(
    scope="module",
    params=[(bits, links) for bits in (4, 1) for links in LINKS] + [(1, PAGES), (1, PAGES_LEAST)],
    ids=str,
)
def rung(request: pytest.FixtureRequest, of_bits: Callable[[int, bool], Path]) -> Any:
    """The rows on every rung that their codes have: all links, eight, shared ones, links on disk, pages."""
    bits, links = request.param
    path = of_bits(bits, links < 0)
    with velo.open(path, memory=budget_of(path, links), threads=2) as opened:
        yield opened


@pytest.fixture(scope="module")
def clusters(sample: Any) -> tuple[Any, Any, Any]:
    """The nearest of ten centers of each row and of each query, and the center farthest from each center."""
    draw = np.random.default_rng(5)
    base, queries = sample.base.astype(np.float32), sample.queries.astype(np.float32)
    centers = base[draw.choice(len(base), 10, replace=False)]
    for _ in range(5):
        near = ((base[:, None] - centers) ** 2).sum(2).argmin(1)
        centers = np.array([base[near == c].mean(0) if (near == c).any() else centers[c] for c in range(10)])
    near = ((base[:, None] - centers) ** 2).sum(2).argmin(1)
    own = ((queries[:, None] - centers) ** 2).sum(2).argmin(1)
    return near, own, ((centers[:, None] - centers) ** 2).sum(2).argmax(1)


@pytest.mark.parametrize("share", SHARES)
def test_one_setting_holds_its_recall_at_every_share(
    share: float, sample: Any, truth: Truth, index: Any
) -> None:
    draw = np.random.default_rng(7)
    mask = np.zeros(len(sample.base), bool)
    mask[draw.permutation(len(mask))[: round(share * len(mask))]] = True
    result = index.search(truth.queries, K, filter=mask, recall=0.95)
    assert truth.recall(result, [mask] * len(truth.queries)) >= 0.95 - CHANCE
    assert (result.counts == min(K, mask.sum())).all()


# Far labels are left to the planner: the gate alone would go through all that lies between.
@pytest.mark.parametrize(
    ("kind", "plan"),
    [
        ("follow", "auto"),
        ("far", "auto"),
        ("norm", "auto"),
        ("runs", "auto"),
        ("follow", "gate"),
        ("norm", "gate"),
        ("runs", "gate"),
    ],
)
def test_labels_that_follow_the_vectors_or_avoid_them(
    kind: str, plan: str, sample: Any, truth: Truth, index: Any, clusters: Any
) -> None:
    near, own, farthest = clusters
    count = len(truth.queries)
    norms = (sample.base.astype(np.int64) ** 2).sum(1)
    masks = {
        "follow": lambda q: near == own[q],
        "far": lambda q: near == farthest[own[q]],
        "norm": lambda q: norms >= np.sort(norms)[-len(norms) // (5 + q % 5)],
        "runs": lambda q: np.arange(len(norms)) // 2000 == q % 10,
    }[kind]
    each = [masks(query) for query in range(count)]
    asked = {"recall": 0.95, "tuning": velo.SearchTuning(filter_plan=plan)}
    result = index.search(truth.queries, K, filter=each, **asked)
    assert truth.recall(result, each) >= 0.95 - CHANCE


def test_the_gate_reads_what_passes(sample: Any, truth: Truth, index: Any) -> None:
    labels = np.asarray(sample.labels["uniform10"])
    wanted = sample.asked["uniform10"].to_pylist()[: len(truth.queries)]
    filters = [velo.col("uniform10") == value for value in wanted]
    masks = [labels == value for value in wanted]
    found = {}
    for plan, list_size in (("gate", 160), ("scan", 160), ("late", 640)):
        tuning = velo.SearchTuning(filter_plan=plan)
        found[plan] = index.search(truth.queries, K, filter=filters, list_size=list_size, tuning=tuning)
        assert truth.recall(found[plan], masks) >= 0.95 - CHANCE, plan
    stats = {plan: {name: float(np.mean(v)) for name, v in one.stats.items()} for plan, one in found.items()}
    assert stats["gate"]["reads"] < stats["late"]["reads"] / 3
    assert stats["scan"]["reads"] < stats["late"]["reads"] / 3
    assert stats["scan"]["expanded"] == 0
    assert (found["scan"].stats["estimates"] == [mask.sum() for mask in masks]).all()
    assert stats["gate"]["filtered"] > 0


def test_nothing_passes_and_few_pass(sample: Any, truth: Truth, index: Any) -> None:
    for nothing in (np.zeros(len(sample.base), bool), velo.col("uniform10") == 77):
        result = index.search(truth.queries, K, filter=nothing, recall=0.95)
        assert (result.counts == 0).all()
        assert (result.ids == -1).all()
        assert (result.stats["reads"] == 0).all()
    rows = np.array([3, 77, 1_000, 19_999])
    result = index.search(truth.queries, K, filter=rows, recall=0.8)
    assert (result.counts == len(rows)).all()
    assert (np.sort(result.ids[:, : len(rows)], axis=1) == rows).all()
    mask = np.zeros(len(sample.base), bool)
    mask[::4] = True
    result = index.search(truth.queries[:3], 4096, filter=mask)
    assert (result.counts == 4096).all()


def test_answers_do_not_depend_on_threads_or_on_what_was_asked_before(
    sample: Any, truth: Truth, sample_path: Path
) -> None:
    wanted = sample.asked["uniform10"].to_pylist()[: len(truth.queries)]
    found = []
    for threads, plan, alone in (
        (1, "auto", True),
        (2, "auto", False),
        (1, "gate", True),
        (2, "gate", False),
    ):
        with velo.open(sample_path, memory="20%", threads=threads) as index:
            filters = [velo.col("uniform10") == value for value in wanted]
            tuning = velo.SearchTuning(filter_plan=plan)
            if not alone:  # the same filters, resolved before
                index.search(truth.queries, K, filter=filters, tuning=velo.SearchTuning(filter_plan="scan"))
            each = (
                [
                    index.search(q, K, filter=f, tuning=tuning).ids
                    for q, f in zip(truth.queries, filters, strict=True)
                ]
                if alone
                else index.search(truth.queries, K, filter=filters, tuning=tuning).ids
            )
            found.append(np.asarray(each))
    assert np.array_equal(found[0], found[1])
    assert np.array_equal(found[2], found[3])


@pytest.mark.parametrize("share", [1.0, 0.5, 0.1, 0.01, 0])
def test_every_rung_holds_its_recall(
    share: float, truth_of_few: Truth, few_rows: np.ndarray, rung: Any
) -> None:
    """At every share of rows that pass; a share of 0 stands for a single row."""
    draw = np.random.default_rng(8)
    mask = np.zeros(len(few_rows), bool)
    mask[draw.permutation(len(mask))[: max(1, round(share * len(mask)))]] = True
    result = rung.search(truth_of_few.queries, K, filter=mask, recall=0.95)
    assert truth_of_few.recall(result, [mask] * len(truth_of_few.queries)) >= 0.95 - CHANCE
    # A gate without links in memory is a post-filter.
    gate = velo.SearchTuning(filter_plan="gate")
    late = rung.search(truth_of_few.queries[:5], K, filter=mask, tuning=gate)
    assert (late.counts <= K).all()
    assert mask[late.ids[late.ids >= 0]].all()


def test_every_rung_holds_its_recall_where_labels_follow_the_vectors(
    truth_of_few: Truth, rung: Any, clusters: Any
) -> None:
    near, own, _ = clusters
    near = near[: truth_of_few.distances.shape[1]]
    each = [near == own[query] for query in range(len(truth_of_few.queries))]
    result = rung.search(truth_of_few.queries, K, filter=each, recall=0.95)
    assert truth_of_few.recall(result, each) >= 0.95 - CHANCE


def test_a_plan_that_is_none_is_named(index: Any, truth: Truth) -> None:
    with pytest.raises(errors.InvalidArgumentError) as caught:
        index.search(truth.queries, K, tuning=velo.SearchTuning(filter_plan="none"))
    assert caught.value.argument == "filter_plan"


def test_explain_tells_what_each_plan_would_take(truth: Truth, index: Any, sample_path: Path) -> None:
    query = truth.queries[0]
    rare, all_rows = velo.col("uniform10") == 3, velo.col("uniform10") >= 0
    told = index.explain(query, filter=rare, recall=0.95)
    plan = told.filter_plan
    assert (plan.chosen, plan.matches_exact, plan.gate_needs_bytes) == ("scan", True, 0)
    assert plan.matches == told.matches
    assert told.result.stats["estimates"][0] == told.matches == plan.costs["scan"].estimates
    assert plan.costs["scan"].cost_us < plan.costs["gate"].cost_us
    assert plan.costs["gate"].reads < plan.costs["late"].reads
    assert "filtering   scan: " in str(told)
    assert told.to_dict()["filter_plan"]["costs"]["late"]["possible"] is True

    assert index.explain(query, filter=all_rows, recall=0.95).filter_plan.chosen == "gate"
    assert index.explain(query).filter_plan is None
    asked = velo.SearchTuning(filter_plan="late")
    assert index.explain(query, filter=rare, tuning=asked).filter_plan.reason == "asked for"
    with velo.open(sample_path, plan="links_on_disk", memory="20%") as on_disk:
        told = on_disk.explain(query, filter=rare, tuning=velo.SearchTuning(filter_plan="gate"))
        assert told.filter_plan.chosen == "late"
        assert not told.filter_plan.costs["gate"].possible
        needed = told.filter_plan.gate_needs_bytes
        assert f"open with memory={needed} or more" in str(told)
    # With that much the gate can be had, and with much less it cannot.
    with velo.open(sample_path, plan="links_in_memory", memory=needed) as enough:
        assert enough.info()["links_kept"] >= 2  # shared by neighbors
    with pytest.raises(errors.BudgetTooSmallError):
        velo.open(sample_path, plan="links_in_memory", memory=int(needed * 0.75))
