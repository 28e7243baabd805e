"""A memory limit that the kernel holds a process to: a group of processes of its own."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.harness.datasets import DataError

ROOT = Path("/sys/fs/cgroup")


@dataclass(frozen=True)
class Group:
    """A group under either version of the kernel's interface."""

    path: Path
    is_second: bool

    @property
    def peak_bytes(self) -> int:
        """The most that all of it took, with what the kernel keeps of files for it."""
        return int(
            (self.path / ("memory.peak" if self.is_second else "memory.max_usage_in_bytes")).read_text()
        )

    @property
    def kills(self) -> int:
        """The number of its processes that the kernel ended for want of memory."""
        file = self.path / ("memory.events" if self.is_second else "memory.oom_control")
        counts = dict(line.split() for line in file.read_text().splitlines())
        return int(counts["oom_kill"])

    def popen(self, command: Sequence[str], **options: Any) -> subprocess.Popen[str]:
        """Start a program that is in the group from its first page on; ``options`` as of any other."""
        procs = str(self.path / "cgroup.procs")

        def enter() -> None:
            with open(procs, "w") as file:
                file.write(str(os.getpid()))

        options = {"stdout": subprocess.PIPE} | options
        return subprocess.Popen(command, text=True, preexec_fn=enter, **options)


@contextmanager
def limited(limit_bytes: int) -> Iterator[Group]:
    """A group that may take so much; it needs the right to make one, which root has.

    Raises
    ------
    DataError
        No group can be made here.
    """
    second = (ROOT / "cgroup.controllers").exists()
    home = ROOT if second else ROOT / "memory"
    group = Group(home / f"velo-bench-{os.getpid()}", second)
    try:
        group.path.mkdir()
    except OSError as error:
        raise DataError(f"no group with a memory limit can be made in {home}: {error.strerror}") from error
    try:
        names = ("memory.max", "memory.swap.max") if second else ("memory.limit_in_bytes",)
        for name, value in zip(names, (limit_bytes, 0), strict=False):
            (group.path / name).write_text(str(value))
        yield group
    except OSError as error:
        raise DataError(f"{group.path} takes no memory limit: {error.strerror}") from error
    finally:
        group.path.rmdir()
