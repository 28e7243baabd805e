"""A shard over an exact index: grouping, blame, health."""

from __future__ import annotations

import asyncio
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.serving.fakes import ExactIndex
from velo.errors import CorruptIndexError, NotAnIndexError, SearchTimeoutError, VeloError
from velo_serving.errors import QueueFullError, RemoteError, ShardNotHereError, ShardUnavailableError
from velo_serving.shard import Shard, ShardSpec
from velo_serving.types import Failure, Hits, SearchRequest, ShardReply

VECTORS = np.random.default_rng(7).standard_normal((50, 4)).astype(np.float32)


def opened(folder: Path) -> tuple[Shard, ExactIndex]:
    index = ExactIndex(VECTORS)
    shard = Shard(ShardSpec("a", str(folder)), lambda spec: index)
    shard.open()
    return shard, index


def ask(*rows: int, k: int = 3, **options: Any) -> SearchRequest:
    return SearchRequest(VECTORS[list(rows)], k, **options)


def answer(shard: Shard, *requests: SearchRequest) -> list[ShardReply]:
    return asyncio.run(shard.search(requests))


def ids(reply: ShardReply) -> list[list[int]]:
    assert isinstance(reply, Hits)
    rows: list[list[int]] = reply.ids.tolist()
    return rows


def test_requests_with_equal_options_share_one_native_call(tmp_path: Path) -> None:
    shard, index = opened(tmp_path)
    together = answer(shard, ask(1, 2), ask(3), ask(4, 5, 6))
    assert len(index.calls) == 1
    assert index.calls[0]["queries"] == 6
    assert index.calls[0]["filter"] is None
    alone = [answer(shard, one)[0] for one in (ask(1, 2), ask(3), ask(4, 5, 6))]
    assert [ids(reply) for reply in together] == [ids(reply) for reply in alone]
    assert [reply.reads for reply in together if isinstance(reply, Hits)] == [6, 3, 9]


def test_requests_with_other_options_get_calls_of_their_own(tmp_path: Path) -> None:
    shard, index = opened(tmp_path)
    replies = answer(shard, ask(1, k=2), ask(2, k=5), ask(3, k=2), ask(4, k=2, recall=0.5))
    assert sorted(call["queries"] for call in index.calls) == [1, 1, 2]
    assert [len(ids(reply)[0]) for reply in replies] == [2, 5, 2, 2]


def test_filters_travel_together_each_with_its_query(tmp_path: Path) -> None:
    shard, index = opened(tmp_path)
    odd, even = {"parity": 1}, {"parity": 0}
    replies = answer(shard, ask(1, 2, filters=(odd,)), ask(3), ask(4, 5, filters=(even, None)))
    assert len(index.calls) == 1
    assert index.calls[0]["filter"] == [odd, odd, None, even, None]
    assert all(one % 2 == 1 for row in ids(replies[0]) for one in row)
    assert all(one % 2 == 0 for one in ids(replies[2])[0])
    assert ids(replies[2])[1] == ids(answer(shard, ask(5))[0])[0]


def test_one_filter_for_all_is_passed_once(tmp_path: Path) -> None:
    shard, index = opened(tmp_path)
    answer(shard, ask(1, 2, filters=({"parity": 1},)), ask(3, filters=({"parity": 1},)))
    assert index.calls[0]["filter"] == {"parity": 1}


def test_a_wrong_filter_fails_alone_and_is_named(tmp_path: Path) -> None:
    shard, _ = opened(tmp_path)
    replies = answer(
        shard, ask(1), ask(2, 3, filters=(None, {"colour": 1})), ask(4, filters=({"parity": 0},))
    )
    assert ids(replies[0]) == ids(answer(shard, ask(1))[0])
    assert isinstance(replies[2], Hits)
    failure = replies[1]
    assert isinstance(failure, Failure)
    assert (failure.kind, failure.fault, failure.query) == ("UnknownColumnError", "caller", 1)


