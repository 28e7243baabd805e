"""Budgets, numbers and names are checked before the library sees them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from velo.errors import BudgetTooSmallError, InvalidArgumentError
from velo.options import BuildOptions, OpenTuning, SearchTuning, fill_search, memory_bytes


@pytest.mark.parametrize(
    ("memory", "expected"),
    [
        (None, 0),
        (1, 1),
        (np.int64(4096), 4096),
        (0.5, 200_000),
        (1.0, 400_000),
        ("15%", 60_000),
        ("12.5 %", 50_000),
        ("200%", 800_000),
        ("2GiB", 2 << 30),
        ("1.5 MiB", 1_572_864),
        ("500 MB", 500_000_000),
        ("7kb", 7_000),
        ("123", 123),
        ("123B", 123),
    ],
)
def test_a_budget_in_bytes(memory: Any, expected: int) -> None:
    assert memory_bytes(memory, 1000, 100) == expected


@pytest.mark.parametrize(
    "memory",
    [0, -1, 0.0, 1.5, -0.1, float("nan"), "", "15", "x", "GiB", "-3GiB", "1 PiB", True, [], b"1", "0%"],
)
def test_invalid_budgets_are_refused(memory: Any) -> None:
    if memory == "15":
        assert memory_bytes(memory, 1, 1) == 15
        return
    with pytest.raises(InvalidArgumentError) as caught:
        memory_bytes(memory, 1000, 100)
    assert caught.value.argument == "memory"


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("metric", "euclid"),
        ("metric", 0),
        ("memory_bits", 0),
        ("memory_bits", 7),
        ("memory_bits", 4.0),
        ("record_bits", -1),
        ("record_bits", 9),
        ("search_memory", "much"),
        ("degree", 0),
        ("degree", True),
        ("links_kept", 49),
        ("seed", -1),
        ("seed", 2**64),
        ("alpha", 0.9),
        ("alpha", float("nan")),
        ("threads", 0),
        ("build_list_size", 0),
    ],
)
def test_build_options_name_the_argument(argument: str, value: Any) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        BuildOptions(**{argument: value})
    assert caught.value.argument == argument


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("cache_share", 1.1),
        ("queue_depth", 0),
        ("links_kept", -1),
    ],
)
def test_open_tuning_names_the_argument(argument: str, value: Any) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        OpenTuning(**{argument: value})
    assert caught.value.argument == argument


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("k", 0),
        ("k", -1),
        ("k", 2.0),
        ("k", True),
        ("k", None),
        ("recall", 0),
        ("recall", 1.001),
        ("recall", float("nan")),
        ("list_size", 0),
        ("list_size", "long"),
        ("timeout_s", 0),
        ("timeout_s", -1),
        ("timeout_s", float("nan")),
    ],
)
def test_a_search_names_the_argument(argument: str, value: Any) -> None:
    asked = {"k": 10, "recall": None, "list_size": None, "timeout_s": None} | {argument: value}
    with pytest.raises(InvalidArgumentError) as caught:
        fill_search(SimpleNamespace(), tuning=None, **asked)
    assert caught.value.argument == argument


def test_options_reach_the_native_library() -> None:
    struct = SimpleNamespace()
    fill_search(struct, 5, 0.9, 64, float("inf"), SearchTuning(beam_width=8, sigma=0.3, filter_plan="late"))
    assert struct.k == 5
    assert struct.recall == 0.9
    assert struct.list_size == 64
    assert struct.timeout_us == 3_600_000_000
    assert (struct.beam_width, struct.burst_max, struct.sigma, struct.filter_plan) == (8, 0, 0.3, 1)
    assert struct.count_used == 0
    fill_search(struct, 5, None, None, None, SearchTuning(count_used=True))
    assert struct.count_used == 1
    struct = SimpleNamespace()
    OpenTuning().fill(struct)
    assert struct.cache_share == -1.0
    assert struct.links_kept == 0


@pytest.mark.parametrize(
    ("share", "row_count", "dim", "bits"),
    [
        ("8%", 1_000_000, 128, (1, 7)),
        ("10%", 1_000_000, 128, (2, 6)),
        ("15%", 1_000_000, 128, (3, 7)),
        ("20%", 1_000_000, 128, (4, 6)),
        ("25%", 1_000_000, 128, (4, 6)),
        ("80%", 1_000_000, 128, (4, 6)),
        ("10%", 61_436, 384, (2, 6)),
        ("15%", 61_436, 384, (4, 6)),
    ],
)
def test_a_budget_chooses_bits(share: str, row_count: int, dim: int, bits: tuple[int, int]) -> None:
    chosen = BuildOptions(search_memory=share).for_vectors(row_count, dim)
    assert (chosen.memory_bits, chosen.record_bits) == bits


def test_bits_that_are_given_stay() -> None:
    def bits(**given: Any) -> tuple[Any, Any]:
        chosen = BuildOptions(**given).for_vectors(1000, 128)
        return chosen.memory_bits, chosen.record_bits

    assert bits() == (4, 6)
    assert bits(memory_bits=2) == (2, 8)
    assert bits(memory_bits=6) == (6, 4)
    assert bits(search_memory="50%", memory_bits=2) == (2, 8)
    assert bits(search_memory="50%", record_bits=0) == (4, 0)


def test_links_stay_out_of_pages_only_where_searches_will_have_room_for_them() -> None:
    def in_pages(row_count: int = 1_000_000, **given: Any) -> bool | None:
        return BuildOptions(**given).for_vectors(row_count, 128).page_links

    assert in_pages() is True
    assert in_pages(search_memory="20%") is False
    assert in_pages(search_memory="10%") is False  # neighbors share lists
    assert in_pages(search_memory="6%") is False  # codes of records
    assert in_pages(search_memory="3%") is False  # codes of pages
    assert in_pages(search_memory="8%", page_codes=False) is True
    assert in_pages(search_memory="6%", page_codes=False) is False
    assert in_pages(search_memory="6%", record_code_bytes=0) is False  # shared links
    with pytest.raises(BudgetTooSmallError, match="search_memory"):
        in_pages(search_memory="0.2%")
    assert in_pages(search_memory="20%", memory_bits=6) is True
    assert in_pages(search_memory="20%", page_links=True) is True
    assert in_pages(search_memory="20%", links_kept=0) is True
    assert in_pages(page_links=False) is False


@pytest.mark.parametrize(
    ("share", "row_count", "dim", "chosen"),
    [
        ("3%", 1_000_000, 128, 0),
        ("3.5%", 1_000_000, 128, 16),
        ("6%", 1_000_000, 128, 28),
        ("8%", 1_000_000, 128, 36),
        ("9%", 1_000_000, 128, 0),  # two bits and shared links
        ("7%", 61_436, 384, 64),
        ("3%", 1_000_000, 1536, 64),
        ("4%", 1_000_000, 1536, 0),  # codes of one bit are three times as long
        ("6%", 1_000, 128, 0),  # codebooks alone take more
    ],
)
def test_a_budget_between_page_codes_and_links_chooses_codes_of_records(
    share: str, row_count: int, dim: int, chosen: int
) -> None:
    options = BuildOptions(search_memory=share).for_vectors(row_count, dim)
    assert options.record_code_bytes == chosen
    assert options.page_codes or not chosen
    assert BuildOptions(search_memory=share, memory_bits=2).for_vectors(row_count, dim).record_code_bytes == 0


def test_a_budget_below_codes_keeps_few_links_on_disk() -> None:
    def links(row_count: int = 1_000_000, **given: Any) -> int | None:
        return BuildOptions(**given).for_vectors(row_count, 128).links_kept

    assert links() == links(page_codes=True) == 32
    assert links(search_memory="20%", page_codes=True) == 32
    assert links(search_memory="2%") == links(search_memory="0.4%") == 8
    assert links(search_memory="2%", degree=6) == 6
    assert links(search_memory="2%", links_kept=32) == 32
