"""Every budget from the least on: what a build makes for it opens in it, and is a rung of the tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import velo
from tests.rungs import PAGES, RECORDS, RUNGS, budget_of, kind_of, links_in
from velo import errors
from velo.options import BuildOptions, sizes_of
from velo.testing import brute_force, recall_at_k, synthetic_vectors

N, DIM = 3_000, 32


def test_what_is_built_for_a_budget_opens_in_it_and_is_a_rung(tmp_path: Path) -> None:
    rows, queries = np.split(synthetic_vectors(N + 40, DIM, seed=4, intrinsic_dim=12), [N])
    truth = brute_force(rows, queries, 10)
    budget: float = sizes_of(N, DIM).page_codes_least_bytes
    with pytest.raises(errors.BudgetTooSmallError) as refused:
        BuildOptions(search_memory=int(budget) - 1).for_vectors(N, DIM)
    assert refused.value.needed_bytes == budget
    built: dict[Any, Path] = {}
    kinds = set()
    while budget < 0.9 * N * DIM * 4:
        chosen = BuildOptions(search_memory=int(budget)).for_vectors(N, DIM)
        shape = (
            chosen.memory_bits,
            chosen.record_bits,
            chosen.page_links,
            chosen.page_codes,
            chosen.record_code_bytes,
        )
        path = built.setdefault(shape, tmp_path / "-".join(map(str, shape)))
        if not path.exists():
            options: Any = {"search_memory": int(budget), "calibrate": False, "degree": 32}
            velo.build(path, rows, threads=1, **options).close()
        with velo.open(path, memory=int(budget), threads=1) as index:
            info = index.info()
            assert info["memory_within_budget_bytes"] <= budget
            found = index.search(queries, list_size=500)
        assert recall_at_k(found.ids, truth.ids) > 0.95
        kinds.add((info["memory_bits"], kind_of(links_in(path, int(budget)))))
        budget *= 1.07
    assert {kind for _, kind in kinds} == {rung.kind for rung in RUNGS}
    assert {bits for bits, _ in kinds} == {rung.memory_bits for rung in RUNGS}


@pytest.mark.parametrize("rung", RUNGS, ids=str)
def test_a_rung_is_what_its_budget_opens_and_one_byte_less_does_not(rung: Any, tmp_path: Path) -> None:
    rows = synthetic_vectors(N, DIM, seed=5, intrinsic_dim=12)
    path = tmp_path / "i"
    velo.build(path, rows, calibrate=False, threads=1, **rung.build).close()
    if rung.links:
        with velo.open(path, memory=rung.memory(path), threads=1) as index:
            assert (index.info()["memory_bytes"]["cache"] > 0) == (rung.cached > 0)
    memory = budget_of(path, rung.links)
    assert links_in(path, memory) == rung.links
    if rung.links > 2 or rung.links in (PAGES, RECORDS):
        assert links_in(path, memory - 1) < rung.links
        return
    with pytest.raises(errors.BudgetTooSmallError) as refused:
        links_in(path, memory - 1)
    assert refused.value.needed_bytes == memory


def test_codes_of_pages_that_are_not_there_are_named(tmp_path: Path) -> None:
    rows = synthetic_vectors(N, DIM, seed=5, intrinsic_dim=12)
    for page_codes in (False, True):
        velo.build(tmp_path / str(page_codes), rows, calibrate=False, page_codes=page_codes).close()
    with pytest.raises(errors.UnsupportedError, match="page_codes=True"):
        velo.open(tmp_path / "False", plan="walk")
    with pytest.raises(errors.InvalidArgumentError, match="links_kept is 99") as wrong:
        velo.open(tmp_path / "True", plan="walk", tuning=velo.OpenTuning(links_kept=99))
    assert wrong.value.argument == "links_kept"
    with pytest.warns(FutureWarning, match='plan="walk"'):
        former = velo.open(tmp_path / "True", plan="pages")
    with former:
        assert former.info()["plan"] == "walk"