def test_a_damaged_page_touches_only_the_request_that_needs_it(tmp_path: Path) -> None:
    shard, index = opened(tmp_path)
    damaged = CorruptIndexError("page 9 is damaged", file="pages.bin", page=9)
    index.fail = lambda call: damaged if call["queries"] != 1 else None
    replies = answer(shard, ask(1), ask(2), ask(3, 4))
    assert [isinstance(reply, Hits) for reply in replies] == [True, True, False]
    failure = replies[2]
    assert isinstance(failure, Failure)
    assert (failure.kind, failure.fault, failure.file, failure.page) == (
        "CorruptIndexError",
        "shard",
        "pages.bin",
        9,
    )


def test_a_deadline_inside_the_index_is_no_fault_of_the_shard(tmp_path: Path) -> None:
    shard, index = opened(tmp_path)
    index.fail = lambda call: SearchTimeoutError("too slow")
    failure = answer(shard, ask(1))[0]
    assert isinstance(failure, Failure)
    assert failure.fault == "deadline"


def test_deadlines_are_rounded_up_so_that_calls_can_be_shared(tmp_path: Path) -> None:
    shard, index = opened(tmp_path)
    answer(shard, ask(1, timeout_s=0.31), ask(2, timeout_s=0.34))
    assert len(index.calls) == 1
    assert index.calls[0]["timeout_s"] == pytest.approx(0.4)


def test_metadata_comes_as_rows(tmp_path: Path) -> None:
    shard, _ = opened(tmp_path)
    reply = answer(shard, ask(1, 2, return_metadata=("parity",)), ask(3, return_metadata=("parity",)))[1]
    assert isinstance(reply, Hits)
    assert reply.metadata == [[{"parity": one % 2} for one in ids(reply)[0]]]


def test_health_tells_what_is_served(tmp_path: Path) -> None:
    shard, _ = opened(tmp_path)
    health = shard.health()
    assert (health.n, health.dim, health.metric, health.memory_bytes) == (50, 4, "l2", 1024)
    assert health.device == "exact"
    assert health.failure is None


def test_a_shard_that_is_not_on_this_node_says_so(tmp_path: Path) -> None:
    missing = tmp_path / "elsewhere"
    shard = Shard(ShardSpec("a", str(missing)), lambda spec: ExactIndex(VECTORS))
    with pytest.raises(ShardNotHereError, match=f"there is no folder {missing}"):
        shard.open()
    assert isinstance(ShardNotHereError(), NotAnIndexError)
    health = shard.health()
    assert health.failure is not None
    assert isinstance(health.failure.to_error(), ShardNotHereError)
    with pytest.raises(ShardUnavailableError):
        answer(shard, ask(1))
    missing.mkdir()  # the disk is mounted at last
    assert shard.health().n == 50
    assert isinstance(answer(shard, ask(1))[0], Hits)


def test_a_closed_shard_is_unavailable_and_stays_closed(tmp_path: Path) -> None:
    shard, index = opened(tmp_path)
    shard.close()
    assert index.closed
    with pytest.raises(ShardUnavailableError):
        answer(shard, ask(1))
    failure = shard.health().failure
    assert failure is not None
    assert failure.kind == "ShardUnavailableError"


@pytest.mark.parametrize(
    ("error", "kind", "fault"),
    [
        (CorruptIndexError("bad", file="pages.bin", page=3), CorruptIndexError, "shard"),
        (QueueFullError("full"), QueueFullError, "shard"),
        (KeyError("x"), RemoteError, "shard"),
    ],
)
def test_failures_cross_processes_and_become_errors_again(
    error: Exception, kind: type[VeloError], fault: str
) -> None:
    failure = pickle.loads(pickle.dumps(Failure.of(error)))
    assert failure == Failure.of(error)
    assert failure.fault == fault
    again = failure.to_error()
    assert type(again) is kind
    if isinstance(error, VeloError):
        assert (again.message, again.file, again.page) == (error.message, error.file, error.page)
