"""The API against its own description: requests made from ``/openapi.json``, answers checked against it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

import velo
from tests.long import count
from tests.serving.conftest import Served
from tests.serving.exact_gateway import ARROW_TYPE, rows_in_arrow

#: Requests of each path.
EXAMPLES = count(6, 25)

CHECKS = (status_code_conformance, content_type_conformance, response_schema_conformance)


@schemathesis.serializer(ARROW_TYPE)
def _arrow(context: Any, value: Any) -> bytes:
    """A body of vectors as random as the bytes that were drawn: what is asked stands in the query string."""
    drawn = bytes(getattr(value, "data", b""))
    return rows_in_arrow(np.resize(np.frombuffer(drawn + b"velo", np.uint8), (1 + len(drawn) % 3, 3)))


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The description of a server of one small index."""
    folder = tmp_path_factory.mktemp("schema") / "things.velo"
    vectors = np.random.default_rng(1).standard_normal((60, 3)).astype(np.float32)
    table = pa.table({"year": list(range(60)), "title": [f"t{row}" for row in range(60)]})
    velo.build(folder, vectors, metadata=table, store_vectors=True, threads=1).close()
    server = Served(str(folder), "--threads", "1", "--writable", "--durability", "process")
    yield schemathesis.openapi.from_url(f"{server.url}/openapi.json")
    code, told = server.stop()
    assert (code, "Traceback" in told) == (0, False), told


def test_random_requests_get_answers_that_match_the_schema(api: Any) -> None:
    answered: Counter[str] = Counter()
    operations = [one.ok() for one in api.get_all_operations()]
    assert len(operations) >= 18
    for operation in operations:
        asked = 0

        @settings(
            max_examples=EXAMPLES,
            deadline=None,
            derandomize=True,  # the same requests every time
            database=None,
            phases=(Phase.explicit, Phase.generate),
            suppress_health_check=list(HealthCheck),
        )
        @given(case=operation.as_strategy())
        def ask(case: Any) -> None:
            nonlocal asked
            asked += 1
            if case.media_type == "application/json" and asked % 4:
                case.query = {}  # with a JSON body they would all be refused for it
            if asked % 2 and "name" in (case.path_parameters or {}):
                case.path_parameters["name"] = "things"  # else all would end at an unknown collection
            response = case.call()
            case.validate_response(response, checks=CHECKS)
            # Nobody answers within the time that some requests give.
            late = "timeout_ms" in f"{case.body} {case.query}" and response.status_code in (503, 504)
            assert response.status_code < 500 or late, response.text
            answered[str(case.media_type)] += response.status_code == 200

        ask()
        assert asked >= 1
    assert answered["application/json"] >= 20
    assert answered[ARROW_TYPE] >= 1, "no query string was right"
