"""Helpers to measure an index against the truth: exact search, recall, made-up data.

Examples
--------
>>> from velo.testing import brute_force, recall_at_k, synthetic_vectors
>>> base = synthetic_vectors(1_000, 32, seed=1)
>>> queries = synthetic_vectors(10, 32, seed=1, start=1_000)
>>> truth = brute_force(base, queries, k=10)
>>> recall_at_k(truth.ids, truth.ids)
1.0
"""

from __future__ import annotations

from velo.testing.synthetic import synthetic_metadata, synthetic_vectors
from velo.testing.truth import brute_force, exact_distances, recall_at_k

__all__ = ["brute_force", "exact_distances", "recall_at_k", "synthetic_metadata", "synthetic_vectors"]
