"""What `./dev test` runs side by side: every log whole, one status for all, and one end for all."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

BESIDE = Path(__file__).with_name("beside.py")


def beside(*commands: tuple[str, str]) -> list[str]:
    """The command line for shell commands with names."""
    words = [[name, "0", "sh", "-c", text] for name, text in commands]
    return [sys.executable, str(BESIDE), *words[0], *(word for one in words[1:] for word in (":::", *one))]


def test_every_log_is_whole_and_the_last_lines_say_how_all_ended() -> None:
    talking = "for i in 1 2 3 4 5; do echo {0} $i; sleep 0.02; done; echo '== {0} ends'"
    done = subprocess.run(
        beside(("one", talking.format("one")), ("two", talking.format("two") + "; exit 3")),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    for name in ("one", "two"):
        assert "".join(f"{name} {i}\n" for i in range(1, 6)) in done.stdout, "another log came between"
    one, two, all_of_them = done.stdout.splitlines()[-3:]
    assert one.startswith("dev: one: passed in 0:0")
    assert one.endswith(": one ends"), "the last words of a command, such as pytest's counts"
    assert two.startswith("dev: two: FAILED with 3 in 0:0")
    assert all_of_them == "dev: FAILED: two"


@pytest.mark.parametrize("ends", ["exit 0", "exit 1", "kill -9 $$"])
def test_the_status_is_0_only_if_all_are(ends: str) -> None:
    command = beside(("first", ends), ("second", "exit 0"))
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == (0 if ends == "exit 0" else 1), done.stdout
    assert done.stdout.splitlines()[-1] == ("dev: all passed" if ends == "exit 0" else "dev: FAILED: first")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_all_and_what_they_started(number: signal.Signals, tmp_path: Path) -> None:
    """One takes its time to put things away; another has a child that ignores interrupts."""
    tidy = f"trap 'echo tidied; exit 1' INT; touch {tmp_path}/1; while :; do sleep 0.05; done"
    stubborn = (
        f"sh -c 'trap \"\" INT; echo $$ > {tmp_path}/pid; mv {tmp_path}/pid {tmp_path}/2; sleep 100' & wait"
    )
    with subprocess.Popen(
        beside(("tidy", tidy), ("stubborn", stubborn)),
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN),  # as in a shell's background
    ) as process:
        end = time.monotonic() + 60
        while not all((tmp_path / name).exists() for name in "12"):
            assert time.monotonic() < end, "they do not start"
            time.sleep(0.02)
        process.send_signal(number)
        told, _ = process.communicate(timeout=60)
    assert process.returncode == 128 + number
    assert "tidied\n" in told
    child = int((tmp_path / "2").read_text())
    state = Path(f"/proc/{child}/stat")
    while state.exists() and state.read_text().rpartition(")")[2].split()[0] != "Z":
        assert time.monotonic() < end, "what a command started lives on"
        time.sleep(0.02)
