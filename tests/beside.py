"""Commands side by side: each log whole when its command ends, and a line for each at the end.

``python tests/beside.py NAME NICE COMMAND … ::: NAME NICE COMMAND …``, which needs nothing installed.
The status is 0 if every command's is. An interrupt ends all of them and what they started.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from typing import IO

#: What an interrupted command has to put its things away before it is killed.
PATIENCE_S = 20.0

#: What terminals take for colors.
_COLORS = re.compile(r"\x1b\[[0-9;]*m")


@dataclass
class Command:
    """One of them."""

    name: str
    nice: int
    words: list[str]
    began: float = field(default_factory=time.monotonic)
    status: int | None = None
    told: str = ""

    def start(self) -> None:
        """Start it in a process group of its own; what it writes goes into a file."""
        self.log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - it lives as long as the command
        self.process = subprocess.Popen(
            self.words,
            stdin=subprocess.DEVNULL,
            stdout=self.log,
            stderr=subprocess.STDOUT,
            preexec_fn=self._own_group,  # no thread runs yet
        )

    def _own_group(self) -> None:
        os.setpgid(0, 0)
        os.nice(self.nice)
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # a shell's background ignores it

    def wait(self, say: threading.Lock) -> None:
        """Wait for it and show what it wrote."""
        _, waited, used = os.wait4(self.process.pid, 0)
        self.process.returncode = os.waitstatus_to_exitcode(waited)  # or Popen would ask for it again
        self.log.seek(0)
        log = self.log.read()
        self.log.close()
        wall = time.monotonic() - self.began
        last = _COLORS.sub("", log.decode(errors="replace")).strip().rpartition("\n")[2].strip("= ")
        verdict = "passed" if self.process.returncode == 0 else f"FAILED with {self.process.returncode}"
        took = f"{_clock(wall)}, {_clock(used.ru_utime + used.ru_stime)} of a processor"
        self.told = f"{self.name}: {verdict} in {took}" + (f": {last}" if last else "")
        with say:
            _say(f"---- {self.name}")
            sys.stdout.buffer.write(log)
            _say(f"---- {self.name}: {verdict}")
        self.status = self.process.returncode

    def end(self, number: int) -> None:
        """Send a signal to it and to what it started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)


def _clock(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"


def _say(text: str) -> None:
    sys.stdout.buffer.write(f"dev: {text}\n".encode())
    sys.stdout.buffer.flush()


class _Interrupted(BaseException):
    """A signal asks for the end."""


def _interrupt(number: int, frame: object) -> None:
    raise _Interrupted(number)


def run(commands: list[Command]) -> int:
    """Run them; 0 if all ended with 0, 128 and the signal's number if one asked for the end."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    for number in numbers:
        signal.signal(number, _interrupt)
    try:
        for command in commands:
            command.start()
        _say("side by side: " + "; ".join(command.name for command in commands))
        say = threading.Lock()
        threads = [threading.Thread(target=command.wait, args=(say,), daemon=True) for command in commands]
        for thread in threads:
            thread.start()
        for thread in threads:
            while thread.is_alive():
                thread.join(0.2)  # signals come between
    except _Interrupted as asked:
        for number in numbers:
            signal.signal(number, signal.SIG_IGN)
        started = [command for command in commands if hasattr(command, "process")]
        for command in started:
            command.end(signal.SIGINT)
        until = time.monotonic() + PATIENCE_S
        while any(command.status is None for command in started) and time.monotonic() < until:
            time.sleep(0.05)
        for command in started:
            command.end(signal.SIGKILL)  # also what an ended command left
        return 128 + int(asked.args[0])
    if len(commands) > 1:
        for command in commands:
            _say(command.told)
    failed = [command.name for command in commands if command.status]
    _say("FAILED: " + "; ".join(failed) if failed else "all passed")
    return 1 if failed else 0


def parse(words: list[str]) -> list[Command]:
    """The commands of a command line."""
    commands: list[Command] = []
    rest = [*words, ":::"]
    while rest:
        at = rest.index(":::")
        name, nice, *command = rest[:at]
        commands.append(Command(name, int(nice), command))
        rest = rest[at + 1 :]
    return commands


if __name__ == "__main__":
    sys.exit(run(parse(sys.argv[1:])))
