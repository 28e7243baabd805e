"""Each statement of ``docs/serving.md`` about a failure has a test, which is named here."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Final

import numpy as np
import pytest

import velo
from tests.serving.fakes import CommandedChannel, backend_of
from velo.errors import UnsupportedError
from velo_serving.protocol.errors import UnknownCollectionError
from velo_serving.shard.rows import look_up

HERE: Final = Path(__file__).parent
PAGE: Final = (HERE.parents[1] / "docs" / "serving.md").read_text()

#: Tests by their modules, without ``test_``, each with parts of the statements that it is for.
STATEMENTS: Final = {
    "workers": {
        "a_gateway_that_stays_stopped_is_replaced": [
            "or is unresponsive for 15 seconds",
        ],
        "a_killed_gateway_is_restarted_and_the_other_answers_meanwhile": [
            "`process ended and is started again`",
        ],
        "a_first_signal_drains_all_gateways_and_a_second_ends_them": [
            "A second signal ends the drain",
        ],
    },
    "events": {
        "a_server_starts_with_the_shards_that_open_and_takes_in_the_others": [
            "The log names the others, answers are [partial]",
            "`--require-all` makes a missing shard an error",
        ],
        "stopped_and_killed_shards_delay_nobody_and_come_back": [
            "**A shard that dies** is down at once",
            "answers are partial rather than late",
            "velo restarts dead processes",
        ],
        "a_replica_answers_for_a_killed_or_stopped_one": [
            "answers are complete while one of them is down",
        ],
        "at_twice_the_load_requests_are_refused_early_and_none_is_late": [
            "refuses others with a 429 before it parses them",
        ],
    },
    "serve_command": {
        "a_port_in_use_is_refused_in_one_line": [
            "If the port is in use",
        ],
        "errors_arrive_as_the_librarys_own": [
            "Other errors are raised as the exception",
        ],
        "a_draining_server_is_not_ready_and_still_answers": [
            "else 503; 503 while it drains",
            "`/readyz` returns 503 so that balancers",
            "On SIGTERM `/readyz` fails at once",
        ],
        "a_server_of_shards_ends_cleanly_after_the_request_under_way": [
            "SIGTERM ends the server",
        ],
    },
    "client_keywords": {
        "an_unknown_keyword_is_pythons_own_error": [
            "Unknown ones are a `TypeError`",
        ],
    },
    "client_connections": {
        "no_connection_in_time_is_an_error_of_its_own": [
            "it raises `ConnectionsBusyError`",
        ],
    },
    "client": {
        "the_client_retries_after_the_given_time": [
            "The client retries after 429, 503",
        ],
    },
    "lookups": {
        "rows_of_ids_come_in_the_order_asked_for": [
            "an unknown id is a 404, or left out",
        ],
    },
    "router": {
        "without_partial_answers_a_missing_shard_is_an_error": [
            "false makes a missing shard an error",
        ],
        "a_full_queue_refuses_with_a_time_to_retry": [
            "requests above a limit are refused immediately",
            "| queries admitted and not answered",
        ],
        "a_request_that_would_wait_too_long_is_refused_at_once": [
            "| expected seconds of waiting",
        ],
    },
    "gateway_refusals": {
        "bad_fields_are_refused_with_their_path": [
            "Unknown fields are refused",
            "| 422 |",
            "| conditions in one filter",
        ],
        "invalid_json_is_400_with_its_position": [
            "| 400 |",
        ],
        "methods_paths_and_types": [
            "| 404, 405 |",
            "| 406, 415 |",
        ],
        "a_body_that_is_not_sent_is_408": [
            "| 408 |",
            "| seconds for a body to arrive",
        ],
        "bodies_above_the_limits_are_413": [
            "| 413 |",
            "| bytes of a body;",
            "| vectors in one request",
            "| vectors times `k` |",
            "| all distinct SQL texts",
        ],
        "limits_include_their_ends": [
            "| `k` | 10,000",
        ],
    },
    "hit_vectors": {
        "a_build_without_vectors_says_so": [
            "the answer is a 422 with `UnsupportedError`",
        ],
        "bytes_of_vectors_are_bounded": [
            "more is a 413",
            "| bytes of vectors in an answer",
        ],
        "a_shard_that_keeps_its_vectors_is_missing": [
            "its hits stay, and their vectors are null",
        ],
        "a_row_that_is_deleted_meanwhile_is_no_error": [
            "a row that was deleted after the search",
        ],
    },
    "moving": {
        "a_failure_at_any_step_leaves_the_shard_where_it_is": [
            "A failure before step 3 leaves the shard where it was",
        ],
        "a_copy_that_was_killed_is_removed_by_the_next_move": [
            "If the server itself is killed, remove `.NAME.moving`",
        ],
        "a_commit_without_an_answer_removes_nothing": [
            "If the process of the shard dies during step 3",
        ],
        "wrong_moves_are_refused": [
            "no such shard, a path that is not absolute",
            "a shard with replicas, which share its folder",
            "the target is a file or a folder with files",
            "another shard of the collection is being moved",
        ],
        "a_full_device_of_the_target_leaves_the_shard_where_it_is": [
            "the device of the target has less room than the shard takes",
        ],
        "a_move_that_takes_too_long_lets_writes_go_on": [
            "one that opens in more than 8 s cannot be moved",
        ],
    },
    "statements": {
        "a_replaced_row_has_its_new_vector": [
            "a replaced row has its new vector",
        ],
        "an_alias_is_not_dropped": [
            "Aliases cannot be dropped",
        ],
        "no_snapshot_is_taken_on_ray": [
            "it is an `UnsupportedError`: use `velo snapshot`",
        ],
    },
    "schema": {
        "random_requests_get_answers_that_match_the_schema": [
            "An error is always",
        ],
    },
    "writes": {
        "a_full_device_refuses_writes_until_there_is_room": [
            "| 409, 507 |",
        ],
    },
    "access": {
        "every_path_but_the_open_ones_asks_for_a_key": [
            "| 401, 403 |",
        ],
    },
    "gateway_load": {
        "a_full_queue_is_429_with_retry_after": [
            "| 429 |",
        ],
        "a_damaged_index_is_503_and_names_the_page": [
            "| 503 |",
        ],
        "the_deadline_is_504": [
            "| 504 |",
        ],
        "dead_shards_partial_then_503_and_readiness": [
            "gives the reason for each missing shard",
        ],
        "bodies_that_arrive_are_bounded_together": [
            "| bytes of all bodies that are arriving",
        ],
        "a_slow_sender_takes_no_place_in_the_queue": [
            "| requests in progress in the gateway",
        ],
        "a_disconnected_client_cancels_its_search": [
            "A search ends when its client disconnects",
        ],
        "a_request_that_outlives_the_server_gets_a_typed_503": [
            "before they fail with a 503",
        ],
    },
    "real_collections": {
        "one_damaged_shard_makes_answers_partial": [
            "A damaged page makes only its",
        ],
    },
    "router_health": {
        "a_lost_connection_fails_requests_in_flight_at_once": [
            "Its pending requests are answered without it",
        ],
        "a_shard_that_stalls_loses_no_request": [
            "those that it has already wait for it",
        ],
        "a_silent_shard_goes_down_even_if_its_health_is_good": [
            "After a second of silence it is down",
        ],
        "a_working_shard_gets_bounded_extra_time": [
            "A busy shard gets up to ten seconds",
        ],
        "a_dead_shard_makes_answers_partial_then_comes_back": [
            "**A shard is up again** when",
        ],
    },
    "faults": {
        "a_hung_shard_that_still_reports_health_delays_nobody": [
            "**A shard that hangs** is detected by searches",
        ],
        "a_shard_that_returns_with_another_index_is_refused": [
            "A shard that returns with another index",
        ],
    },
    "stalls": {
        "no_search_fails_for_an_event_loop_that_stalls": [
            "Only time in which the gateway itself runs counts",
        ],
    },
    "replicas": {
        "requests_of_a_dead_replica_go_to_the_other_at_once": [
            "a replica that dies go to the other at once",
        ],
    },
    "collections": {
        "a_restart_serves_all_collections_and_ends_a_killed_removal": [
            "served again after a restart",
            "An interrupted removal continues",
        ],
        "a_collection_is_created_written_copied_and_dropped": [
            "or whose folder is not empty, is a 409",
            "ends the shards' processes and removes",
        ],
    },
    "publish": {
        "a_version_is_published_under_load": [
            "No request fails, and every answer is of one version",
        ],
        "publishing_an_invalid_path_is_refused": [
            "A build that cannot be opened",
        ],
        "an_invalid_file_of_aliases_is_refused": [
            "A file with an invalid line",
        ],
    },
    "publish_places": {
        "builds_come_from_allowed_places": [
            "a client cannot make the server connect",
        ],
    },
    "abuse": {
        "sql_that_takes_seconds_to_read_is_refused_at_once": [
            "| SQL text of one filter",
        ],
        "headers_must_arrive_within_their_time": [
            "| seconds for a connection to send its",
        ],
    },
    "idle_connections": {
        "the_oldest_idle_connections_are_closed_for_new_ones": [
            "| connections that have not sent",
        ],
    },
    "overload": {
        "more_load_than_a_gateway_can_answer_does_not_end_its_answers": [
            "no answer is sent later than 20 ms after it",
        ],
    },
    "logs": {
        "errors_tell_the_id_even_those_that_are_our_mistake": [
            "every error the same `request_id`",
        ],
        "what_happens_to_shards_is_logged_without_a_word_to_clients": [
            "`shard is down`",
            "`shard failed`",
            "`answer is partial`",
            "Answers name a shard and the kind of its failure",
        ],
        "each_change_is_logged_for_an_audit": [
            "| `audit` |",
        ],
    },
    "tracing": {
        "a_failed_search_fails_its_span": [
            "has a span with error status",
        ],
    },
    "killed_parent": {
        "the_processes_of_a_killed_server_end_and_release_the_index": [
            "If the server is killed",
        ],
    },
    "shard": {
        "a_shard_on_a_full_device_serves_reads": [
            "because its device is full is served to read",
        ],
    },
    "proxy": {
        "an_idle_connection_outlives_the_time_for_headers": [
            "seconds after which an idle connection is closed",
        ],
    },
}

#: A sentence with one of these is a statement about a failure, unless it contains one of the others.
WORDS: Final = re.compile(
    r"\b(dies|hangs|killed|is down|refuse[sd]?|interrupted|invalid line|damaged|[45]\d\d|\w+Error"
    r"|missing shard|ends the|cannot be|is full)\b"
)
OTHERS: Final = re.compile(r"velo_\w+`|velo-alerts")


def statements() -> list[str]:
    """The sentences of the page, and the rows of its tables."""
    found: list[str] = []
    for block in re.split(r"\n\s*\n", re.sub(r"```.*?```", "", PAGE, flags=re.DOTALL)):
        if block.lstrip().startswith("|"):
            found += block.splitlines()
        else:
            found += re.split(r"(?<=[.!?])\s+(?=[A-Z*`\[])", " ".join(block.split()))
    return found


def test_every_statement_about_a_failure_has_a_test() -> None:
    page = " ".join(PAGE.split())
    tested: list[str] = []
    for module, tests in STATEMENTS.items():
        code = (HERE / f"test_{module}.py").read_text()
        for test, parts in tests.items():
            assert f"def test_{test}(" in code, test
            tested += parts
    assert [part for part in tested if part not in page] == []
    assert [
        one
        for one in statements()
        if WORDS.search(one) and not OTHERS.search(one) and not any(part in one for part in tested)
    ] == []


def test_a_replaced_row_has_its_new_vector(tmp_path: Path) -> None:
    vectors = np.eye(4, dtype=np.float32)
    with velo.create(tmp_path / "rows.velo", dim=4) as index:
        index.insert(vectors)
        found = index.search(vectors[1], 1).ids.tolist()
        index.upsert(vectors[3:] / 2, ids=found)
        told = look_up(index, "vectors", {"ids": found})
    assert np.frombuffer(told["vectors"], "<f4").tolist() == [0, 0, 0, 0.5]


async def test_an_alias_is_not_dropped() -> None:
    backend = backend_of([CommandedChannel(0)])
    backend._keeper = object()  # type: ignore[assignment]
    backend.alias({"shop": "things"})
    assert backend.collection("shop").name == "things"
    with pytest.raises(UnknownCollectionError):
        await backend.drop("shop")


@pytest.mark.ray
def test_no_snapshot_is_taken_on_ray() -> None:
    from velo_serving.on_ray.cluster import Cluster

    with pytest.raises(UnsupportedError, match="velo snapshot"):
        asyncio.run(Cluster.snapshot(object(), "shop", "/copy"))  # type: ignore[arg-type]
