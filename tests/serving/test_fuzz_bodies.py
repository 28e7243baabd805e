"""Randomly changed bodies: each is a valid request or an error of the client."""

from __future__ import annotations

import contextlib
import json
import random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.long import count
from tests.serving.exact_gateway import ARROW_TYPE, arrow, rows_in_arrow
from velo.errors import VeloError
from velo_serving.gateway.bodies import parse_search
from velo_serving.gateway.errors import RequestError, status_of
from velo_serving.gateway.write_bodies import parse_write
from velo_serving.protocol.errors import MalformedBodyError
from velo_serving.protocol.limits import GatewayLimits
from velo_serving.routing.writes import RowFormat

DIM = 4
ROUNDS = count(500, 3000)
LIMITS = GatewayLimits(queries_max=100)
VECTORS = np.arange(12, dtype=np.float32).reshape(3, DIM)

WHOLE = {
    "application/json": json.dumps(
        {
            "vectors": VECTORS.tolist(),
            "k": 5,
            "filters": [None, {"a": {"$in": [1, 2]}}, {"$or": [{"b": "x"}]}],
        }
    ).encode(),
    ARROW_TYPE: arrow(vector=pa.array(VECTORS.tolist()), filter=pa.array(['{"a": 1}', None, "{}"])),
}


def parsed(media_type: str, body: bytes, pairs: list[tuple[str, str]]) -> None:
    """Parse; an error must be one that is mapped to 4xx."""
    try:
        request = parse_search(media_type, body, pairs, dim=DIM, limits=LIMITS)
    except VeloError as error:
        if not 400 <= status_of(error) < 500:
            raise
        return
    assert request.queries.dtype == np.float32
    assert request.queries.shape[1] == DIM
    assert np.isfinite(request.queries).all()


SCHEMA = pa.schema([("tag", pa.string()), ("day", pa.date32()), ("id", pa.int32())])
ROWS = RowFormat(np.dtype(np.float32), SCHEMA, numbered=False)
DAYS = pa.array([18_000, None, 1], pa.date32())
WRITES = {
    "application/json": json.dumps(
        {
            "vectors": VECTORS.tolist(),
            "ids": [3, 4, 5],
            "metadata": {"tag": ["a", None, "b"], "day": ["2024-01-02", None, None], "id": [1, 2, 3]},
        }
    ).encode(),
    ARROW_TYPE: arrow(
        vector=pa.array(VECTORS.tolist()),
        id=pa.array([3, 4, 5]),
        tag=pa.array(["a", None, "b"]),
        day=DAYS,
        **{"metadata.id": pa.array([1, 2, 3], pa.int32())},
    ),
}


def written(verb: Any, media_type: str, body: bytes) -> None:
    """Parse a write; an error must be one that is mapped to 4xx."""
    try:
        request = parse_write(verb, media_type, body, [], dim=DIM, rows=ROWS, limits=LIMITS)
    except VeloError as error:
        if not 400 <= status_of(error) < 500:
            raise
        return
    assert request.vectors is None or request.vectors.shape == (request.count, DIM)
    assert request.columns is None or len(request.columns) == request.count


def bent(prng: random.Random, whole: bytes) -> bytes:
    """Change, cut, insert and overwrite bytes at one to four places."""
    body = bytearray(whole)
    for _ in range(prng.randint(1, 4)):
        place = prng.randrange(len(body) or 1)
        match prng.randrange(4):
            case 0:
                body[place : place + 1] = bytes([prng.randrange(256)])
            case 1:
                del body[place : place + prng.randint(1, 20)]
            case 2:
                body[place:place] = prng.randbytes(prng.randint(1, 9))
            case 3:
                body[place : place + 8] = prng.choice([b"\xff" * 8, b"\x00" * 8, b"\x7f\xff\xff\xff"])
    return bytes(body)


def seeded() -> random.Random:
    seed = random.randrange(2**32)
    print(f"seed={seed}")
    return random.Random(seed)


@pytest.mark.parametrize("media_type", list(WHOLE))
def test_bent_bodies(media_type: str) -> None:
    prng = seeded()
    for _ in range(ROUNDS):
        parsed(media_type, bent(prng, WHOLE[media_type]), [])


