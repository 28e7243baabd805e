"""Debian of another architecture or release in a folder, and programs that run inside. No root is needed.

``mmdebstrap`` unpacks packages and runs none of their scripts, so nothing is emulated for it. A program runs
in a user and mount namespace of its own (``unshare``), in which the folder is ``/``: mounts end with it.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

#: Everything that this module's users make; git ignores it and ``./dev clean`` removes it.
CACHE = Path(__file__).resolve().parent.parent / ".roots"

#: Names of one architecture: Debian's, and the kernel's and wheels'.
MACHINES = {"amd64": "x86_64", "arm64": "aarch64"}

#: Tags of wheels that a glibc of 2.34 runs.
PLATFORMS = ("manylinux2014", "manylinux_2_17", "manylinux_2_27", "manylinux_2_28", "manylinux_2_34")

#: How the kernel knows a 64-bit ARM program: the head of its file, and which bits of it count.
_BINFMT = (
    r":qemu-aarch64:M::\x7f\x45\x4c\x46\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\xb7\x00"
    r":\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff:"
)

#: Arguments: the root, the emulator or nothing, pairs of a folder and its place inside, ``--``, the program.
#: The kernel itself is asked to hand programs to the emulator (flag F: opened now, out here), so they can
#: start each other. Where it does not let a namespace ask, a registration of the whole system serves; without
#: one the emulator is the program, and what that starts fails.
_ENTER = rf"""
root=$1 emulator=$2; shift 2
while [ "$1" != -- ]; do mkdir -p "$root$2"; mount --bind "$1" "$root$2"; shift 2; done; shift
mkdir -p "$root/proc" "$root/dev"
mount --rbind /proc "$root/proc"
mount --rbind /dev "$root/dev"
if [ -n "$emulator" ]; then
    formats=/proc/sys/fs/binfmt_misc
    if mount -t binfmt_misc none $formats 2>/dev/null; then
        printf %s '{_BINFMT}'"$emulator:F" >$formats/register
    elif [ ! -e $formats/qemu-aarch64 ]; then
        touch "$root/emulator"; mount --bind "$emulator" "$root/emulator"
        set -- /emulator "$@"
    fi
fi
exec chroot "$root" "$@"
"""


@dataclass(frozen=True)
class Root:
    """An unpacked Debian."""

    path: Path
    architecture: str

    @property
    def machine(self) -> str:
        return MACHINES[self.architecture]

    @property
    def emulator(self) -> str:
        """The program that runs this root's programs, or nothing."""
        return "" if self.machine == platform.machine() else emulator()

    @property
    def python(self) -> tuple[str, str]:
        """Its newest Python: the path inside, and the version as ``3.11``."""
        found = [
            match[1]
            for path in (self.path / "usr" / "bin").iterdir()
            if (match := re.fullmatch(r"python3\.(\d+)", path.name))
        ]
        minor = max(found, key=int)
        return f"/usr/bin/python3.{minor}", f"3.{minor}"

    @property
    def site(self) -> Path:
        """Where that Python looks for packages that are not Debian's."""
        return self.path / "usr" / "local" / "lib" / f"python{self.python[1]}" / "dist-packages"

    def command(
        self, *program: str | Path, binds: Mapping[Path, str], variables: Mapping[str, str]
    ) -> list[str]:
        """The words that run a program inside; ``binds`` are folders out here and where they are in there."""
        given = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/tmp", "LANG": "C.UTF-8", **variables}
        return [
            *("env", "-i", *(f"{name}={value}" for name, value in given.items())),
            *(
                _tool("unshare"),
                "--user",
                "--map-root-user",
                "--mount",
                _tool("sh"),
                "-eu",
                "-c",
                _ENTER,
                "sh",
            ),
            *(str(self.path), self.emulator),
            *(str(word) for pair in binds.items() for word in pair),
            *("--", *map(str, program)),
        ]


def emulator() -> str:
    """Where qemu for 64-bit ARM lies."""
    return _tool("qemu-aarch64-static")


def _tool(name: str) -> str:
    found = shutil.which(name)
    if not found:
        raise SystemExit(f"{name} is missing: ./dev installs it")
    return found


def codename() -> str:
    """This machine's release of Debian, so that both architectures link one liburing; else the stable one."""
    told = platform.freedesktop_os_release()
    return told["VERSION_CODENAME"] if told.get("ID") == "debian" else "stable"


def unpacked(architecture: str, release: str, packages: Sequence[str]) -> Root:
    """A root with these packages and what they need, made where it is not there yet."""
    root = Root(CACHE / f"{architecture}-{release}", architecture)
    stamp = root.path / "velo-stamp"
    wanted = " ".join(packages)
    if stamp.is_file() and stamp.read_text() == wanted:
        return root
    print(f"debian: unpacking {release} for {architecture} into {root.path}: {wanted}", flush=True)
    shutil.rmtree(root.path, ignore_errors=True)
    CACHE.mkdir(exist_ok=True)
    command = [
        *(_tool("mmdebstrap"), "--quiet", "--mode=chrootless", "--variant=extract"),
        *(f"--architectures={architecture}", f"--include=base-files,{','.join(packages)}"),
        # A mirror may lag behind a release that moves. Signatures are checked all the same.
        *('--aptopt=Acquire::Check-Valid-Until "false"', release, str(root.path)),
    ]
    subprocess.run(command, check=True)
    stamp.write_text(wanted)
    return root


def install(folder: Path, machine: str, version: str, *packages: str | Path) -> None:
    """Put wheels of another machine or Python into a folder, by this one's pip."""
    quiet = ("--quiet", "--disable-pip-version-check", "--no-warn-conflicts")
    command = [
        *(sys.executable, "-m", "pip", "install", *quiet, "--upgrade", "--target", str(folder)),
        *("--only-binary=:all:", "--implementation=cp", f"--python-version={version}"),
        *(f"--platform={tag}_{machine}" for tag in PLATFORMS),
        *map(str, packages),
    ]
    subprocess.run(command, check=True, env={**os.environ, "PIP_ROOT_USER_ACTION": "ignore"})
