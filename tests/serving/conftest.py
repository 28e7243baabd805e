"""Real shards for the end-to-end tests."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from velo_serving.protocol.limits import RouterLimits
from velo_serving.protocol.types import Answer, SearchRequest
from velo_serving.routing.local_backend import open_local_backend

#: Rows, dimensions and shards of what `things_served` serves.
THINGS_ROWS, THINGS_DIM, THINGS_SHARDS = 300, 16, 3

#: Read by Ray when it is imported.
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"

#: What Ray Serve asks of pydantic as it is imported.
SERVE_MARK = pytest.mark.filterwarnings("ignore:Using extra keyword arguments:DeprecationWarning")

#: Of tests that start Ray.
RAY_MARKS = [
    pytest.mark.ray,
    # Ray's own: sockets and files that it leaves to the interpreter's end.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning:ray"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    SERVE_MARK,
]

ROWS = 4000
SHARDS = 2

#: API keys of the tests.
READ, ADMIN = "read-key-0123456789", "admin-key-0123456789"

#: For what must be complete however busy the machine is.
PATIENT = RouterLimits(quiet_s=1.0, trial_s=10.0)

#: Long enough that two searches agree to the last id: with a short list an answer may, once in ten thousand,
#: depend on the order in which reads happened to return.
LIST_SIZE = 200


@pytest.fixture(scope="session")
def sharded_path(sample: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Shards over the head of the sample, with its labels; not to be changed."""
    import velo

    return velo.build_collection(
        tmp_path_factory.mktemp("sharded") / "sample.velo",
        sample.base[:ROWS],
        shards=SHARDS,
        metadata=sample.labels.slice(0, ROWS),
        threads=2,
    )


@pytest.fixture(scope="session")
def sharded_queries(sample: Any) -> np.ndarray:
    """Queries that belong to those shards."""
    return sample.queries[:60].astype(np.float32)


@pytest.fixture(scope="session", autouse=True)
def _one_authority(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The default trust store of clients: reading all of it takes longer than most requests."""
    import certifi

    path = tmp_path_factory.mktemp("authority") / "one.pem"
    end = "-----END CERTIFICATE-----\n"
    path.write_text(Path(certifi.where()).read_text().partition(end)[0] + end)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SSL_CERT_FILE", str(path))
        yield


@pytest.fixture(scope="session")
def the_local_ray(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The one Ray of all tests that need no other; it may not run yet."""
    from tests.serving.local_ray import LocalRay  # Ray is imported where a test asks for it

    one = LocalRay(tmp_path_factory.mktemp("node"), {f"disk-{number}": 1 for number in range(SHARDS)})
    yield one
    one.stop()


@pytest.fixture(scope="module")
def local_ray(the_local_ray: Any) -> None:
    """That Ray runs: one node with a resource for each shard's disk, and the label ``disks=here``."""
    the_local_ray.start()


def local_answer(path: Path, request: SearchRequest) -> Answer:
    """What the shards answer when this process opens and merges them, without Ray or HTTP."""

    async def run() -> Answer:
        backend = open_local_backend(path, threads=1)
        await backend.start()
        try:
            return await backend.collection().router.search(request)
        finally:
            await backend.close()

    return asyncio.run(run())


def environment() -> dict[str, str]:
    """The environment of a child that imports this velo."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}


def python(code: str, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run code in a fresh interpreter."""
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        env=environment() | variables,
        check=False,
    )


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run ``velo`` to its end in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "velo", *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        env=environment(),
        check=False,
    )


def invoked(*arguments: str) -> SimpleNamespace:
    """Run ``velo`` in this process: exit code, stdout and stderr."""
    from typer.testing import CliRunner

    from velo.cli.app import app

    done = CliRunner().invoke(app, arguments)
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return SimpleNamespace(returncode=done.exit_code, stdout=done.stdout, stderr=done.stderr)


def until(true: Callable[[], Any], what: str = "the condition", seconds: float = 60.0) -> None:
    """Wait for a condition."""
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, f"not within {seconds:.0f} s: {what}"
        time.sleep(0.02)