@pytest.mark.parametrize("media_type", list(WRITES))
def test_bent_writes(media_type: str) -> None:
    prng = seeded()
    for _ in range(ROUNDS):
        verb = prng.choice(["insert", "upsert", "update", "delete"])
        written(verb, media_type, bent(prng, WRITES[media_type]))


def of_interval(body: bytes) -> bytes:
    """Make of a column of dates one of months: a type of Arrow that pyarrow has no array for."""
    date, interval = 8, 11
    for place in (place for place, value in enumerate(body) if value == date):
        changed = body[:place] + bytes([interval]) + body[place + 1 :]
        with contextlib.suppress(pa.ArrowException, OSError), pa.ipc.open_stream(changed) as reader:
            if any("month_interval" in str(kind) for kind in reader.schema.types):
                return changed
    raise AssertionError("no byte of the stream makes it one of intervals")


@pytest.mark.parametrize("nested", [False, True])
def test_a_column_without_values_in_python_is_refused(nested: bool) -> None:
    dates = pa.array([18_000, None, 1], pa.date32())
    if nested:
        dates = pa.array([[18_000], None, []], pa.list_(pa.date32()))
    body = of_interval(arrow(vector=pa.array(VECTORS.tolist()), filter=dates))
    with pytest.raises(MalformedBodyError, match="column 'filter' is of a type that cannot be read"):
        parse_search(ARROW_TYPE, body, [], dim=DIM, limits=LIMITS)


@pytest.mark.parametrize("values", [[1, 2, 3], [b"{}", None, b"{}"], [["{}"], None, []]])
def test_a_filter_that_is_no_text_is_refused(values: list[Any]) -> None:
    body = arrow(vector=pa.array(VECTORS.tolist()), filter=pa.array(values))
    with pytest.raises(RequestError, match=r"column 'filter' is .*, not text"):
        parse_search(ARROW_TYPE, body, [], dim=DIM, limits=LIMITS)


@pytest.mark.parametrize("name", ["tag", "metadata.id"])
def test_a_column_that_is_there_twice_is_refused(name: str) -> None:
    columns = [pa.array(VECTORS.tolist()), pa.array([3, 4, 5]), pa.array([1, 2, 3]), pa.array([1, 2, 3])]
    sink = pa.BufferOutputStream()
    table = pa.Table.from_arrays(columns, names=["vector", "id", name, name])
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    body = sink.getvalue().to_pybytes()
    with pytest.raises(RequestError, match=f"has 2 columns '{name}'"):
        parse_write("insert", ARROW_TYPE, body, [], dim=DIM, rows=ROWS, limits=LIMITS)


def test_many_columns_are_counted_once() -> None:
    """Counted for each of them, these would keep a core busy for hours."""
    count = 60_000
    names = [f"c{number}" for number in range(count)] + ["c7"]
    table = pa.Table.from_arrays([pa.array([], pa.int8())] * len(names), names=names)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    body = sink.getvalue().to_pybytes()
    with pytest.raises(RequestError, match="has 2 columns 'c7'"):
        parse_write("insert", ARROW_TYPE, body, [], dim=DIM, rows=ROWS, limits=LIMITS)


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(["a", "$or", "$gte", "$in"]), inner)
    ),
    max_leaves=12,
)


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(
    st.fixed_dictionaries(
        {},
        optional={
            "vector": JSON_VALUES | st.just([0, 1, 2, 3]),
            "vectors": JSON_VALUES | st.just([[0, 1, 2, 3]]),
            "k": JSON_VALUES | st.just(3),
            "filter": JSON_VALUES,
            "filters": JSON_VALUES,
            "recall": JSON_VALUES,
            "return_metadata": JSON_VALUES,
            "timeout_ms": JSON_VALUES,
            "allow_partial": JSON_VALUES,
        },
    )
)
def test_json_of_any_shape(body: dict[str, Any]) -> None:
    parsed("application/json", json.dumps(body).encode(), [])


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(
                [
                    "k",
                    "filter",
                    "recall",
                    "list_size",
                    "exact",
                    "return_metadata",
                    "timeout_ms",
                    "allow_partial",
                    "x",
                ]
            ),
            st.text(max_size=8) | JSON_VALUES.map(json.dumps),
        ),
        max_size=4,
    )
)
def test_query_strings_of_any_shape(pairs: list[tuple[str, str]]) -> None:
    parsed(ARROW_TYPE, rows_in_arrow(VECTORS), pairs)
