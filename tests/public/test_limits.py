"""Python takes what lies at a limit of ``velo.h`` and refuses what lies beyond, by the argument's name."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args, get_origin, get_type_hints

import numpy as np
import pytest

import velo
from velo._native.limits import _limits
from velo.errors import InvalidArgumentError
from velo.options import BuildKeywords, BuildOptions, OpenTuning, SearchTuning, fill_search, limit_of
from velo.search.groups import check_groups
from velo.search.script import check_radius, page_script


def search(**asked: Any) -> None:
    whole = {"k": 10, "recall": None, "list_size": None, "timeout_s": None} | asked
    fill_search(SimpleNamespace(), tuning=None, **whole)


#: What takes each argument, and how much its ends and what lies beyond differ.
CASES: dict[str, tuple[Callable[..., Any], float]] = {
    "memory_bits": (BuildOptions, 1),
    "record_bits": (BuildOptions, 1),
    "record_code_bytes": (BuildOptions, 1),
    "degree": (BuildOptions, 1),
    "build_list_size": (BuildOptions, 1),
    "alpha": (BuildOptions, 0.001),
    "affinity_percent": (BuildOptions, 1),
    "threads": (BuildOptions, 1),
    "queries_in_flight": (OpenTuning, 1),
    "queue_depth": (OpenTuning, 1),
    "list_size": (search, 1),
    "beam_width": (SearchTuning, 1),
    "burst_max": (SearchTuning, 1),
}
#: Whose ends are not the header's numbers as they are, or that no argument gives (``segments``).
OTHERS = {"k", "dim", "links_kept", "checkpoint_ms", "cache_share_percent", "sigma", "segments"}


def test_every_limit_of_the_header_is_tried() -> None:
    assert set(_limits()) == set(CASES) | OTHERS


def refused(argument: str, call: Callable[..., Any], value: Any) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        call(**{argument: value})
    assert caught.value.argument == argument
    assert argument in str(caught.value)


@pytest.mark.parametrize("argument", list(CASES))
def test_both_sides_of_both_ends(argument: str) -> None:
    call, step = CASES[argument]
    low, high = limit_of(argument)
    call(**{argument: low})
    call(**{argument: high})
    refused(argument, call, low - step)
    refused(argument, call, high + step)
    refused(argument, call, str(high))


def test_ends_that_have_another_unit_or_depend() -> None:
    BuildOptions(checkpoint_s=0.001)
    BuildOptions(checkpoint_s=1e6)
    refused("checkpoint_s", BuildOptions, 0.0009)
    refused("checkpoint_s", BuildOptions, 1e6 + 1)
    OpenTuning(cache_share=0.0)
    OpenTuning(cache_share=0.95)
    refused("cache_share", OpenTuning, -0.001)
    refused("cache_share", OpenTuning, 0.951)
    SearchTuning(sigma=1e-9)
    SearchTuning(sigma=100)
    refused("sigma", SearchTuning, 0)
    refused("sigma", SearchTuning, 100.001)
    BuildOptions(degree=128, links_kept=128)
    BuildOptions(degree=20, links_kept=20)
    BuildOptions(links_kept=0)
    refused("links_kept", lambda links_kept: BuildOptions(degree=20, links_kept=links_kept), 21)
    refused("links_kept", BuildOptions, -1)
    OpenTuning(links_kept=1)
    OpenTuning(links_kept=128)
    refused("links_kept", OpenTuning, 0)
    refused("links_kept", OpenTuning, 129)


def test_k_of_one_search_and_of_several() -> None:
    low, high = _limits()["k"]
    search(k=low)
    search(k=high)
    refused("k", search, low - 1)
    refused("k", search, high + 1)
    low, high = limit_of("k")
    queries = np.zeros((1, 4), np.float32)
    for k in (low, high):
        assert next(page_script(queries, k, 10, [None])).k == min(k, 10)
    refused("k", lambda k: next(page_script(queries, k, 10, [None])), low - 1)
    refused("k", lambda k: next(page_script(queries, k, 10, [None])), high + 1)


def test_dimensions(tmp_path: Path) -> None:
    low, high = limit_of("dim")
    for dim in (low, high):
        rows = np.random.default_rng(dim).standard_normal((20, dim)).astype(np.float32)
        velo.build(tmp_path / str(dim), rows, degree=4, threads=1, calibrate=False).close()
    with pytest.raises(InvalidArgumentError) as caught:
        velo.build(tmp_path / "i", np.zeros((20, high + 1), np.float32), degree=4, threads=1)
    assert caught.value.argument == "dim"
    assert not (tmp_path / "i").exists()


def test_batched_searches_have_their_own_limits() -> None:
    low, high = limit_of("limit")
    assert [check_radius(1.0, low)[1], check_radius(1.0, high)[1]] == [low, high]
    refused("limit", lambda limit: check_radius(1.0, limit), low - 1)
    refused("limit", lambda limit: check_radius(1.0, limit), high + 1)
    most = limit_of("group_hits").high
    refused("group_size", lambda group_size: check_groups("a", group_size, 1, {}), 0)
    refused("group_size", lambda group_size: check_groups("a", group_size, 1, {}), most + 1)
    refused("k", lambda k: check_groups("a", 1, k, {}), limit_of("k").high + 1)


def test_shards(tmp_path: Path) -> None:
    rows = np.zeros((3, 4), np.float32)
    for shards in (0, limit_of("shards").high + 1):
        with pytest.raises(InvalidArgumentError) as caught:
            velo.build_collection(tmp_path / "c", rows, shards=shards)
        assert caught.value.argument == "shards"
    assert not (tmp_path / "c").exists()


def test_threads_of_an_open(tmp_path: Path) -> None:
    for threads in (0, limit_of("threads").high + 1):
        with pytest.raises(InvalidArgumentError) as caught:
            velo.open(tmp_path, threads=threads)
        assert caught.value.argument == "threads"


def test_degrees_to_try() -> None:
    for degree in (limit_of("degree").low - 1, limit_of("degree").high + 1):
        with pytest.raises(InvalidArgumentError) as caught:
            velo.tune(np.zeros((10, 4), np.float32), memory="20%", degrees=[degree])
        assert caught.value.argument == "degrees"


# ---- one set of build options ----


def test_type_checkers_see_every_field() -> None:
    shown = {one.name: one.type for one in BuildOptions.public_fields()}
    typed = get_type_hints(BuildKeywords)
    assert list(typed) == list(shown)
    for name, kind in typed.items():
        names = get_args(kind) if get_origin(kind) is not None else ()
        assert kind == shown[name] or {type(one) for one in names} == {shown[name]}, name


@pytest.mark.parametrize("function", [velo.build, velo.build_collection])
def test_functions_show_every_option_with_its_default(function: Any) -> None:
    parameters = inspect.signature(function).parameters
    for one in BuildOptions.public_fields():
        assert parameters[one.name].default == one.default
        assert parameters[one.name].kind is inspect.Parameter.KEYWORD_ONLY
        assert f"{one.name}" in function.__doc__
    assert all(one.kind is not inspect.Parameter.VAR_KEYWORD for one in parameters.values())


@pytest.mark.parametrize("name", ["dregee", "affinity_percent", "checkpoint_s"])
def test_a_keyword_that_is_no_option(tmp_path: Path, name: str) -> None:
    rows = np.zeros((3, 4), np.float32)
    with pytest.raises(TypeError, match=rf"^build\(\) has no option '{name}'"):
        velo.build(tmp_path / "i", rows, **{name: 1})
    with pytest.raises(TypeError, match=rf"^build_collection\(\) has no option '{name}'"):
        velo.build_collection(tmp_path / "i", rows, shards=1, **{name: 1})