def write_keys(path: Path, text: str) -> None:
    """Replace a file by renaming another over it."""
    beside = path.with_suffix(".new")
    beside.write_text(text)
    os.replace(beside, path)


class Served:
    """A ``velo serve`` in a process of its own."""

    def __init__(self, *arguments: str) -> None:
        # A pipe that nothing reads would stop a server that logs more than it holds.
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115 – closed at the end of the server
        self.process = subprocess.Popen(
            [sys.executable, "-m", "velo", "serve", *arguments, "--port", "0", "--json"],
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            env=environment(),
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        try:
            self.url: str = json.loads(line)["url"]
        except ValueError:
            code, told = self._ended()
            raise AssertionError(f"velo serve ended with {code}: {line}{told}") from None

    def stop(self) -> tuple[int, str]:
        """Interrupt it; its exit code and what it wrote to stderr."""
        self.process.terminate()
        return self._ended()

    def kill(self) -> None:
        """End it at once. One that has ended stays as it is."""
        self.process.kill()
        self.process.communicate(timeout=60)
        self._log.close()

    def _ended(self) -> tuple[int, str]:
        rest, _ = self.process.communicate(timeout=60)
        with self._log as log:
            log.seek(0)
            return self.process.returncode, rest + log.read()


@contextlib.contextmanager
def serving(*arguments: str) -> Iterator[Served]:
    """A server that exits with status 0 and without a traceback."""
    served = Served(*arguments, "--threads", "1")
    try:
        yield served
    finally:
        code, told = served.stop()
    assert (code, "Traceback" in told) == (0, False), told


@pytest.fixture(scope="session")
def served_index(sample_path: Path) -> Iterator[Served]:
    """The whole sample, served without Ray."""
    served = Served(str(sample_path), "--threads", "1")
    yield served
    served.stop()


@pytest.fixture(scope="session")
def things_vectors() -> np.ndarray:
    """A few random vectors, those of `things_served`."""
    return np.random.default_rng(23).standard_normal((THINGS_ROWS, THINGS_DIM)).astype(np.float32)


@pytest.fixture(scope="session")
def things_path(things_vectors: np.ndarray, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The collection `things`; not to be changed."""
    import velo

    rows = range(THINGS_ROWS)
    table = pa.table({"color": [f"c{row % 5}" for row in rows], "size": rows, "vector": rows})
    return velo.build_collection(
        tmp_path_factory.mktemp("things") / "things.velo",
        things_vectors,
        shards=THINGS_SHARDS,
        metadata=table,
        store_vectors=True,
        threads=1,
    )


@pytest.fixture(scope="session")
def things_served(things_vectors: np.ndarray, things_path: Path) -> Iterator[Served]:
    """`things` in three processes; `names`, whose ids are words; `codes`, which stores no vectors."""
    import velo

    folder = things_path.parent
    few, names = things_vectors[:20], [f"n{row}" for row in range(20)]
    velo.build(folder / "names.velo", few, ids=names, store_vectors=True, threads=1).close()
    velo.build(folder / "codes.velo", few, threads=1, store_vectors=False).close()
    served = Served(*(str(folder / f"{name}.velo") for name in ("things", "names", "codes")), "--processes")
    yield served
    served.stop()


def files_of(pid: int) -> list[str]:
    """What a process has open."""
    found = []
    for one in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):  # it may be closed meanwhile
            found.append(os.readlink(one))
    return found


def sockets_of(pid: int) -> int:
    """How many sockets a process has open."""
    return sum(name.startswith("socket:") for name in files_of(pid))


def children(server: Served, word: bytes) -> list[int]:
    """Processes that a server started, by a word of their command lines."""
    found = []
    for process in Path("/proc").iterdir():
        try:
            parent = int((process / "stat").read_text().rpartition(")")[2].split()[1])
            if parent == server.process.pid and word in (process / "cmdline").read_bytes():
                found.append(int(process.name))
        except (OSError, IndexError, ValueError):
            continue  # no process, or one that just ended
    return found
