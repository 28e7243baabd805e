"""The machine of a measurement: processor, memory, kernel, device, and the rate of plain reads."""

from __future__ import annotations

import json
import mmap
import os
import platform
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from bench.harness.datasets import DataError

READ_BYTES = 4096
PROBE_S = 1.5
PROBE_THREADS = 32


def describe(folder: Path, probe_file: Path | None = None) -> dict[str, Any]:
    """One dict for the head of every result; ``probe_file`` is a large file on the device under test."""
    machine: dict[str, Any] = {
        "cpu": cpu_model(),
        "cores": os.cpu_count(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "device": device_of(folder),
        "load": os.getloadavg()[0],
    }
    if probe_file is not None:
        machine["reads"] = probe_reads(probe_file)
    return machine


def cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.machine()


def device_of(folder: Path) -> str:
    """File system and block device that hold ``folder``, e.g. ``ext4 on vda (mq-deadline)``."""
    best, text = "", "unknown"
    target = str(folder.resolve())
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        fields, _, rest = line.partition(" - ")
        mount = fields.split()[4]
        inside = target == mount or target.startswith(mount.rstrip("/") + "/")
        if inside and len(mount) >= len(best):
            kind, source = rest.split()[:2]
            best, text = mount, f"{kind} on {Path(source).name}"
            queue = Path("/sys/block") / Path(source).name / "queue" / "scheduler"
            if queue.exists():
                scheduler = next(
                    (w.strip("[]") for w in queue.read_text().split() if w.startswith("[")), "none"
                )
                text += f" ({scheduler})"
    return text


def probe_reads(path: Path) -> dict[str, Any]:
    """4 KiB random reads with O_DIRECT, one at a time and from 32 threads. From Python, so a lower bound of
    the device.
    """
    pages = path.stat().st_size // READ_BYTES
    try:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECT)
    except OSError as error:
        return {"error": f"O_DIRECT: {error.strerror}"}
    try:
        single = _read_loop(fd, pages, 0, PROBE_S)
        with ThreadPoolExecutor(PROBE_THREADS) as pool:
            many = list(
                pool.map(lambda seed: len(_read_loop(fd, pages, seed, PROBE_S)), range(1, PROBE_THREADS + 1))
            )
    finally:
        os.close(fd)
    return {
        "one_at_a_time_per_s": round(len(single) / PROBE_S),
        "one_at_a_time_p50_us": round(float(np.median(single)) * 1e6, 1),
        f"threads_{PROBE_THREADS}_per_s": round(sum(many) / PROBE_S),
    }


def _read_loop(fd: int, pages: int, seed: int, seconds: float) -> list[float]:
    buffer = mmap.mmap(-1, READ_BYTES)  # page-aligned, as O_DIRECT asks
    offsets = (np.random.default_rng(seed).integers(0, pages, 200_000) * READ_BYTES).tolist()
    taken: list[float] = []
    end = time.perf_counter() + seconds
    for offset in offsets:
        start = time.perf_counter()
        if start >= end:
            break
        os.preadv(fd, [buffer], offset)
        taken.append(time.perf_counter() - start)
    return taken


def reads_at_depth(path: Path, *, seconds: float = 4.0, depth: int = 64) -> dict[str, Any]:
    """The rate of random 4 KiB reads with O_DIRECT from ``path``, ``depth`` of them in flight, by fio.

    Raises
    ------
    DataError
        fio is not installed, or refuses the file.
    """
    words = f"--name=reads --readonly --rw=randread --bs={READ_BYTES} --direct=1 --iodepth={depth}"
    words += f" --time_based --runtime={seconds:g} --output-format=json"
    for engine in ("io_uring", "libaio"):
        command = ["fio", f"--filename={path.resolve()}", f"--ioengine={engine}", *words.split()]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False)
        except FileNotFoundError as error:
            raise DataError("fio is not installed: it measures the device") from error
        if done.returncode == 0:
            rate = json.loads(done.stdout[done.stdout.index("{") :])["jobs"][0]["read"]["iops"]
            return {"reads_per_s": float(rate), "how": f"fio, randread 4 KiB, O_DIRECT, depth {depth}"}
    raise DataError(f"fio: {done.stderr.strip().splitlines()[-1]}")
