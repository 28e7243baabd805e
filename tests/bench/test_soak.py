"""``bench soak`` for a minute: every event once. It ends well, and it sees what does not."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from bench.commands import soak
from bench.commands.soak import quiet_samples, unannounced
from bench.commands.soak_events import ANNOUNCED, Window
from bench.commands.soak_load import Call, Ledger
from bench.commands.soak_page import Sample


@pytest.mark.long(
    guarded_by="tests/bench/test_soak.py::test_a_write_beside_a_publication_may_be_in_either_build"
)
@pytest.mark.timeout(900)
def test_a_minute_of_everything(tmp_path: Path) -> None:
    seed = int(os.environ.get("VELO_TEST_SEED", "0")) or int.from_bytes(os.urandom(3), "little")
    print(f"VELO_TEST_SEED={seed}")
    plan = soak.Plan(
        minutes=1.0, rest_s=2.0, rows=4000, shards=2, readers=3, writers=2, seed=seed, patient=True
    )
    verdicts = soak.run(plan, out=tmp_path, name="minute", work=tmp_path)
    assert len(verdicts) == 13
    # A minute is too short to tell flat figures.
    broken = [one for one in verdicts if not one.holds and "flat" not in one.what]
    assert broken == []
    rows = [json.loads(line) for line in (tmp_path / "soak-minute.jsonl").read_text().splitlines()]
    events = {row["event"]: row for row in rows if row["what"] == "event"}
    assert set(events) == set(ANNOUNCED)
    assert all(row["reads"]["calls"] > 0 for row in events.values())
    page = (tmp_path / "soak-minute.md").read_text()
    assert all(what in page for what in ANNOUNCED)
    assert (tmp_path / "soak-minute.png").stat().st_size > 20_000


def call(at_s: float, outcome: str, kind: str = "read", took_s: float = 0.1) -> Call:
    return Call(at_s, took_s, kind, "one", outcome)  # type: ignore[arg-type]


def test_only_what_an_event_announces_is_announced() -> None:
    windows = [
        Window("a gateway is killed", 10.0, 12.0),
        Window("a replica that writes is killed", 20.0, 25.0),
        Window("another build is published", 30.0, 40.0),
    ]
    fine = [
        call(1.0, ""),
        call(9.95, "ConnectionFailedError"),  # it was under way
        call(22.0, "PartialWriteError", "write"),
    ]
    bad = [
        call(9.0, "ConnectionFailedError"),
        call(12.5, "ConnectionFailedError"),
        call(11.0, "partial"),
        call(22.0, "PartialWriteError"),
        call(22.0, "ConnectionFailedError", "write"),
        call(35.0, "NoShardAnsweredError", "write"),
        call(35.0, "wrong: not of one build"),
    ]
    assert unannounced([*fine, *bad], windows) == bad


def test_processes_are_compared_while_nothing_happens_and_all_are_there() -> None:
    samples = [
        Sample(at_s, "shards", count, 1, 1) for at_s, count in ((1, 4), (2, 4), (3, 3), (4, 4), (9, 4))
    ]
    samples.append(Sample(2.0, "parent", 1, 1, 1))
    windows = [Window("a gateway is killed", 3.5, 5.0)]
    assert [one.at_s for one in quiet_samples(samples, windows, "shards")] == [1, 2, 9]


def test_a_write_beside_a_publication_may_be_in_either_build() -> None:
    ledger = Ledger()
    ledger.wrote(("a", 0), {1: 7, 2: None})
    assert ledger.rows == {"a": {1: 7, 2: None}, "b": {}}
    before = ledger.serving
    ledger.serving = (None, 0)
    ledger.wrote(before, {1: 8})
    ledger.serving = ("b", 1)
    ledger.wrote(("b", 1), {2: 9})
    assert ledger.unknown == {"a": {1}, "b": {1}}
    ledger.wrote(("b", 1), {1: 10})
    assert ledger.unknown == {"a": {1}, "b": set()}
    assert ledger.rows["b"] == {2: 9, 1: 10}


def test_what_ran_beside_a_publication_is_not_certain_until_it_is_written_again() -> None:
    ledger = Ledger()
    ledger.wrote(("a", 0), {1: 7, 2: None})
    ledger.wrote((None, 0), {1: None})
    assert not ledger.is_there("a", 1)
    ledger.wrote(("a", 0), {1: 9})
    assert ledger.is_there("a", 1)
    assert not any(ledger.is_there(build, one) for build, one in (("a", 2), ("a", 3), ("b", 1), (None, 1)))
