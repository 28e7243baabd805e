"""Three hosts with a cable each to one switch: network namespaces of this machine, with a Ray over them."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from velo.errors import VeloError
from velo_serving import Client

__all__ = ["Asker", "Gateway", "Hosts", "Seen", "refusal"]

HEAD_PORT = 6379

#: By when what was started answers, on a busy machine.
PATIENCE_S = 60.0

#: For ``setns``.
CLONE_NEWNET = 0x40000000


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True, timeout=60)


def refusal() -> str:
    """Why no hosts can be made here; "" where they can."""
    if shutil.which("ip") is None:
        return "there is no `ip` (Debian: iproute2)"
    name = f"velo-{os.getpid()}-try"
    try:
        ip("netns", "add", name)
        try:
            ip("link", "add", "eth0", "netns", name, "type", "veth", "peer", "name", "eth1", "netns", name)
        finally:
            ip("netns", "del", name)
    except subprocess.CalledProcessError as error:
        return f"the system refuses network namespaces: {error.stderr.strip()}"
    return ""


class Hosts:
    """Hosts 1, 2 and 3, with a Ray that is started as a user would: its head on host 1."""

    def __init__(self) -> None:
        self._stack = contextlib.ExitStack()
        self._token = secrets.token_hex(32)
        self._processes: list[subprocess.Popen[str]] = []
        self._folder = tempfile.mkdtemp(prefix="velo-", dir="/tmp")  # short: sockets have their names there
        self._switch = self._namespace("switch")
        ip("-n", self._switch, "link", "add", "br0", "type", "bridge")
        ip("-n", self._switch, "link", "set", "br0", "up")
        self.hosts = (1, 2, 3)
        for host in self.hosts:
            name = self._namespace(str(host))
            port = ("link", "add", f"port{host}", "netns", self._switch)
            ip(*port, "type", "veth", "peer", "name", "eth0", "netns", name)
            ip("-n", self._switch, "link", "set", f"port{host}", "master", "br0", "up")
            ip("-n", name, "addr", "add", f"{self.address(host)}/24", "dev", "eth0")
            ip("-n", name, "link", "set", "eth0", "up")
            ip("-n", name, "link", "set", "lo", "up")

    def close(self) -> None:
        """End what runs there, then the hosts."""
        for host in self.hosts:
            self.kill(host)
        for process in self._processes:
            process.communicate(timeout=60)
        self._stack.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _name(self, what: str) -> str:
        return f"velo-{os.getpid()}-{what}"

    def _namespace(self, what: str) -> str:
        name = self._name(what)
        ip("netns", "add", name)
        self._stack.callback(ip, "netns", "del", name)
        return name

    @staticmethod
    def address(host: int) -> str:
        return f"10.77.0.{host}"

    @property
    def ray(self) -> str:
        """Where Ray's own service listens."""
        return f"{self.address(1)}:{HEAD_PORT}"

    def popen(self, host: int, *command: str, **options: Any) -> subprocess.Popen[str]:
        """Start a program on a host."""
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry),
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": self._token,
            # As docs/howto/ten-machines.md says.
            "RAY_gcs_rpc_server_reconnect_timeout_s": "86400",
            "RAY_health_check_failure_threshold": "10",
        }
        command = ("ip", "netns", "exec", self._name(str(host)), *command)
        process = subprocess.Popen(command, text=True, env=environment, **options)
        self._processes.append(process)
        return process

    def velo(self, host: int, *arguments: str) -> dict[str, Any]:
        """Run a command of velo's to its end; what it prints."""
        command = (sys.executable, "-m", "velo", *arguments, "--ray-address", self.ray, "--json")
        process = self.popen(host, *command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        out, told = process.communicate(timeout=150)
        assert process.returncode == 0, told
        document: dict[str, Any] = json.loads(out)
        return document

    def start_ray(self, host: int, **resources: float) -> None:
        """``ray start``, until its sockets have names: those of all hosts lie in one folder."""
        sockets = Path(self._folder) / "session_latest" / "sockets"
        count = len(list(sockets.glob("raylet*")))
        where = (
            "--head",
            "--port",
            str(HEAD_PORT),
            "--include-dashboard",
            "false",
            "--temp-dir",
            self._folder,
        )
        with open(Path(self._folder) / f"ray-start-{host}.txt", "a") as told:
            self.popen(
                host,
                str(Path(sys.executable).with_name("ray")),
                "start",
                "--block",
                "--disable-usage-stats",
                *(where if host == 1 else ("--address", self.ray)),
                *("--node-ip-address", self.address(host), "--num-cpus", "1"),
                *("--object-store-memory", str(80 << 20), "--resources", json.dumps(resources)),
                stdout=told,
                stderr=told,
            )
        end = time.monotonic() + PATIENCE_S
        while len(list(sockets.glob("raylet*"))) <= count:
            assert time.monotonic() < end, "Ray did not start"
            time.sleep(0.05)

    def await_nodes(self) -> None:
        """Wait until Ray knows all hosts."""
        program = (
            "import logging, sys, time, ray\n"
            "ray.init(sys.argv[1], log_to_driver=False, logging_level=logging.ERROR)\n"
            "while sum(node['Alive'] for node in ray.nodes()) < int(sys.argv[2]): time.sleep(0.1)\n"
        )
        command = (sys.executable, "-c", program, self.ray, str(len(self.hosts)))
        assert self.popen(1, *command).wait(60) == 0

    def pids(self, host: int, word: bytes = b"") -> list[int]:
        """What runs on a host, by a word of its command line."""
        told = subprocess.run(
            ["ip", "netns", "pids", self._name(str(host))], check=True, capture_output=True, text=True
        )
        found = []
        for pid in map(int, told.stdout.split()):
            with contextlib.suppress(OSError):
                if word in (Path("/proc") / str(pid) / "cmdline").read_bytes():
                    found.append(pid)
        return found

    def kill(self, host: int, word: bytes = b"") -> None:
        """As if its power were cut: nothing says goodbye."""
        end = time.monotonic() + PATIENCE_S
        while pids := self.pids(host, word):
            assert time.monotonic() < end, pids
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.05)

    def cable(self, host: int, plugged: bool) -> None:
        """Pull the cable of a host, or plug it in."""
        ip("-n", self._switch, "link", "set", f"port{host}", "up" if plugged else "down")

    def move_here(self, host: int) -> None:
        """Put the thread that calls on a host: what it connects, it connects from there."""
        libc = ctypes.CDLL(None, use_errno=True)
        with open(f"/run/netns/{self._name(str(host))}") as namespace:
            if libc.setns(namespace.fileno(), CLONE_NEWNET):
                raise OSError(ctypes.get_errno(), "setns")


