"""How many 4 KiB reads a second a file's device answers at depth 64: the yardstick for an engine's own reads.

fio where it is installed; else a loop over the kernel's asynchronous reads, which needs no package.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import platform
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

import numpy as np

READ_BYTES = 4096
DEPTH = 64
#: io_setup, io_submit, io_getevents, io_destroy
SYSCALLS = {"x86_64": (206, 209, 208, 207), "aarch64": (0, 2, 4, 1)}

_CONTROL = np.dtype(
    [
        ("data", "<u8"),
        ("key", "<u4"),
        ("rw_flags", "<u4"),
        ("opcode", "<u2"),
        ("priority", "<i2"),
        ("fd", "<u4"),
        ("buffer", "<u8"),
        ("bytes", "<u8"),
        ("offset", "<i8"),
        ("reserved", "<u8"),
        ("flags", "<u4"),
        ("event_fd", "<u4"),
    ]
)
_EVENT = np.dtype([("data", "<u8"), ("object", "<u8"), ("result", "<i8"), ("result2", "<i8")])


def reads_per_s(path: Path, *, seconds: float = 4.0, depth: int = DEPTH) -> dict[str, Any]:
    """Random reads with O_DIRECT from ``path``, ``depth`` of them always under way.

    Returns
    -------
    dict
        ``reads_per_s`` and ``how`` it was measured.

    Raises
    ------
    OSError
        The file cannot be opened with O_DIRECT, or a read failed.
    """
    if fio := shutil.which("fio"):
        rate = _with_fio(fio, path, seconds, depth)
        if rate is not None:
            return {"reads_per_s": rate, "how": f"fio, randread 4 KiB, O_DIRECT, depth {depth}"}
    return {"reads_per_s": _with_aio(path, seconds, depth), "how": f"own loop of kernel AIO, depth {depth}"}


def _with_fio(fio: str, path: Path, seconds: float, depth: int) -> float | None:
    for engine in ("io_uring", "libaio"):
        done = subprocess.run(
            [
                fio,
                "--name=reads",
                f"--filename={path.resolve()}",
                "--readonly",
                "--rw=randread",
                f"--bs={READ_BYTES}",
                "--direct=1",
                f"--ioengine={engine}",
                f"--iodepth={depth}",
                "--time_based",
                f"--runtime={seconds:g}",
                "--output-format=json",
            ],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode == 0:
            report = done.stdout[done.stdout.index("{") :]
            return float(json.loads(report)["jobs"][0]["read"]["iops"])
    return None


def _with_aio(path: Path, seconds: float, depth: int) -> float:
    setup, submit, get_events, destroy = SYSCALLS[platform.machine()]
    libc = ctypes.CDLL(None, use_errno=True)

    def call(number: int, *arguments: Any) -> int:
        done = int(libc.syscall(ctypes.c_long(number), *arguments))
        if done < 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), str(path))
        return done

    pages = path.stat().st_size // READ_BYTES
    fd = os.open(path, os.O_RDONLY | os.O_DIRECT)
    try:
        memory = mmap.mmap(-1, depth * READ_BYTES)
        start_address = np.frombuffer(memory, np.uint8).ctypes.data
        context = ctypes.c_ulong(0)
        call(setup, ctypes.c_uint(depth), ctypes.byref(context))
        controls = np.zeros(depth, _CONTROL)
        controls["data"] = np.arange(depth)
        controls["fd"] = fd
        controls["buffer"] = start_address + np.arange(depth) * READ_BYTES
        controls["bytes"] = READ_BYTES
        addresses = controls.ctypes.data + np.arange(depth, dtype=np.uint64) * _CONTROL.itemsize
        events = np.zeros(depth, _EVENT)
        offsets = np.random.default_rng(1).integers(0, pages, 1 << 20) * READ_BYTES
        at = depth
        controls["offset"] = offsets[:depth]
        order = np.ascontiguousarray(addresses)
        call(submit, context, ctypes.c_long(depth), ctypes.c_void_p(order.ctypes.data))
        begun, done = time.perf_counter(), 0
        while True:
            count = call(
                get_events,
                context,
                ctypes.c_long(1),
                ctypes.c_long(depth),
                ctypes.c_void_p(events.ctypes.data),
                ctypes.c_void_p(None),
            )
            ready = events["data"][:count].astype(np.int64)
            if (events["result"][:count] != READ_BYTES).any():
                raise OSError(5, "a read was short or failed", str(path))
            done += count
            if time.perf_counter() - begun >= seconds:
                break
            if at + count > len(offsets):
                at = 0
            controls["offset"][ready] = offsets[at : at + count]
            at += count
            again = np.ascontiguousarray(addresses[ready])
            call(submit, context, ctypes.c_long(count), ctypes.c_void_p(again.ctypes.data))
        taken = time.perf_counter() - begun
        left = depth - count
        while left > 0:
            left -= call(
                get_events,
                context,
                ctypes.c_long(1),
                ctypes.c_long(depth),
                ctypes.c_void_p(events.ctypes.data),
                ctypes.c_void_p(None),
            )
        call(destroy, context)
        return done / taken
    finally:
        os.close(fd)
