"""The library for aarch64, its tests and a life of an index, run by qemu on x86-64 (``./dev emulate``).

Emulation shows whether answers are right and files fit both ways. It shows nothing about speed, and nothing
about io_uring, which qemu does not have: reads go through threads.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import hatch_build
from tools import debian, stage

ROOT = stage.ROOT
ARCHITECTURE = "arm64"

#: Zig's tests: the kernels, bytes on disk, devices, the cache and filters.
ROOMS = ("base", "layout", "quant", "io", "cache", "filter")

#: What build.zig compiles kernels for, beside one another.
LEVELS = ("base", "dotprod")

#: Python's tests: few enough to end in minutes.
TESTS = ("tests/native/test_native.py", "tests/native/test_layouts.py", "tests/formats", "tests/testing")


def say(text: str) -> None:
    print(f"emulate: {text}", flush=True)


def arm_root() -> debian.Root:
    """Debian's Python for aarch64, and liburing to link."""
    return debian.unpacked(ARCHITECTURE, debian.codename(), ("python3", "libstdc++6", "liburing-dev"))


def liburing(root: debian.Root) -> Path:
    return root.path / "usr" / "lib" / f"{root.machine}-linux-gnu" / "liburing.a"


def build_wheel(root: debian.Root, folder: Path) -> Path:
    """The wheel for the root's machine, cross-built into a folder."""
    variables = {"VELO_TARGET_ARCH": root.machine, "VELO_LIBURING": str(liburing(root))}
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, env=os.environ | variables, check=True, stdout=subprocess.DEVNULL)
    (wheel,) = folder.glob(f"*_{root.machine}.whl")
    return wheel


def install_wheel(root: debian.Root, wheel: Path, *more: str) -> None:
    """Install the wheel, what it needs and what more is asked for; what was installed before goes."""
    shutil.rmtree(root.site, ignore_errors=True)
    debian.install(root.site, root.machine, root.python[1], f"{wheel}[cli]", *more)


class Inside:
    """Programs inside the root."""

    def __init__(self, root: debian.Root, binds: dict[Path, str]) -> None:
        self.root = root
        self.binds = binds

    def run(self, *program: str, **variables: str) -> None:
        """Run one to its end and show what it writes; a failure ends all."""
        done = subprocess.run(self._command(program, variables), check=False)
        if done.returncode != 0:
            raise SystemExit(f"emulate: FAILED with {done.returncode}: {' '.join(program)}")

    def told(self, *program: str) -> str:
        """What a program writes."""
        done = subprocess.run(self._command(program, {}), capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise SystemExit(
                f"{done.stdout}{done.stderr}emulate: FAILED with {done.returncode}: {' '.join(program)}"
            )
        return f"{done.stdout}{done.stderr}"

    def python(self, *words: str, **variables: str) -> None:
        """Run the root's Python with what was installed."""
        self.run(self.root.python[0], *words, **variables)

    def _command(self, program: tuple[str, ...], variables: dict[str, str]) -> list[str]:
        return self.root.command(*program, binds=self.binds, variables=variables)


def run_zig_tests(inside: Inside, seed: str) -> None:
    """Compile the tests here and run them in there, each once."""
    root = inside.root
    prefix = debian.CACHE / "zig-tests"
    say(f"compiling Zig's tests of {', '.join(ROOMS)} for {root.machine}")
    command = [
        *(sys.executable, "-m", "ziglang", "build", *(f"install-test-{room}" for room in ROOMS)),
        *(f"-Dtarget={root.machine}-linux-gnu.{hatch_build.GLIBC}", f"-Dliburing={liburing(root)}"),
        *("--prefix", str(prefix)),
    ]
    subprocess.run(command, cwd=ROOT, check=True)
    binaries = root.path / "zig-tests"
    shutil.copytree(prefix / "bin", binaries, dirs_exist_ok=True)
    for room in ROOMS:
        told = inside.told(f"/zig-tests/test-{room}", f"--seed={seed}")
        last = told.strip().splitlines()[-1]
        skipped = [line for line in told.splitlines() if "SKIP" in line]
        say(f"zig, {room}: {last}" + (f" ({len(skipped)} lines say SKIP)" if skipped else ""))


def check_level(inside: Inside) -> None:
    """The library that was loaded has found what qemu's processor can."""
    told = json.loads(inside.told(inside.root.python[0], "-m", "velo", "doctor", "--json"))
    level = told["library"]["cpu_level"]
    if level != LEVELS[-1]:
        raise SystemExit(f"emulate: FAILED: the library chose kernels for {level}, qemu has {LEVELS[-1]}")


def same_answers(here: Path, there: Path) -> str:
    """How two machines' answers of one index compare. Exact ones have to be the same; estimates are sums of
    float32, whose order is a machine's own, so of them a few may differ.
    """
    a, b = np.load(here), np.load(there)
    told = []
    for name in sorted({key.rpartition("_")[0] for key in a}):
        same = np.all(a[f"{name}_ids"] == b[f"{name}_ids"], axis=1)
        bits = np.array_equal(a[f"{name}_distances"], b[f"{name}_distances"])
        if name.startswith("exact"):
            assert same.all(), (name, np.flatnonzero(~same))
            np.testing.assert_array_equal(a[f"{name}_distances"], b[f"{name}_distances"])
        else:
            assert same.mean() > 0.95, (name, same.mean())
        told.append(f"{name} {int(same.sum())} of {len(same)}{' to the bit' if bits else ''}")
    return ", ".join(told)


def run_lives(inside: Inside, work: Path) -> None:
    """An index lives there and one here; each is then asked on both sides, there with each level."""
    here = [sys.executable, str(ROOT / "tools" / "life.py"), str(stage.SAMPLE)]
    there = ("/tools/life.py", "/stage/examples/data")
    machine = inside.root.machine
    say(f"an index lives on {machine}")
    inside.python(*there, "live", f"/made/{machine}.velo")
    say(f"an index lives on {platform.machine()}")
    subprocess.run([*here, "live", str(work / f"{platform.machine()}.velo")], check=True)
    for made in (machine, platform.machine()):
        index = f"{made}.velo"
        subprocess.run([*here, "ask", str(work / index), str(work / "here.npz")], check=True)
        for level in LEVELS:
            inside.python(*there, "ask", f"/made/{index}", "/made/there.npz", VELO_CPU_LEVEL=level)
            compared = same_answers(work / "here.npz", work / "there.npz")
            say(f"made on {made}, asked on both, {machine} with level {level}; same ids: {compared}")


def main() -> None:
    if platform.machine() != "x86_64":
        raise SystemExit(
            f"emulate: this machine is {platform.machine()}: ./dev test runs what is emulated elsewhere"
        )
    began = time.monotonic()
    root = arm_root()
    seed = f"0x{os.urandom(4).hex()}"
    with tempfile.TemporaryDirectory(prefix="velo-emulate-") as scratch:
        folder = Path(scratch)
        work, staged = folder / "work", folder / "stage"
        work.mkdir()
        stage.stage(staged)
        inside = Inside(root, {work: "/made", staged: "/stage", ROOT / "tools": "/tools"})
        say(f"{root.path.name}: Python {root.python[1]}, emulated by {root.emulator}; seed {seed}")
        run_zig_tests(inside, seed)
        say("cross-building the wheel and installing it")
        wheel = build_wheel(root, folder)
        install_wheel(root, wheel, *stage.FEW)
        inside.python("-m", "velo", "doctor")
        check_level(inside)
        run_lives(inside, work)
        say(f"pytest {' '.join(TESTS)}")
        inside.python(*stage.pytest("/stage", TESTS))
    say(f"all passed in {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
