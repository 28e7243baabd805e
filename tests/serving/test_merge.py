"""Merging against a definition of three lines."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.serving.fakes import hits
from velo_serving.protocol.types import Hits
from velo_serving.routing.merge import merge_top_k


def definition(parts: list[Hits], k: int) -> list[list[tuple[float, object]]]:
    """Sort all pairs, cut at k."""
    rows = []
    for query in range(len(parts[0].counts)):
        pairs = [
            (float(part.distances[query, place]), part.ids[query, place])
            for part in parts
            for place in range(int(part.counts[query]))
        ]
        rows.append(sorted(pairs)[:k])
    return rows


@st.composite
def sharded(draw: st.DrawFn, strings: bool) -> tuple[list[Hits], int]:
    queries = draw(st.integers(0, 4))
    shards = draw(st.integers(1, 5))
    identities = iter(draw(st.permutations(range(shards * queries * 6 + 1))))
    parts, kind = [], pa.string() if strings else pa.int64()
    for _ in range(shards):
        width = draw(st.integers(1, 6))
        counts = np.array([draw(st.integers(0, width)) for _ in range(queries)], dtype=np.int64)
        ids = np.full((queries, width), None if strings else -1, dtype=object if strings else np.int64)
        distances = np.full((queries, width), np.inf, dtype=np.float32)
        metadata = []
        for row, count in enumerate(counts.tolist()):
            # Few distinct distances, so that ties are common; infinity is a distance too.
            found = sorted(
                draw(st.lists(st.sampled_from([0.0, 1.0, 2.0, np.inf]), min_size=count, max_size=count))
            )
            distances[row, :count] = found
            mine = [next(identities) for _ in range(count)]
            ids[row, :count] = [f"id{one:04d}" for one in mine] if strings else mine
            metadata.append(pa.table({"of": pa.array(ids[row, :count].tolist(), kind)}))
        parts.append(
            Hits(
                ids,
                distances,
                counts,
                metadata,
                reads=int(counts.sum()),
                bytes_read=1,
                cache_hits=2,
                shared_reads=3,
            )
        )
    return parts, draw(st.integers(1, 12))


@pytest.mark.parametrize("strings", [False, True])
def test_merge_is_sort_and_cut(strings: bool) -> None:
    @given(sharded(strings))
    def check(case: tuple[list[Hits], int]) -> None:
        parts, k = case
        merged = merge_top_k(parts, k)
        expected = definition(parts, k)
        assert merged.ids.shape == merged.distances.shape == (len(expected), k)
        for row, pairs in enumerate(expected):
            count = int(merged.counts[row])
            assert count == len(pairs)
            assert [
                (float(d), i) for d, i in zip(merged.distances[row, :count], merged.ids[row], strict=False)
            ] == pairs
            assert np.isinf(merged.distances[row, count:]).all()
            assert all(one is None or one == -1 for one in merged.ids[row, count:])
            assert merged.metadata is not None
            assert merged.metadata[row]["of"].to_pylist() == [identity for _, identity in pairs]
        assert merged.reads == sum(part.reads for part in parts)
        assert merged.cache_hits == 2 * len(parts)
        assert merged.shared_reads == 3 * len(parts)

    check()


def test_ties_go_to_the_lower_id_in_any_order_of_replies() -> None:
    low, high = hits([3], [1.0]), hits([7], [1.0])
    assert merge_top_k([low, high], 2).ids.tolist() == merge_top_k([high, low], 2).ids.tolist() == [[3, 7]]


def test_fewer_hits_than_k_are_padded() -> None:
    merged = merge_top_k([hits([5], [1.0], k=3), hits([], [], k=3)], 3)
    assert merged.ids.tolist() == [[5, -1, -1]]
    assert merged.counts.tolist() == [1]
    assert merged.ids.dtype == np.int64


def test_padding_never_beats_a_hit_at_infinity() -> None:
    far = hits([9], [np.inf])
    merged = merge_top_k([hits([], [], k=2), far], 2)
    assert merged.ids.tolist() == [[9, -1]]
    assert merged.counts.tolist() == [1]


def test_metadata_is_none_unless_every_part_with_a_hit_has_it() -> None:
    table = pa.table({"color": ["red"]})
    with_some = replace(hits([1], [1.0]), metadata=[table])
    assert merge_top_k([with_some, hits([2], [2.0])], 2).metadata is None
    assert merge_top_k([with_some, hits([], [], k=1)], 2).metadata == [table]


def test_metadata_of_shards_that_store_a_column_differently() -> None:
    plain = pa.array(["red"])
    stored = [plain, pa.array(["blue"]).dictionary_encode(), pa.array(["green"], pa.large_string())]
    parts = [
        replace(hits([place], [3.0 - place]), metadata=[pa.table({"color": column})])
        for place, column in enumerate(stored)
    ]
    merged = merge_top_k(parts, 2).metadata
    assert merged is not None
    assert merged[0].to_pylist() == [{"color": "green"}, {"color": "blue"}]
