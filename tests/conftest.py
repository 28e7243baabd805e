"""What all tests share: seeds that are printed, the sample of real descriptors and an index over it."""

from __future__ import annotations

import asyncio
import inspect
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import settings

from tests import child, long

ROOT = Path(__file__).resolve().parent.parent

# Children of the tests compile each module once, not at every start.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# Haystack would report each run to its makers.
os.environ["HAYSTACK_TELEMETRY_ENABLED"] = "False"

# What a shell starts in its background ignores interrupts, and so would the children that tests interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Other examples in every run, also where a CI's own profile would repeat them.
settings.register_profile("velo", deadline=None, derandomize=False, print_blob=True)
settings.load_profile("velo")


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--long`, also for one test by its name."""
    parser.addoption("--long", action="store_true", help="all tests, at full counts (docs/HACKING.md)")


def pytest_configure(config: pytest.Config) -> None:
    """Tests ask for their counts as they are read."""
    long.long_run = config.getoption("--long")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what a short run leaves to others."""
    if long.long_run:
        return
    left_out = [item for item in items if item.get_closest_marker("long")]
    items[:] = [item for item in items if not item.get_closest_marker("long")]
    config.hook.pytest_deselected(items=left_out)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test that is a coroutine in an event loop of its own."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = pyfuncitem._fixtureinfo.argnames
    asyncio.run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in names}))
    return True


@pytest.fixture(scope="session")
def root() -> Path:
    """The checkout."""
    return ROOT


@pytest.fixture
def random(record_property) -> np.random.Generator:
    """A seeded generator; VELO_TEST_SEED repeats a run, and the seed stands in the report of a failure."""
    seed = int(os.environ.get("VELO_TEST_SEED", "0")) or int.from_bytes(os.urandom(4), "little")
    record_property("seed", seed)
    print(f"VELO_TEST_SEED={seed}")
    return np.random.default_rng(seed)


@pytest.fixture(scope="session")
def run_python() -> Callable[..., subprocess.CompletedProcess[str]]:
    """A program in a fresh interpreter that finds this velo."""

    return child.run


@dataclass(frozen=True)
class Sample:
    """The sample in ``examples/data``, in memory."""

    folder: Path
    base: np.ndarray
    queries: np.ndarray
    labels: pa.Table
    asked: pa.Table
    truth: np.ndarray
    truth_distances: np.ndarray
    truth_filtered: np.ndarray


@pytest.fixture(scope="session")
def sample() -> Sample:
    """20,000 real descriptors, 200 queries, labels, exact truth."""
    from velo.formats import open_vectors, read_truth

    folder = ROOT / "examples" / "data"
    truth = read_truth(folder / "sample_truth.bin")
    return Sample(
        folder=folder,
        base=open_vectors(folder / "sample.u8bin").read(),
        queries=open_vectors(folder / "sample_queries.u8bin").read(),
        labels=pq.read_table(folder / "sample_labels.parquet"),
        asked=pq.read_table(folder / "sample_query_filters.parquet"),
        truth=truth.ids,
        truth_distances=truth.distances,
        truth_filtered=read_truth(folder / "sample_truth_uniform10.bin").ids,
    )


@pytest.fixture(scope="session")
def sample_path(sample: Sample, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An index over the sample with its labels and its vectors; not to be changed.

    Built with one thread, it is the same in each run, and so are the recalls of searches over it.
    """
    import velo

    path = tmp_path_factory.mktemp("sample") / "sample.velo"
    velo.build(
        path, sample.folder / "sample.u8bin", metadata=sample.labels, store_vectors=True, threads=1
    ).close()
    return path


@pytest.fixture
def sample_index(sample_path: Path) -> Iterator[object]:
    """That index, open at 20 %."""
    import velo

    with velo.open(sample_path, memory="20%", threads=2) as index:
        yield index
