"""Uses the folders named on its standard input in every way, and answers a line of JSON for each.

It runs apart, so that a signal or a hang ends it and not its parent.
"""

from __future__ import annotations

import gc
import json
import os
import random
import resource
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator
from typing import Any, Final

import numpy as np

import velo
from velo.errors import VeloError

#: Address space of the process: what a folder of some 100 kB asks for beyond it is refused, not got.
_ADDRESS_SPACE: Final = 8 << 30

_PLANS: Final = ("auto", "links_in_memory", "links_on_disk", "walk")
_FILTER_PLANS: Final = ("auto", "late", "gate", "scan")


def filters(index: velo.Index, draw: random.Random) -> Iterator[Any]:
    """A condition on every column, for whatever type the index says it has."""
    for name in index.info()["columns"]:
        column = velo.col(name)
        yield column.is_null()
        for value in (3, "green", 0.5, True, ["red", "blue"]):
            yield column.isin(value) if isinstance(value, list) else column == value
        yield column >= draw.choice((1, -5, "m"))
        yield column.contains_any(["red"])
        yield column.contains_any([draw.randrange(20)])


def check(result: Any, n: int) -> None:
    """What holds for every answer, whatever the files hold."""
    distances = np.asarray(result.distances)
    ids = np.asarray(result.ids)
    if ids.shape != distances.shape:
        raise AssertionError(f"ids of shape {ids.shape}, distances of {distances.shape}")
    if np.isnan(distances).any():
        raise AssertionError("a distance is NaN")
    counts = np.asarray(result.counts)
    if (counts > min(n, distances.shape[-1])).any():
        raise AssertionError(f"counts {counts} of {distances.shape[-1]}")
    finite = np.clip(distances, -3.4e38, 3.4e38)  # a damaged center may make a distance infinite, either way
    if (np.diff(finite, axis=-1) < 0).any():
        raise AssertionError("distances out of order")


def uses(path: str, seed: int) -> Iterator[Callable[[], Any]]:
    """Everything that can be done with an index, one thing after another."""
    draw = random.Random(seed)
    yield lambda: velo.verify(path)
    plans = (*_PLANS, "walk", "walk") if os.path.exists(os.path.join(path, "page_codes.bin")) else _PLANS
    plan = draw.choice(plans)
    memory: Any = draw.choice((None, None, None, "3%", "60%", "90%"))
    keep = draw.choice((None, None, 8, 12))
    opened: list[velo.Index] = []

    def open_it() -> None:
        tuning = velo.OpenTuning(links_kept=keep) if keep else None
        opened.append(velo.open(path, threads=1, io="threads", plan=plan, memory=memory, tuning=tuning))

    yield open_it
    if not opened:
        return
    index = opened[0]
    random_ = np.random.default_rng(seed)
    queries = random_.standard_normal((4, index.dim)).astype(np.float32) if index.dim <= 8192 else None
    if queries is None:
        yield index.close
        return
    n = index.n
    yield lambda: check(index.search(queries, k=10), n)
    yield lambda: check(index.search(queries[0], k=min(n, 200), list_size=200), n)
    yield lambda: check(index.search(queries, k=5, recall=0.99, return_metadata=True), n)
    yield lambda: index.explain(queries[0], 5)
    yield lambda: index.info()
    yield lambda: index.range_search(queries[0], 30.0, limit=200)
    for filter_plan in _FILTER_PLANS:
        tuning = velo.SearchTuning(filter_plan=filter_plan)
        mask = random_.random(n) < 0.3
        yield lambda mask=mask, tuning=tuning: check(
            index.search(queries, k=10, filter=mask, tuning=tuning), n
        )  # type: ignore[misc]
    conditions: list[Any] = []
    yield lambda: conditions.extend(filters(index, draw))
    for condition in conditions:
        tuning = velo.SearchTuning(filter_plan=draw.choice(_FILTER_PLANS))
        metadata = draw.choice((None, True))
        yield (
            lambda condition=condition, tuning=tuning, metadata=metadata: check(  # type: ignore[misc]
                index.search(queries[:2], k=5, filter=condition, tuning=tuning, return_metadata=metadata), n
            )
        )
    both = conditions[1:40:7]
    if len(both) > 1:
        yield lambda: check(index.search(queries, k=3, filter=(both[0] | both[1]) & ~both[-1]), n)
    for name in index.info()["columns"][:4]:
        yield lambda name=name: index.search(queries[0], k=3, group_by=name)  # type: ignore[misc]
    ids: list[Any] = []
    yield lambda: ids.extend(index.search(queries[0], k=8).ids)
    if ids:
        yield lambda: index.get_vectors(ids)
        yield lambda: index.search(queries[0], filter=[one for one in ids if one is not None])
    yield index.verify
    yield index.close


def use(path: str, seed: int) -> dict[str, Any]:
    """Do everything; errors of velo are answers, all others are findings."""
    errors: list[str] = []
    findings: list[str] = []
    done = 0
    steps = uses(path, seed)
    for step in steps:
        try:
            step()
            done += 1
        except VeloError as error:
            errors.append(f"{type(error).__name__}: {error}"[:300])
        except BaseException:
            findings.append(traceback.format_exc()[-2000:])
    return {"done": done, "errors": errors, "findings": findings}


def main() -> None:
    """Answer until the input ends."""
    resource.setrlimit(resource.RLIMIT_AS, (_ADDRESS_SPACE, _ADDRESS_SPACE))
    warnings.simplefilter("error")
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is no answer
    for line in sys.stdin:
        told = json.loads(line)
        # Warm what opens files of its own, so that descriptors can be counted.
        before = len(os.listdir("/proc/self/fd"))
        answer = use(told["path"], told["seed"])
        gc.collect()
        answer["descriptors"] = len(os.listdir("/proc/self/fd")) - before
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
