"""Makes sound indexes, changes copies of them, and has a child process use each copy."""

from __future__ import annotations

import datetime
import json
import os
import select
import shutil
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Final

import numpy as np
import pyarrow as pa

from tests.fuzz.mutations import Sound, mutate

ROWS: Final = 600
#: A case takes some 30 ms.
_HANG_SECONDS: Final = 30
#: So many cases a child: what one leaves behind must not hide what the next does.
_CASES_A_CHILD: Final = 250

_COLORS: Final = ("red", "green", "blue", "grün", "", "yellow")


def metadata(rows: int) -> pa.Table:
    """Columns of every kind that filters know, and one that they do not."""
    draw = np.random.default_rng(5)
    whole = [None if row % 17 == 0 else int(value) for row, value in enumerate(draw.integers(0, 20, rows))]
    day = datetime.datetime(2024, 1, 1, tzinfo=datetime.timezone.utc)
    return pa.table(
        {
            "whole": pa.array(whole, pa.int32()),
            "number": pa.array(np.arange(rows, dtype=np.int64) * 7 % 1000),
            "price": pa.array(draw.random(rows)),
            "weight": pa.array(draw.random(rows).astype(np.float32)),
            "color": pa.array([None if row % 11 == 0 else _COLORS[row % 6] for row in range(rows)]),
            "name": pa.array([f"name {row * 7919 % rows}" for row in range(rows)]),
            "fresh": pa.array([None if row % 23 == 0 else row % 3 == 0 for row in range(rows)]),
            "tags": pa.array(
                [None if row % 13 == 0 else list(_COLORS[row % 3 : row % 3 + row % 4]) for row in range(rows)]
            ),
            "numbers": pa.array([[row % 20, row % 7] for row in range(rows)], pa.list_(pa.int64())),
            "when": pa.array([day + datetime.timedelta(hours=row) for row in range(rows)]),
            "rest": pa.array([{"a": row} for row in range(rows)]),
        }
    )


def build_sound(folder: Path) -> list[Sound]:
    """Indexes that differ in all that the files depend on."""
    import velo

    draw = np.random.default_rng(7)
    rows = draw.standard_normal((ROWS, 24)).astype(np.float32)
    common: dict[str, Any] = {
        "degree": 12,
        "links_kept": 12,
        "build_list_size": 20,
        "threads": 1,
        "calibrate": False,
    }
    velo.build(
        folder / "strings",
        rows,
        ids=[f"id {number}" for number in range(ROWS)],
        metadata=metadata(ROWS),
        store_vectors=True,
        **common,
    ).close()
    velo.build(
        folder / "numbers",
        rows,
        ids=np.arange(ROWS, dtype=np.int64) * 10**15,
        metadata={"group": np.arange(ROWS) % 5},
        metric="ip",
        record_bits=0,
        memory_bits=6,
        **common,
    ).close()
    velo.build(folder / "bare", rows[:, :3], metric="cosine", page_links=False, **common).close()
    velo.build(
        folder / "pages", rows, page_codes=True, memory_bits=1, record_bits=7, store_vectors=True, **common
    ).close()
    velo.build(folder / "records", rows, page_codes=True, record_code_bytes=4, **common).close()
    # The calibration stands in the manifest and is read by searches.
    velo.build(
        folder / "calibrated",
        draw.standard_normal((1_000, 8)).astype(np.float32),
        **common | {"calibrate": True},
    ).close()
    names = ("strings", "strings", "numbers", "bare", "pages", "records", "calibrated")
    return [Sound.read(folder / name) for name in names]


@dataclass
class Case:
    """What became of one seed."""

    seed: int
    said: list[str]
    outcomes: list[str] = field(default_factory=list)
    findings: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        lines = [f"seed {self.seed} (python -m tests.fuzz --only {self.seed})"]
        lines += [f"    changed {what}" for what in self.said]
        lines += [f"    {outcome}" for outcome in self.outcomes]
        return "\n".join([*lines, *self.findings])


class Fuzzer:
    """Runs cases in a child process that is replaced when it dies."""

    def __init__(self, sound: list[Sound]) -> None:
        self._sound = sound
        self._folder = sound[0].folder.parent / "case"
        self._child: subprocess.Popen[str] | None = None
        self._cases = 0

    def __enter__(self) -> Fuzzer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end_child()
        shutil.rmtree(self._folder, ignore_errors=True)

    def run(self, seed: int) -> Case:
        """Change a copy of an index as the seed says and use it."""
        sound = self._sound[seed % len(self._sound)]
        case = Case(seed, [f"{sound.folder.name}/{what}" for what in mutate(sound, self._folder, seed)])
        self.use(self._folder, case)
        return case

    def use(self, folder: Path, case: Case) -> None:
        """Have the child use a folder."""
        child = self._started_child()
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdin.write(json.dumps({"path": str(folder), "seed": case.seed}) + "\n")
        child.stdin.flush()
        ready, _, _ = select.select([child.stdout], [], [], _HANG_SECONDS)
        line = child.stdout.readline() if ready else ""
        if not line:
            if not ready:
                child.send_signal(signal.SIGABRT)  # faulthandler says where it stands
            status = child.wait(30)
            what = "hangs" if not ready else f"ended with status {status}"
            case.findings.append(f"the child {what}:\n{self._complaint()}")
            self._end_child()
            return
        answer = json.loads(line)
        case.outcomes += sorted({error.partition(":")[0] for error in answer["errors"]}) or ["no error"]
        case.findings += answer["findings"]
        if answer["descriptors"] > 0:
            case.findings.append(f"{answer['descriptors']} file descriptors were left open")

    def _started_child(self) -> subprocess.Popen[str]:
        if self._child is None or self._cases >= _CASES_A_CHILD:
            self._end_child()
            self._cases = 0
            root = Path(__file__).resolve().parents[2]
            path = os.pathsep.join([str(root), str(root / "serving"), *filter(None, sys.path)])
            self._complaints = open(self._folder.parent / "complaints.txt", "w+")  # noqa: SIM115
            self._child = subprocess.Popen(
                [sys.executable, "-X", "faulthandler", "-m", "tests.fuzz.child"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._complaints,
                text=True,
                cwd=root,
                env=os.environ | {"PYTHONPATH": path},
            )
        self._cases += 1
        return self._child

    def _complaint(self) -> str:
        self._complaints.seek(0)
        return self._complaints.read()[-4000:]

    def _end_child(self) -> None:
        if self._child is None:
            return
        child, self._child = self._child, None
        for pipe in (child.stdin, child.stdout):
            if pipe is not None:
                pipe.close()
        try:
            child.wait(10)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
        self._complaints.close()