class Gateway:
    """``velo serve --connect NAME`` on a host."""

    def __init__(self, hosts: Hosts, host: int, name: str, port: int = 8000) -> None:
        address = hosts.address(host)
        self.hosts, self.host, self.name, self.url = hosts, host, name, f"http://{address}:{port}"
        where = ("--host", address, "--port", str(port), "--ray-address", hosts.ray, "--json")
        command = (sys.executable, "-m", "velo", "serve", "--connect", name, *where)
        self.process = hosts.popen(host, *command, stdout=subprocess.PIPE)
        assert self.process.stdout is not None
        assert self.process.stdout.readline(), "the gateway ended"

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(60)


@dataclass(frozen=True, slots=True)
class Seen:
    """What one request saw."""

    at: float
    took_s: float
    shards: int
    right: bool
    error: str = ""
    missing: str = ""


class Asker:
    """Queries a gateway, from its host, until it is stopped."""

    def __init__(self, gateway: Gateway, vectors: np.ndarray, timeout_s: float = 5.0) -> None:
        self.seen: list[Seen] = []
        self._gateway, self._vectors, self._timeout_s = gateway, vectors, timeout_s
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        self._gateway.hosts.move_here(self._gateway.host)
        row = 0
        with Client(self._gateway.url, collection=self._gateway.name, retries=0, timeout_s=30) as client:
            while not self._over.is_set():
                started = time.monotonic()
                row = (row + 1) % len(self._vectors)
                shards, right, told, missing = 0, False, "", ""
                try:
                    found = client.search(self._vectors[row], k=1, list_size=100, timeout_s=self._timeout_s)
                    shards, right = found.shards_answered, found.ids.tolist() == [row]
                    missing = ", ".join(one["message"] for one in found.failures)
                except VeloError as error:
                    told = f"{type(error).__name__}: {error}"
                now = time.monotonic()
                self.seen.append(Seen(now, now - started, shards, right, told, missing))
                time.sleep(0.01)

    def until(self, true: Callable[[Seen], bool], within_s: float = PATIENCE_S) -> float:
        """Wait for an answer that meets a condition; the time of its arrival."""
        end, place = time.monotonic() + within_s, len(self.seen)
        while True:
            for one in self.seen[place:]:
                place += 1
                if true(one):
                    return one.at
            assert time.monotonic() < end, self.seen[-3:]
            time.sleep(0.01)

    def since(self, moment: float) -> list[Seen]:
        """Answers to what was asked after a moment."""
        return [one for one in self.seen if one.at - one.took_s >= moment]

    def end(self) -> None:
        self._over.set()
        self._thread.join(60)
