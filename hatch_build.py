"""Compile the native library and put it into the package.

Hatchling runs :class:`NativeBuildHook` for wheels and editable installs; ``python hatch_build.py`` does the
same by hand (``./dev build``), into the working tree. The compiler is the pinned ``ziglang`` wheel, so
nothing but liburing's static library and headers is asked of the system.

Environment
-----------
VELO_TARGET_ARCH : ``x86_64`` or ``aarch64``; default: this machine's.
VELO_LIBURING : path of a ``liburing.a`` for that architecture; default: the distribution's.
ZIG_GLOBAL_CACHE_DIR : where zig keeps its own objects; default: ``$XDG_CACHE_HOME/zig`` or ``~/.cache/zig``.
"""

from __future__ import annotations

import argparse
import os
import platform
import runpy
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

GLIBC = "2.28"
ARCHITECTURES = ("x86_64", "aarch64")
BUILD_TIMEOUT_S = 1800


class NativeBuildHook(BuildHookInterface[Any]):
    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        root = Path(self.root)
        arch = target_arch()
        # Kept until finalize(): the wheel is written in between.
        self.scratch = tempfile.TemporaryDirectory(prefix="velo-build-")
        prefix = Path(self.scratch.name)
        compile_libraries(root, ("libvelo",), prefix, root / ".zig-cache", arch)
        if version == "editable":
            install_library(root, prefix)
        else:  # not through the working tree, which may be of another architecture than the wheel
            build_data["force_include"][str(prefix / "lib" / "libvelo.so")] = "velo/_native/libvelo.so"
            build_data["force_include"][str(root / "zig" / "velo.h")] = "velo/_native/velo.h"
            write_declarations(root, prefix / "header.py")
            build_data["force_include"][str(prefix / "header.py")] = "velo/_native/header.py"
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-manylinux_{GLIBC.replace('.', '_')}_{arch}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        self.scratch.cleanup()


def target_arch() -> str:
    arch = os.environ.get("VELO_TARGET_ARCH") or platform.machine()
    if sys.platform != "linux" or arch not in ARCHITECTURES:
        raise RuntimeError(
            f"velo builds for Linux on {' and '.join(ARCHITECTURES)}, not {sys.platform} on {arch}"
        )
    return arch


def compile_libraries(root: Path, steps: Sequence[str], prefix: Path, cache: Path, arch: str) -> None:
    """Run ``zig build STEP …``, which compiles them side by side; they lie under ``prefix/lib`` then.
    Raises SystemExit where liburing is missing, and RuntimeError with zig's own words where it fails.
    """
    check_liburing(arch)
    command = [
        sys.executable,
        *("-m", "ziglang", "build", *steps),
        *("--release=safe", f"-Dtarget={arch}-linux-gnu.{GLIBC}"),
        *("--prefix", str(prefix), "--cache-dir", str(cache)),
    ]
    if liburing := os.environ.get("VELO_LIBURING"):
        command.append(f"-Dliburing={liburing}")
    with tempfile.TemporaryDirectory(prefix="velo-zig-") as scratch:
        env = dict(os.environ)
        env["ZIG_GLOBAL_CACHE_DIR"] = str(global_cache_dir() or scratch)
        done = subprocess.run(
            command, cwd=root, env=env, capture_output=True, text=True, timeout=BUILD_TIMEOUT_S, check=False
        )
    if done.returncode != 0:
        raise RuntimeError(
            f"the native library did not build ({' '.join(command[1:])}):\n{done.stderr[-8000:]}"
        )


def check_liburing(arch: str) -> None:
    """Look for liburing where build.zig does, before the compiler starts."""
    folders = [Path(f"/usr/lib/{arch}-linux-gnu")]
    if arch == platform.machine():
        folders += [Path("/usr/lib64"), Path("/usr/lib")]
    named = os.environ.get("VELO_LIBURING")
    libraries = [Path(named)] if named else [folder / "liburing.a" for folder in folders]
    library = next((one for one in libraries if one.is_file()), None)
    if library and any((folder / "include" / "liburing.h").is_file() for folder in library.parents):
        return
    raise SystemExit(
        f"velo links liburing, and {named or 'liburing.a'} or its header was not found: install liburing-dev "
        "(Debian, Ubuntu: apt-get install liburing-dev) or liburing-devel (Fedora), "
        "or name a liburing.a in VELO_LIBURING"
    )


def global_cache_dir() -> Path | None:
    """A folder that zig may write, or None. Made here, because zig waits for ever on one whose parents
    cannot be made.
    """
    home = os.environ.get("HOME")
    candidates = [
        os.environ.get("ZIG_GLOBAL_CACHE_DIR"),
        f"{os.environ['XDG_CACHE_HOME']}/zig" if os.environ.get("XDG_CACHE_HOME") else None,
        f"{home}/.cache/zig" if home else None,
    ]
    for candidate in candidates:
        if not candidate:
            continue
        folder = Path(candidate)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=folder):
                return folder
        except OSError:
            continue
    return None


def write_declarations(root: Path, path: Path) -> None:
    """Write the module that lets Python call the library without a parser of its header."""
    declarations = runpy.run_path(str(root / "velo" / "_native" / "declarations.py"))
    declarations["write_module"]((root / "zig" / "velo.h").read_text(encoding="utf-8"), path)


def install_library(root: Path, prefix: Path) -> None:
    """Replace the made files of velo/_native; a process that has the old library open keeps it intact."""
    native = root / "velo" / "_native"
    write_declarations(root, prefix / "header.py")
    for source in (prefix / "lib" / "libvelo.so", root / "zig" / "velo.h", prefix / "header.py"):
        staged = native / f"{source.name}.{os.getpid()}.tmp"  # another build may be at the same file
        shutil.copyfile(source, staged)
        staged.chmod(0o755 if source.suffix == ".so" else 0o644)
        staged.replace(native / source.name)


def main() -> None:
    """Build into the working tree; ``--sim`` adds a twin of the library for tests to zig-out/lib."""
    parser = argparse.ArgumentParser(description="Compile libvelo into velo/_native.")
    parser.add_argument("--sim", action="store_true", help="also build zig-out/lib/libvelo_sim.so")
    arguments = parser.parse_args()
    root = Path(__file__).resolve().parent
    steps = ("libvelo", "libvelo_sim") if arguments.sim else ("libvelo",)
    compile_libraries(root, steps, root / "zig-out", root / ".zig-cache", target_arch())
    install_library(root, root / "zig-out")


if __name__ == "__main__":
    main()
