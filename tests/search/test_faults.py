"""A device that fails on purpose, behind the same ABI: answers are right or errors say what failed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from tests.rungs import LINKS, budget_of

LATE, REORDERED, SHORT, EIO_ONCE, EIO_FOREVER, AGAIN, BIT_FLIP, WRONG_PAGE = (1 << bit for bit in range(8))
SWARM = 1 << 31
EVERYTHING = 0xFF | SWARM

PROGRAM = """
    import asyncio, json, sys
    import numpy as np
    import velo
    from velo.formats import open_vectors
    path, queries, seed, faults, how, exact, memory = sys.argv[1:]
    last = {"False": {}, "True": {"exact": True}, "every": {"recall": 1.0}}[exact]
    queries = open_vectors(queries).read()[:80]
    tuning = velo.OpenTuning(simulated_seed=int(seed), simulated_faults=int(faults))

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
    with velo.open(path, memory=memory, threads=1, tuning=tuning) as index:
        assert index.info()["device"]["name"] == "simulated"
        answers = list(blocking(index)) if how == "blocking" else asyncio.run(asynchronous(index))
    print(json.dumps(answers))
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
    seed: int,
    faults: int,
    how: str,
    exact: bool | str,
    memory: str = "20%",
) -> Any:
    asked = [path, queries, str(seed), str(faults), how, str(exact), memory]
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(PROGRAM), *asked],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        env=os.environ
        | {
            "VELO_LIBRARY": str(library),
            "PYTHONPATH": os.pathsep.join(folder for folder in sys.path if folder),
        },
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def ask(simulated: Path, sample: Any, sample_path: Path) -> Any:
    def asked(seed: int, faults: int, how: str = "blocking", exact: bool | str = False, **more: str) -> Any:
        queries = sample.folder / "sample_queries.u8bin"
        return answers(simulated, sample_path, queries, seed, faults, how, exact, **more)

    return asked


@pytest.fixture(scope="module")
def expected(ask: Any) -> Any:
    return ask(1, 0)


@pytest.mark.parametrize(
    "faults", [LATE, SHORT, AGAIN, EIO_ONCE, WRONG_PAGE, LATE | SHORT | AGAIN | REORDERED | EIO_ONCE]
)
def test_what_a_device_may_do_changes_no_answer(faults: int, ask: Any, expected: Any) -> None:
    assert [sorted(one["ids"]) for one in ask(7, faults)] == [sorted(one["ids"]) for one in expected]


@pytest.mark.parametrize(
    ("faults", "kind"),
    [(EIO_FOREVER, "DeviceError"), (BIT_FLIP, "CorruptIndexError")],
)
@pytest.mark.parametrize("how", ["blocking", "asynchronous"])
def test_what_it_may_not_do_is_an_error_that_names_the_page(
    faults: int, kind: str, how: str, ask: Any, expected: Any
) -> None:
    found = ask(3, faults, how)
    failed = [one for one in found if "error" in one]
    assert failed
    assert len(failed) < len(found)
    for one in failed:
        assert (one["error"], one["file"], one["argument"]) == (kind, "pages.bin", None)
        assert f"page {one['page']} of pages.bin" in one["message"]
    for one, right in zip(found, expected, strict=True):
        assert "error" in one or one["ids"] == right["ids"]


@pytest.mark.parametrize("how", ["blocking", "asynchronous"])
def test_faults_while_vectors_are_read(how: str, ask: Any) -> None:
    right = ask(1, 0, exact=True)
    files = set()
    for faults, kind in ((EIO_FOREVER, "DeviceError"), (BIT_FLIP | SHORT, "CorruptIndexError")):
        found = ask(4, faults, how, exact=True)
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
def test_faults_while_every_vector_is_read(how: str, ask: Any) -> None:
    right = ask(1, 0, exact="every")
    failures = 0
    for seed, faults in ((4, BIT_FLIP | SHORT), (5, EIO_FOREVER), (6, LATE | SHORT | AGAIN | REORDERED)):
        found = ask(seed, faults, how, exact="every")
        for one, expected in zip(found, right, strict=True):
            if "error" in one:
                failures += 1
                assert one["file"] == "vectors.bin", seed
                assert seed != 6
            else:
                assert one == expected, seed
    assert failures > 0


def test_one_seed_is_one_world(ask: Any) -> None:
    assert ask(5, EVERYTHING) == ask(5, EVERYTHING)


# With links on disk an answer goes by the order in which pages come.
@pytest.mark.parametrize("links", [links for links in LINKS if links])
def test_whatever_goes_wrong_no_answer_is_wrong(links: int, random: Any, ask: Any, sample_path: Path) -> None:
    seed = int(random.integers(1 << 32))
    print(f"simulated_seed={seed}")
    memory = str(budget_of(sample_path, links))
    expected = ask(1, 0, memory=memory)
    for one, right in zip(ask(seed, EVERYTHING, "asynchronous", memory=memory), expected, strict=True):
        if "error" in one:
            assert one["error"] in ("DeviceError", "CorruptIndexError")
        else:
            assert one["ids"] == right["ids"]
