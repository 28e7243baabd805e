"""A device that fails on purpose, behind the same ABI: answers are right or errors say what failed."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import velo
from tests import child
from tests.rungs import LINKS, PAGES, PAGES_LEAST, budget_of
from velo.testing import brute_force

LATE, REORDERED, SHORT, EIO_ONCE, EIO_FOREVER, AGAIN, BIT_FLIP, WRONG_PAGE = (1 << bit for bit in range(8))
SWARM = 1 << 31
EVERYTHING = 0xFF | SWARM

PROGRAM = """
    import asyncio, json, sys
    import numpy as np
    import velo
    from velo.formats import open_vectors
    path, queries, worlds, how, exact, memory = sys.argv[1:]
    last = {"False": {}, "True": {"exact": True}, "every": {"recall": 1.0}}[exact]
    queries = open_vectors(queries).read()[: 15 if exact == "every" else 80]

    def told(found):
        if isinstance(found, velo.SearchResult):
            return {"ids": found.ids.tolist(), "distances": found.distances.tolist()}
        if not isinstance(found, velo.VeloError):
            raise found
        places = {"page": found.page, "file": found.file, "argument": found.argument}
        return {"error": type(found).__name__, "message": found.message, **places}

    def blocking(index):
        for query in queries:
            try:
                yield told(index.search(query, 10, timeout_s=60, **last))
            except velo.VeloError as error:
                yield told(error)

    async def asynchronous(index):
        searches = (index.search_async(query, 10, timeout_s=60, **last) for query in queries)
        return [told(found) for found in await asyncio.gather(*searches, return_exceptions=True)]

    memory = int(memory) if memory.isdigit() else memory
    for seed, faults in json.loads(worlds):
        tuning = velo.OpenTuning(simulated_seed=seed, simulated_faults=faults)
        with velo.open(path, memory=memory, threads=1, tuning=tuning) as index:
            assert index.info()["device"]["name"] == "simulated"
            found = list(blocking(index)) if how == "blocking" else asyncio.run(asynchronous(index))
        print(json.dumps(found))
    """


@pytest.fixture(scope="module")
def simulated(root: Path) -> Path:
    named = os.environ.get("VELO_SIM_LIBRARY")
    library = Path(named) if named else root / "zig-out" / "lib" / "libvelo_sim.so"
    assert library.is_file(), f"{library} is missing; python hatch_build.py --sim makes it"
    return library


def answers(
    library: Path,
    path: Path,
    queries: Path,
    worlds: list[tuple[int, int]],
    how: str,
    exact: bool | str,
    memory: str = "20%",
) -> list[Any]:
    """The answers in each world: a seed and what goes wrong."""
    env = child.environment() | {"VELO_LIBRARY": str(library)}
    done = child.run(PROGRAM, path, queries, json.dumps(worlds), how, exact, memory, env=env)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.fixture(scope="module")
def ask(simulated: Path, sample: Any, sample_path: Path) -> Any:
    def asked(
        worlds: list[tuple[int, int]], how: str = "blocking", exact: bool | str = False, **more: str
    ) -> list[Any]:
        queries = sample.folder / "sample_queries.u8bin"
        return answers(simulated, sample_path, queries, worlds, how, exact, **more)

    return asked


BENIGN = [LATE, SHORT, AGAIN, EIO_ONCE, WRONG_PAGE, LATE | SHORT | AGAIN | REORDERED | EIO_ONCE]
HARMFUL = {EIO_FOREVER: "DeviceError", BIT_FLIP: "CorruptIndexError"}


def test_faults_of_a_device_change_no_answer_or_name_the_page(ask: Any) -> None:
    """A device may be late, short or wrong once; a page that stays unreadable or damaged is an error."""
    worlds = [(1, 0), *((7, faults) for faults in BENIGN), *((3, faults) for faults in HARMFUL)]
    right, *others = ask([*worlds, (5, EVERYTHING), (5, EVERYTHING)])
    for faults, found in zip(BENIGN, others, strict=False):
        assert [sorted(one["ids"]) for one in found] == [sorted(one["ids"]) for one in right], faults
    errors_named_in(others[len(BENIGN) : -2], right)
    assert others[-2] == others[-1], "a seed is one world"
    errors_named_in(ask([(3, faults) for faults in HARMFUL], "asynchronous"), right)


def errors_named_in(worlds: list[Any], right: Any) -> None:
    for kind, found in zip(HARMFUL.values(), worlds, strict=True):
        failed = [one for one in found if "error" in one]
        assert failed
        assert len(failed) < len(found)
        for one in failed:
            assert (one["error"], one["file"], one["argument"]) == (kind, "pages.bin", None)
            assert f"page {one['page']} of pages.bin" in one["message"]
        for one, expected in zip(found, right, strict=True):
            assert "error" in one or one["ids"] == expected["ids"]


@pytest.mark.parametrize("how", ["blocking", "asynchronous"])
def test_faults_while_vectors_are_read_name_the_file_and_the_page(how: str, ask: Any) -> None:
    files = set()
    right, *others = ask([(1, 0), (4, EIO_FOREVER), (4, BIT_FLIP | SHORT)], how, exact=True)
    for found, kind in zip(others, ("DeviceError", "CorruptIndexError"), strict=True):
        failed = [one for one in found if "error" in one]
        assert len(failed) < len(found)
        for one in failed:
            assert one["error"] == kind
            assert f"page {one['page']} of {one['file']}" in one["message"]
            files.add(one["file"])
        for one, expected in zip(found, right, strict=True):
            assert "error" in one or one == expected
    assert files == {"pages.bin", "vectors.bin"}


@pytest.mark.parametrize("how", ["blocking", "asynchronous"])
def test_faults_while_every_vector_is_read_are_errors_of_that_file(how: str, ask: Any) -> None:
    worlds = [(4, BIT_FLIP | SHORT), (5, EIO_FOREVER), (6, LATE | SHORT | AGAIN | REORDERED)]
    right, *others = ask([(1, 0), *worlds], how, exact="every")
    failures = 0
    for (seed, _), found in zip(worlds, others, strict=True):
        for one, expected in zip(found, right, strict=True):
            if "error" in one:
                failures += 1
                assert one["file"] == "vectors.bin", seed
                assert seed != 6
            else:
                assert one == expected, seed
    assert failures > 0


# With links on disk an answer goes by the order in which pages come.
@pytest.mark.parametrize(
    "links",
    [
        pytest.param(
            links,
            marks=[]
            if number == 0
            else [
                pytest.mark.long(
                    guarded_by="tests/search/test_faults.py::test_whatever_goes_wrong_no_answer_is_wrong"
                )
            ],
        )
        for number, links in enumerate(links for links in LINKS if links)
    ],
)
def test_whatever_goes_wrong_no_answer_is_wrong(links: int, random: Any, ask: Any, sample_path: Path) -> None:
    seed = int(random.integers(1 << 32))
    print(f"simulated_seed={seed}")
    memory = str(budget_of(sample_path, links))
    expected, found = ask([(1, 0), (seed, EVERYTHING)], "asynchronous", memory=memory)
    for one, right in zip(found, expected, strict=True):
        if "error" in one:
            assert one["error"] in ("DeviceError", "CorruptIndexError")
        else:
            assert one["ids"] == right["ids"]


def test_a_walk_over_a_failing_device_finds_the_nearest_or_names_the_page(
    simulated: Path, sample: Any, tmp_path: Path, random: Any
) -> None:
    """Its answer depends on the order of arrivals, so recall and distances are compared instead of ids."""
    rows, queries = sample.base[:4_000], sample.queries[:80]
    build: dict[str, Any] = {"page_codes": True, "page_links": False, "store_vectors": True}
    velo.build(tmp_path / "i", rows, calibrate=False, threads=2, **build).close()
    seed = int(random.integers(1 << 32))
    print(f"simulated_seed={seed}")
    benign = LATE | SHORT | AGAIN | REORDERED
    # A query repeats eight failed reads in all, and a walk of a hundred pages may meet more.
    harmful = (EIO_ONCE, benign | EIO_ONCE, EVERYTHING, *HARMFUL)
    worlds = [(1, 0), (seed, benign), *((seed, faults) for faults in harmful)]
    file = sample.folder / "sample_queries.u8bin"
    truth = brute_force(rows, queries, 10).ids
    for links, how in ((PAGES, "asynchronous"), (PAGES_LEAST, "blocking")):
        memory = str(budget_of(tmp_path / "i", links))
        found = answers(simulated, tmp_path / "i", file, worlds, how, exact=True, memory=memory)
        for number, world in enumerate(found):
            answered = [(one, place) for place, one in enumerate(world) if "error" not in one]
            assert len(answered) == len(world) or number > 1
            for one in world:
                if "error" in one:
                    assert one["error"] in ("DeviceError", "CorruptIndexError")
                    assert f"page {one['page']} of {one['file']}" in one["message"]
            for one, place in answered:
                differences = rows[one["ids"]].astype(np.float64) - queries[place]
                assert one["distances"] == (differences**2).sum(1).tolist()
            shares = [len(set(one["ids"]) & set(truth[place].tolist())) / 10 for one, place in answered]
            assert (len(shares) < 20 and number > 1) or np.mean(shares) > 0.9  # else most may fail
