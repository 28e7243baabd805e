"""Processes that are started here, spoken to in lines of JSON, and started again when they die."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent import futures
from typing import Any

from velo_serving.protocol.errors import ChildEndedError
from velo_serving.shard.process import QUESTION

#: Pauses before a process that died is started again: the first, and the most.
RESTART_S = 0.05
RESTART_MAX_S = 5.0

#: How long a process may take to end before it is killed.
END_S = 5.0


log = logging.getLogger("velo_serving")


class Child:
    """A Python module in a process of its own, restarted when it dies.

    The process reads messages and writes lines of JSON. Its first line, questions apart, reports that it is
    ready. It ends when its input ends, and is killed with its parent (``end_with_parent``).

    Parameters
    ----------
    message : callable
        Makes the first message at each start.
    descriptors : sequence of int
        Inherited ones.
    on_question : callable, optional
        Called in a thread with a line that begins with a question mark, without it.
    on_death : callable, optional
        Called in a thread before a restart.
    """

    def __init__(
        self,
        name: str,
        module: str,
        message: Callable[[], Mapping[str, Any]],
        *,
        environment: Mapping[str, str] | None = None,
        descriptors: Sequence[int] = (),
        on_question: Callable[[str], None] | None = None,
        on_death: Callable[[], None] | None = None,
    ) -> None:
        self.name = name
        self.starts = 0
        self._has_written = False
        self._asked = 0
        self._module = module
        self._message = message
        self._environment = dict(environment or {})
        self._descriptors = tuple(descriptors)
        self._on_question = on_question
        self._on_death = on_death
        self._first: futures.Future[str] = futures.Future()
        self._closing = threading.Event()
        self._lock = threading.Lock()
        self._process: subprocess.Popen[str] | None = None
        self._watch = threading.Thread(target=self._keep_alive, name=f"velo-watch-{name}", daemon=True)

    @property
    def pid(self) -> int:
        with self._lock:
            return 0 if self._process is None else self._process.pid

    def launch(self) -> None:
        self._watch.start()

    def first_line(self) -> str:
        return self._first.result()

    def is_there(self, timeout_s: float) -> bool:
        """Wait for the first line of the first process; return whether it came."""
        done, _ = futures.wait([self._first], timeout_s)
        return bool(done) and self._first.result() is not None

    def tell(self, message: Any) -> None:
        """Write a line; ignored if the process has ended."""
        with self._lock:
            process = self._process
            if process is None or process.stdin is None or process.stdin.closed:
                return
            with contextlib.suppress(OSError):  # it died, which the watching thread notices
                process.stdin.write(json.dumps(message) + "\n")
                process.stdin.flush()

    def ping(self, message: Any) -> int:
        """Ask whether the process works; return the number of unanswered pings since its last line."""
        self._asked += self._has_written
        self.tell(message)
        return self._asked - 1

    def poke(self, number: int) -> None:
        with self._lock:
            if self._process is not None:
                self._process.send_signal(number)

    def signal(self, number: int) -> None:
        self._closing.set()
        with self._lock:
            if self._process is not None:
                self._process.send_signal(number)

    def wait(self, timeout_s: float) -> bool:
        """Wait for the end of a process that is not restarted; return whether it ended."""
        self._watch.join(timeout_s)
        return not self._watch.is_alive()

    def close(self) -> None:
        self._closing.set()
        if self._watch.ident is None:
            return
        with self._lock:
            process = self._process
            if process is not None and process.stdin is not None:
                with contextlib.suppress(OSError):  # it may have ended
                    process.stdin.close()  # its sign to end
        if not self.wait(END_S):
            self.poke(signal.SIGKILL)
            self._watch.join()

    def _start(self) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-m", self._module, str(os.getpid())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            pass_fds=self._descriptors,
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
                **self._environment,
            },
        )
        with self._lock:
            self._process = process
            self.starts += 1
            self._has_written, self._asked = False, 0
        self.tell(self._message())
        return process

    def _keep_alive(self) -> None:
        # All starts are in this thread: a process is killed with the thread that started it.
        pause_s = RESTART_S
        while True:
            how = "could not be started"
            with contextlib.suppress(OSError):  # of resources that are short
                process = self._start()
                if self._closing.is_set():
                    process.kill()  # ``close`` saw the former process, or none
                if self._listen(process):
                    pause_s = RESTART_S
                how = f"ended with {process.wait()}"
                with self._lock:
                    self._let_go(process)
            if not self._first.done():
                self._first.set_exception(ChildEndedError(f"the process of {self.name} {how} as it started"))
                return
            if not self._closing.is_set():
                facts = {"process": self.name, "reason": how, "restart_s": pause_s}
                log.warning("process ended and is started again", extra={"velo": facts})
            if self._on_death is not None:
                self._on_death()
            if self._closing.wait(pause_s):
                return
            pause_s = min(2 * pause_s, RESTART_MAX_S)

    def _listen(self, process: subprocess.Popen[str]) -> bool:
        """Read the lines of the process until it ends; return whether there were any."""
        assert process.stdout is not None
        said = False
        for line in process.stdout:
            said = self._has_written = True
            self._asked = 0
            if line.startswith(QUESTION):
                assert self._on_question is not None
                self._on_question(line[len(QUESTION) :])
            elif not self._first.done():
                self._first.set_result(line)
        return said

    @staticmethod
    def _let_go(process: subprocess.Popen[str]) -> None:
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):  # unwritten output is lost
                    pipe.close()
