"""Bodies bent at random: whatever comes in, what comes out is a request or an error of the client's."""

from __future__ import annotations

import json
import random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.serving.exact_gateway import ARROW_TYPE, arrow, npy
from velo.errors import VeloError
from velo_serving.gateway import GatewayLimits
from velo_serving.gateway.bodies import parse_search
from velo_serving.gateway.errors import status_of

DIM = 4
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
    "application/x-npy": npy(VECTORS),
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


@pytest.mark.parametrize("media_type", list(WHOLE))
def test_bent_bodies(media_type: str) -> None:
    seed = random.randrange(2**32)
    print(f"seed={seed}")
    prng = random.Random(seed)
    whole = WHOLE[media_type]
    for _ in range(3000):
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
        parsed(media_type, bytes(body), [])


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
                ["k", "filter", "recall", "list_size", "return_metadata", "timeout_ms", "allow_partial", "x"]
            ),
            st.text(max_size=8) | JSON_VALUES.map(json.dumps),
        ),
        max_size=4,
    )
)
def test_query_strings_of_any_shape(pairs: list[tuple[str, str]]) -> None:
    parsed("application/x-npy", WHOLE["application/x-npy"], pairs)
