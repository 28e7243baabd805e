"""Arrow arrays of Python values, without pandas."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pyarrow as pa
import pytest

from velo.filters.arrays import array_of

WITHOUT_PANDAS: list[list[Any]] = [
    ["a", None, "ö", ""],
    [1, None, -(2**63)],
    [2**63, None, 1],
    [0.5, None, float("inf")],
    [True, None, False],
]


@pytest.mark.parametrize("values", [*WITHOUT_PANDAS, [], [None], [b"x"], [["a"], None]], ids=str)
def test_values_are_what_they_were(values: list[Any]) -> None:
    assert array_of(values).to_pylist() == values


def test_what_no_type_holds_together_is_refused() -> None:
    with pytest.raises((pa.ArrowInvalid, pa.ArrowTypeError)):
        array_of(["a", 1])


def test_hits_of_groups_import_no_pandas() -> None:
    """The import takes half a second or more, and a shard encodes its answers on its event loop."""
    pytest.importorskip("pandas")
    program = f"""
import sys
import numpy as np
from velo_serving.wire.codec import decode_hits, encode_hits
from velo_serving.words.types import Hits

inf = float("inf")
for values in {WITHOUT_PANDAS!r}:
    count = len(values)
    ids = np.arange(count, dtype=np.int64)[None, :]
    groups = [[(value, 1) for value in values]]
    distances = ids.astype(np.float32)
    hits = Hits(ids=ids, distances=distances, counts=np.array([count]), groups=groups)
    head, pieces = encode_hits(hits)
    decoded = decode_hits(head, b"".join(pieces))
    assert [value for value, _ in decoded.groups[0]] == values, decoded.groups
assert "pandas" not in sys.modules
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
