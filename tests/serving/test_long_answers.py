"""Long answers are written piece by piece, and read as one."""

from __future__ import annotations

import json
import math

import numpy as np
import pyarrow as pa
import pytest

from velo_serving.gateway.bodies import JSON
from velo_serving.gateway.encoders import encoded
from velo_serving.protocol.hits import ROWS_AT_ONCE
from velo_serving.protocol.types import Answer, Hits


@pytest.mark.parametrize("counts", [[0], [1], [ROWS_AT_ONCE], [ROWS_AT_ONCE + 1, 0, 3 * ROWS_AT_ONCE]])
def test_json_of_any_length_is_that_of_its_rows(counts: list[int]) -> None:
    width = max(*counts, 1)
    ids = np.arange(len(counts) * width).reshape(len(counts), width)
    distances = (ids / 3).astype(np.float32)
    metadata = [
        pa.table(
            {
                "n": [math.nan if row % 5 == 0 else float(row) for row in range(count)],
                "t": pa.array([f"t{row % 3}" for row in range(count)]).dictionary_encode(),
                "b": [bytes([row % 128]) for row in range(count)],
            }
        )
        for count in counts
    ]
    hits = Hits(ids, distances, np.array(counts), metadata, scores=distances)
    told = json.loads(encoded(Answer(hits, 1, 1), 1.25, JSON))
    assert told["counts"] == counts
    assert [len(row) for row in told["metadata"]] == counts
    for row, count in enumerate(counts):
        assert told["ids"][row] == ids[row, :count].tolist()
        assert told["distances"][row] == told["scores"][row] == distances[row, :count].tolist()
        assert [one["n"] for one in told["metadata"][row]] == [
            None if n % 5 == 0 else n for n in range(count)
        ]
        assert [one["t"] for one in told["metadata"][row]] == [f"t{n % 3}" for n in range(count)]
    assert (told["took_ms"], told["partial"]) == (1.25, False)
