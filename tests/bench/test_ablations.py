"""``libvelo_bench``: what is taken away is gone, costs what it should, and answers stay right."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench.commands.ladder import steps
from bench.peers.velo import ablations
from velo import _native
from velo.errors import NativeLibraryError

#: Prints, for each set of names, the ids and the mean counters of 100 queries, asked twice.
PROGRAM = """
    import json, sys
    import velo
    from bench.peers.velo import ablations

    path, queries, memory, k, names = *sys.argv[1:4], int(sys.argv[4]), sys.argv[5:]
    queries = velo.formats.open_vectors(queries).read()[:100]
    answers = []
    for each in names:
        ablations.apply(each)
        tuning = velo.OpenTuning(queries_in_flight=1)
        options = {"memory": memory} if memory != "none" else {}
        with velo.open(path, threads=1, plan="links_on_disk", tuning=tuning, **options) as index:
            index.search(queries, k, list_size=max(100, 2 * k))
            found = index.search(queries, k, list_size=max(100, 2 * k))
        means = {name: float(values.mean()) for name, values in found.stats.items()}
        answers.append({"ids": found.ids.tolist(), **means})
    print(json.dumps(answers))
    """


@pytest.fixture(scope="module")
def ask(sample: Any, sample_path: Path) -> Any:
    assert ablations.LIBRARY.is_file(), "python hatch_build.py --bench makes libvelo_bench"
    queries = str(sample.folder / "sample_queries.u8bin")

    def asked(*names: str, memory: str = "none", k: int = 10) -> list[dict[str, Any]]:
        told = [str(sample_path), queries, memory, str(k), *names]
        done = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(PROGRAM), *told],
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
            env=os.environ
            | {
                "VELO_LIBRARY": str(ablations.LIBRARY),
                "PYTHONUNBUFFERED": "",  # what is larger than a pipe holds may be written in part
                "PYTHONPATH": os.pathsep.join(folder for folder in sys.path if folder),
            },
        )
        assert done.returncode == 0, done.stderr
        answers: list[dict[str, Any]] = json.loads(done.stdout)
        return answers

    return asked


def test_each_idea_of_links_on_disk_saves_what_it_should(ask: Any, sample: Any) -> None:
    names = ["", "strict_order next_only", "strict_order", "entries_only"]
    least = "record_only entries_only strict_order next_only"
    own, plain, strict, far, bare = ask(*names, least)
    for answer in (own, plain, strict, far, bare):
        found = [len(set(ids) & set(true)) for ids, true in zip(answer["ids"], sample.truth, strict=False)]
        assert np.mean(found) >= 9.5
    assert bare["reads"] == bare["rounds"]  # one read after the other
    assert bare["reads"] > 1.5 * plain["reads"]  # of a page only one record
    assert far["reads"] > own["reads"]
    # Asking ahead needs something to ask for: ten neighbors lie in so few pages that the order in which
    # reads end decides about rounds, a hundred do not.
    own, plain, strict = ask(*names[:3], k=100)
    assert own["rounds"] < strict["rounds"] < plain["rounds"]


def test_what_the_cache_keeps_and_whom_it_evicts(ask: Any) -> None:
    units = ["cache_unit=record", "", "cache_unit=page"]
    for answer in ask(*units, "cache_policy=static", "cache_policy=lru", memory="30%"):
        assert answer["cache_hits"] > 0


def test_every_step_of_the_ladder_is_known(ask: Any) -> None:
    answers = ask(*{step.without for step in steps()})
    assert len(answers) == len({step.without for step in steps()})


def test_an_unknown_name_is_refused(ask: Any) -> None:
    with pytest.raises(AssertionError, match="libvelo_bench knows no such ablation: 'strict'"):
        ask("strict")


def test_the_shipped_library_has_none_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    path = _native.native().path
    monkeypatch.setenv("VELO_LIBRARY", str(path))
    with pytest.raises(NativeLibraryError, match="is not libvelo_bench"):
        ablations.apply("strict_order")
    assert b"velo_ablate" not in path.read_bytes()
