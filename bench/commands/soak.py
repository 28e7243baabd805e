"""``bench soak``: reads and writes while processes are killed and stopped and builds are exchanged."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

import velo
from bench.commands import soak_page
from bench.commands.soak_events import ANNOUNCED, Events, Window, children_of
from bench.commands.soak_load import FIRST_NEW_ID, Build, Call, Ledger, Reader, Writer, stamps_of
from bench.commands.soak_page import Sample
from bench.harness import pages
from bench.harness.curves import Row
from bench.harness.machine import describe
from velo_serving import Client

DIM = 32
REPLICAS = 2
NAME = "soak"

#: Limits of a router that takes no shard for hung which only waits for a processor.
PATIENT = {"quiet_s": 1.0, "trial_s": 10.0}

_SERVER = """
import json, sys
from velo_serving import RouterLimits
from velo_serving import serve_local

path, options, limits = sys.argv[1], json.loads(sys.argv[2]), RouterLimits(**json.loads(sys.argv[3]))
serve_local(path, **options, limits=limits, on_ready=lambda url: print(url, flush=True))
"""

#: Callers wait this long: the server itself has deadlines that end sooner.
PATIENCE_S = 180.0

#: Between two looks at processes.
SAMPLE_S = 0.5

#: Flat figures: the last quarter's median exceeds the second's by no more than a share and an amount.
FLAT = (
    ("memory in MiB is", "memory_bytes", 2**20, 0.10, 32 << 20),
    ("descriptors are", "descriptors", 1, 0.05, 8),
)

#: The share of the rows, searched for by their own vectors, that must be found.
FOUND_SHARE = 0.98


@dataclass(frozen=True)
class Plan:
    """Duration and load. Each event happens at least once, with ``rest_s`` between two; ``rows`` are of each
    build. ``patient`` gives shards ten seconds to show that they do not hang, for a machine with other work.
    """

    minutes: float = 30.0
    rest_s: float = 6.0
    rows: int = 20_000
    shards: int = 3
    workers: int = 2
    readers: int = 4
    writers: int = 2
    seed: int = 17
    patient: bool = False


@dataclass(frozen=True)
class Verdict:
    """A condition, whether it holds, and the figures."""

    what: str
    holds: bool
    told: str


def run(plan: Plan, *, out: Path, name: str, work: Path | None = None) -> list[Verdict]:
    """Serve, ask, write, kill, stop and publish; write ``soak-NAME.md``, ``.jsonl`` and ``.png``.

    Builds are kept in a temporary folder of ``work`` while it runs.
    """
    print(f"soak: seed {plan.seed}, {plan.minutes:g} minutes", flush=True)
    library = pages.library()
    with tempfile.TemporaryDirectory(prefix="velo-soak-", dir=work) as folder:
        scene = _Scene(plan, Path(folder))
        scene.play()
        rows = scene.record()
    rows[0]["library"] = library  # beside the machine
    picture = soak_page.picture_of(scene.ledger.calls, scene.windows, scene.samples)
    print(soak_page.write(out, f"soak-{name}", rows, picture))
    return scene.verdicts


class _Scene:
    """One soak, from the first build to the last verdict."""

    def __init__(self, plan: Plan, folder: Path) -> None:
        self.plan = plan
        self.ledger = Ledger()
        self.windows: list[Window] = []
        self.samples: list[Sample] = []
        self.verdicts: list[Verdict] = []
        self._folder = folder
        self._log = folder / "server.log"
        self._keys = {"read": secrets.token_hex(16), "admin": secrets.token_hex(16)}

    def play(self) -> None:
        builds = self._build()
        keys = self._folder / "keys.txt"
        keys.write_text("".join(f"{kind} {key}\n" for kind, key in self._keys.items()))
        keys.chmod(0o600)
        with self._served(builds[0], keys) as (server, url):
            self.ledger.started = time.monotonic()

            def connect() -> Client:
                return Client(
                    url, collection=NAME, api_key=self._keys["admin"], retries=0, timeout_s=PATIENCE_S
                )

            plan = self.plan
            shape = (plan.shards, REPLICAS, plan.workers)
            events = Events(server.pid, self.ledger, connect, builds, *shape, plan.seed)
            self.windows = events.windows
            events.recover("the start")
            readers = [
                Reader(number, self.ledger, connect, builds, self.plan.seed + number)
                for number in range(self.plan.readers)
            ]
            writers = [
                Writer(number, self.ledger, connect, DIM, self.plan.seed + 100 + number)
                for number in range(self.plan.writers)
            ]
            watch = threading.Thread(target=self._watch, args=(server.pid,), daemon=True)
            for one in (*readers, *writers, watch):
                one.start()
            fault = None
            try:
                self._happen(events)
            except (TimeoutError, velo.VeloError) as error:
                fault = error
            self.ledger.over.set()
            for one in (*readers, *writers, watch):
                one.join()
            self._judge_load(fault, readers, writers)
            if fault is None:
                self._judge_rows(events, connect, builds)
            pids = [server.pid, *children_of(server.pid, "velo_serving.hosting.gateway_process")]
            pids += children_of(server.pid, "velo_serving.shard.process")
        left = [pid for pid in pids if Path(f"/proc/{pid}").exists()]
        told = self._log.read_text()
        clean = server.returncode == 0 and not left and "Traceback" not in told
        figures = f"code {server.returncode}, {len(left)} left, log of {len(told)} bytes"
        what = "the server ends with code 0, leaves no process, and its log has no traceback"
        self._verdict(what, clean, figures + ("" if clean else f":\n{told[-4000:]}"))

    def record(self) -> list[Row]:
        """The rows of the page: the plan, verdicts, and calls by event."""
        end_s = max((one.at_s + one.took_s for one in self.ledger.calls), default=0.0)
        verdicts = [
            {"what": "verdict", "line": v.what, "holds": v.holds, "told": v.told} for v in self.verdicts
        ]
        return [
            {"what": "machine", **describe(self._folder)},
            {"what": "plan", **asdict(self.plan), "took_s": end_s},
            *verdicts,
            *soak_page.rows_of(self.ledger.calls, self.windows),
        ]

    def _build(self) -> tuple[Build, Build]:
        made: list[Build] = []
        for name in ("a", "b"):
            rows, first = self.plan.rows, len(made) * self.plan.rows
            assert first + rows <= FIRST_NEW_ID
            vectors = (
                np.random.default_rng([self.plan.seed, first]).standard_normal((rows, DIM)).astype(np.float32)
            )
            ids = np.arange(first, first + rows)
            columns = {"stamp": np.full(rows, -1, np.int64), "bucket": (ids % 10).astype(np.int64)}
            path = self._folder / name / f"{NAME}.velo"
            path.parent.mkdir()
            velo.build_collection(
                path, vectors, shards=self.plan.shards, ids=ids, metadata=columns, threads=2
            )
            made.append(Build(name, str(path), vectors, first))
        return made[0], made[1]

    @contextmanager
    def _served(self, build: Build, keys: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
        options = {"port": 0, "threads": 1, "writable": True, "durability": "process", "api_keys": str(keys)}
        options |= {"replicas": REPLICAS, "workers": self.plan.workers}
        limits = PATIENT if self.plan.patient else {}
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        with self._log.open("w") as log:
            server = subprocess.Popen(
                [sys.executable, "-c", _SERVER, build.path, json.dumps(options), json.dumps(limits)],
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=environment,
            )
        try:
            assert server.stdout is not None
            line = server.stdout.readline()
            if not line:
                raise RuntimeError(f"the server does not start: {self._log.read_text()}")
            yield server, line.strip()
            server.terminate()
            server.wait(timeout=60)
        finally:
            server.kill()
            server.communicate()

    def _happen(self, events: Events) -> None:
        """Every event once, in an order of chance, again and again."""
        draw = np.random.default_rng(self.plan.seed)
        end_s, kinds = self.plan.minutes * 60, list(ANNOUNCED)
        left: list[str] = []
        time.sleep(self.plan.rest_s)
        while self.ledger.now() < end_s or len({one.what for one in events.windows}) < len(kinds):
            left = left or [kinds[place] for place in draw.permutation(len(kinds))]
            window = events.run(left.pop())
            took_s = window.recovered_s - window.start_s
            print(f"soak: {window.start_s:6.1f} s: {window.what}, well after {took_s:.1f} s", flush=True)
            time.sleep(self.plan.rest_s)

    def _watch(self, server: int) -> None:
        while not self.ledger.over.wait(SAMPLE_S):
            kinds = {
                "parent": [server],
                "gateways": children_of(server, "velo_serving.hosting.gateway_process"),
                "shards": children_of(server, "velo_serving.shard.process"),
            }
            for who, pids in kinds.items():
                seen = [one for one in map(_memory_and_descriptors, pids) if one is not None]
                if seen:
                    memory, descriptors = (sum(each) for each in zip(*seen, strict=True))
                    self.samples.append(Sample(self.ledger.now(), who, len(seen), memory, descriptors))

    def _verdict(self, what: str, holds: bool, told: str) -> None:
        self.verdicts.append(Verdict(what, holds, told))
        print(f"soak: {'holds' if holds else 'DOES NOT HOLD'}: {what}: {told}", flush=True)

    def _judge_load(
        self, fault: BaseException | None, readers: Sequence[Reader], writers: Sequence[Writer]
    ) -> None:
        self._verdict(
            "after each event all is well again",
            fault is None,
            f"{len(self.windows)} events" if fault is None else str(fault),
        )
        ended = [f"{one.name}: {one.fault!r}" for one in (*readers, *writers) if one.fault is not None]
        bad = unannounced(self.ledger.calls, self.windows)
        kinds = Counter(f"{call.kind} {call.what}: {call.outcome}" for call in bad)
        told = "; ".join([*ended, *(f"{count} × {kind}" for kind, count in kinds.most_common(10))])
        if bad:
            told += f"; at {', '.join(f'{call.at_s:.1f} s' for call in bad[:20])}"
        announced = sum(bool(call.outcome) for call in self.ledger.calls) - len(bad)
        self._verdict(
            "no error but those announced",
            not bad and not ended,
            told or f"{len(self.ledger.calls):,} calls, {announced:,} errors that were announced",
        )
        looked, found = sum(one.looked for one in readers), sum(one.found for one in readers)
        self._verdict(
            f"of the rows that were searched for by their own vectors {FOUND_SHARE:.0%} were found",
            looked > 0 and found >= FOUND_SHARE * looked,
            f"{found:,} of {looked:,}",
        )
        rows = sum(one.looked for one in writers)
        self._verdict(
            "rows that were written were looked at while it went on",
            rows > 0,
            f"{rows:,} rows; {sum(one.repeated for one in writers):,} writes were sent again",
        )
        for who in ("parent", "gateways", "shards"):
            self._judge_flat(who)

    def _judge_flat(self, who: str) -> None:
        quiet = quiet_samples(self.samples, self.windows, who)
        end_s = max((one.at_s for one in self.samples), default=0.0)
        early = [one for one in quiet if end_s / 4 <= one.at_s < end_s / 2]
        late = [one for one in quiet if one.at_s >= 3 * end_s / 4]
        for what, key, unit, share, slack in FLAT:
            if not early or not late:
                self._verdict(f"{who}: {what} flat", False, "too few quiet moments to say")
                continue
            first, last = (float(np.median([getattr(one, key) for one in some])) for some in (early, late))
            told = f"{first / unit:,.0f} in the second quarter, {last / unit:,.0f} in the last"
            self._verdict(f"{who}: {what} flat", last <= first * (1 + share) + slack, told)

    def _judge_rows(self, events: Events, connect: Callable[[], Client], builds: tuple[Build, Build]) -> None:
        """Every row of both builds is what was last acknowledged, and no id is there twice."""
        for turn in range(2):
            time.sleep(1.0)  # replicas see the last write
            name = self.ledger.serving[0]
            build = next(one for one in builds if one.name == name)
            with connect() as client:
                pages = [client.rows({"stamp": {"$gte": 0}}, limit=1000, columns=["stamp"])]
                while len(pages[-1]) == 1000:
                    after = pages[-1]["id"][-1]
                    pages.append(
                        client.rows({"stamp": {"$gte": 0}}, limit=1000, after=after, columns=["stamp"])
                    )
                listed = pa.concat_tables(pages)
                count = client.count()
            rows = stamps_of(listed)
            unknown, known = self.ledger.unknown[build.name], self.ledger.rows[build.name]
            wrong = {one for one, stamp in known.items() if one not in unknown and rows.get(one) != stamp}
            wrong |= {one for one in rows if one not in unknown and one not in known}
            self._verdict(
                f"build {build.name}: every acknowledged write is there, once",
                not wrong and len(rows) == len(listed) and count == self.plan.rows + len(rows),
                f"{len(rows):,} rows written, {len(unknown):,} beside a publication, {len(wrong):,} wrong, "
                f"{len(listed) - len(rows):,} twice, {count:,} in all",
            )
            if turn == 0:
                events.run("another build is published")


def _memory_and_descriptors(pid: int) -> tuple[int, int] | None:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        memory = next(int(line.split()[1]) for line in lines if line.startswith("VmRSS:")) * 1024
        return memory, len(os.listdir(f"/proc/{pid}/fd"))
    except (OSError, StopIteration):
        return None  # it just ended


def unannounced(calls: Sequence[Call], windows: Sequence[Window]) -> list[Call]:
    """Return the calls that came to what no event announces."""
    return [call for call in calls if call.outcome and not any(one.announces(call) for one in windows)]


def quiet_samples(samples: Sequence[Sample], windows: Sequence[Window], who: str) -> list[Sample]:
    """Return what a kind of process had while nothing happened and as many of them ran as should."""
    own = [one for one in samples if one.who == who]
    usual = Counter(one.count for one in own).most_common(1)[0][0] if own else 0
    return [
        one
        for one in own
        if one.count == usual and not any(each.start_s <= one.at_s <= each.end_s for each in windows)
    ]
