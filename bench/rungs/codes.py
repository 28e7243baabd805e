"""Short codes, as what they make of each vector: a point, and what an estimate adds to the distance to it.

Every code here estimates d² ≈ |point − q|² + shift, so plans need not know which code they walk over.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from bench.rungs.placed import Floats

_SAMPLE = 30_000
_ROUNDS = 8
_CHUNK = 20_000
#: Scales that are tried for a grid of more than one bit.
_SCALES = 12


@dataclass(frozen=True)
class Codes:
    """What memory knows of each vector.

    Attributes
    ----------
    points : ndarray of shape (n, dim)
    shifts : ndarray of shape (n,)
    errors : ndarray of shape (n,)
        The length of what the code errs by, of each vector: σ of its squared distance is 2·error·d / √dim.
    bytes_each : float
        Of a vector in memory, with its share of what all of them have in common.
    """

    points: Floats
    shifts: Floats
    errors: Floats
    bytes_each: float

    def estimates(self, queries: Floats) -> Floats:
        """Squared distances of each query to each vector, as estimated."""
        own = np.einsum("ij,ij->i", self.points, self.points) + self.shifts
        out: Floats = queries @ (-2 * self.points.T)
        out += own
        out += np.einsum("ij,ij->i", queries, queries)[:, None]
        return out

    def deviations(self, distances: Floats, vertices: NDArray[np.int64] | slice) -> Floats:
        """σ of squared distances to these vertices."""
        dim = self.points.shape[1]
        out: Floats = 2 * self.errors[vertices] * np.sqrt(np.maximum(distances, 0) / (dim - 1))
        return out


def k_means(vectors: Floats, count: int, seed: int, rounds: int = _ROUNDS) -> Floats:
    """Centers of a sample."""
    generator = np.random.default_rng(seed)
    sample = vectors[generator.permutation(len(vectors))[:_SAMPLE]]
    centers: Floats = sample[:count].copy()
    for _ in range(rounds):
        owner = nearest(sample, centers)
        sums = np.zeros_like(centers)
        order = np.argsort(owner, kind="stable")
        present, begins = np.unique(owner[order], return_index=True)
        sums[present] = np.add.reduceat(sample[order], begins, axis=0)
        counts = np.bincount(owner, minlength=count)
        centers = np.where(counts[:, None] > 0, sums / np.maximum(counts, 1)[:, None], centers)
        empty = np.flatnonzero(counts == 0)
        centers[empty] = sample[generator.integers(0, len(sample), len(empty))]
    return centers.astype(np.float32)


def nearest(vectors: Floats, centers: Floats) -> NDArray[np.int64]:
    """The number of the nearest center of each vector."""
    own = np.einsum("ij,ij->i", centers, centers)
    owner = np.empty(len(vectors), dtype=np.int64)
    for start in range(0, len(vectors), _CHUNK):
        part = slice(start, start + _CHUNK)
        owner[part] = np.argmin(own - 2 * (vectors[part] @ centers.T), axis=1)
    return owner


def rotation(dim: int, seed: int) -> Floats:
    """An orthonormal matrix, drawn evenly."""
    drawn = np.random.default_rng(seed).standard_normal((dim, dim))
    q, r = np.linalg.qr(drawn)
    return (q * np.sign(np.diag(r))).astype(np.float32)


def staged_centers(vectors: Floats, stages: int, seed: int) -> Floats:
    """What ``stages`` centers of 256, each of what those before leave, make of each vector together."""
    together = np.zeros_like(vectors)
    for stage in range(stages):
        left = vectors - together
        centers = k_means(left, 256, seed + stage)
        together += centers[nearest(left, centers)]
    return together


def grid(vectors: Floats, bits: int, stages: int, seed: int = 1) -> Codes:
    """velo's codes: ``bits`` a dimension of what is left after centers; ``stages`` centers of 256 in turn."""
    n, dim = vectors.shape
    mean = vectors.mean(axis=0)
    turned = (vectors - mean) @ rotation(dim, seed).T
    centers = staged_centers(turned, stages, seed)
    points, shifts, errors = _on_grid(turned, centers, bits)
    factors, center_ids = 4, stages
    bytes_each = dim * bits / 8 + factors + center_ids + stages * 256 * dim * 4 / n
    return Codes(points @ rotation(dim, seed) + mean, shifts, errors, bytes_each)


def _on_grid(turned: Floats, centers: Floats, bits: int) -> tuple[Floats, Floats, Floats]:
    """Points F·x̄ + c, shifts |o|² − F²·|x̄|², and the length of F·x̄ − o, of the best of some scales."""
    n = len(turned)
    points = np.empty_like(turned)
    shifts, errors = np.empty(n, dtype=np.float32), np.empty(n, dtype=np.float32)
    half = 1 << (bits - 1)
    for start in range(0, n, _CHUNK):
        part = slice(start, start + _CHUNK)
        o = turned[part] - centers[part]
        norm2 = np.maximum(np.einsum("ij,ij->i", o, o), 1e-12)
        size = np.abs(o)
        best = np.full(len(o), -1.0, dtype=np.float32)
        chosen = np.empty_like(o)
        scales = np.linspace(0.25, 1.0, _SCALES) if bits > 1 else [1.0]
        for scale in scales:
            step = size.max(axis=1, keepdims=True) * scale / half + 1e-12
            level = np.minimum(np.floor(size / step), half - 1) + 0.5
            along, length2 = (np.einsum("ij,ij->i", level, other) for other in (size, level))
            cosine = along / np.sqrt(length2 * norm2)
            better = cosine > best
            best[better] = cosine[better]
            chosen[better] = level[better]
        x = np.copysign(chosen, o)
        factor = norm2 / np.maximum(np.einsum("ij,ij->i", x, o), 1e-12)  # a row may be its center
        scaled = x * factor[:, None]
        points[part] = scaled + centers[part]
        length2 = np.einsum("ij,ij->i", scaled, scaled)
        shifts[part] = norm2 - length2
        errors[part] = np.sqrt(np.maximum(length2 - norm2, 0))
    return points, shifts, errors


def unequal(vectors: Floats, bits_total: int, stages: int, seed: int = 1) -> Codes:
    """After SAQ: turned so that variance comes first, segments of dimensions with bits of their own.

    Segments of 16 dimensions get the whole numbers of bits that leave least variance. A segment's direction
    is coded by itself, so each has a factor of two bytes.
    """
    n, dim = vectors.shape
    mean = vectors.mean(axis=0)
    sample = vectors[np.random.default_rng(seed).permutation(n)[:_SAMPLE]] - mean
    coarse = staged_centers(vectors - mean, stages, seed) if stages else np.zeros_like(vectors)
    left = vectors - mean - coarse
    sample = left[np.random.default_rng(seed).permutation(n)[:_SAMPLE]]
    _, axes = np.linalg.eigh(np.cov(sample.T))
    axes = axes[:, ::-1].T.astype(np.float32)
    turned = left @ axes.T
    width = 16
    segments = dim // width
    variance = turned.var(axis=0).reshape(segments, width).sum(axis=1)
    bits = np.zeros(segments, dtype=np.int64)
    left_over = dict(enumerate((1.0, 0.36, 0.118, 0.035, 0.0105, 0.003, 0.0009)))
    for _ in range(bits_total // width):
        gain = [
            variance[s] * (left_over[int(bits[s])] - left_over[int(bits[s]) + 1]) if bits[s] < 6 else 0
            for s in range(segments)
        ]
        bits[int(np.argmax(gain))] += 1
    points = np.zeros_like(turned)
    shifts, errors2 = np.zeros(n, dtype=np.float32), np.zeros(n, dtype=np.float32)
    for segment in range(segments):
        part = slice(segment * width, (segment + 1) * width)
        own = turned[:, part]
        if bits[segment] == 0:
            norm2 = np.einsum("ij,ij->i", own, own)
            shifts += norm2  # one number a vector holds what all segments without bits add
            errors2 += norm2
            continue
        inner = rotation(width, seed + segment)
        found, shift, error = _on_grid(own @ inner.T, np.zeros_like(own), int(bits[segment]))
        points[:, part] = found @ inner
        shifts += shift
        errors2 += error**2
    used = int((bits > 0).sum())
    bytes_each = bits_total / 8 + 2 + 2 * used + stages + stages * 256 * dim * 4 / n
    return Codes(points @ axes + mean + coarse, shifts, np.sqrt(errors2), bytes_each)


def products(vectors: Floats, code_bytes: int, stages: int, seed: int = 1) -> Codes:
    """Products of centers (PQ) of what ``stages`` centers leave: a byte a group of dimensions."""
    n, dim = vectors.shape
    mean = vectors.mean(axis=0)
    coarse = staged_centers(vectors - mean, stages, seed) if stages else np.zeros_like(vectors)
    left = vectors - mean - coarse
    sample = left[np.random.default_rng(seed).permutation(n)[:_SAMPLE]]
    weights, axes = np.linalg.eigh(np.cov(sample.T))
    order = _even_groups(weights, code_bytes)
    turned = left @ axes[:, order].astype(np.float32)
    points = np.empty_like(turned)
    edges = np.linspace(0, dim, code_bytes + 1).astype(int)
    for low, high in pairwise(edges):
        part = np.ascontiguousarray(turned[:, low:high])
        centers = k_means(part, 256, seed + low)
        points[:, low:high] = centers[nearest(part, centers)]
    error = turned - points
    norm2 = np.einsum("ij,ij->i", error, error).astype(np.float32)
    restored = points @ axes[:, order].T.astype(np.float32) + mean + coarse
    common = (stages * 256 * dim + 256 * dim + dim * dim) * 4
    return Codes(restored, np.zeros(n, dtype=np.float32), np.sqrt(norm2), code_bytes + stages + common / n)


def _even_groups(weights: NDArray[np.float64], groups: int) -> NDArray[np.int64]:
    """Axes in an order whose equal groups have about equal products of variances (OPQ's balance)."""
    dim = len(weights)
    edges = np.linspace(0, dim, groups + 1).astype(int)
    room = np.diff(edges)
    held: list[list[int]] = [[] for _ in range(groups)]
    logs = np.zeros(groups)
    for axis in np.argsort(weights)[::-1]:
        free = [g for g in range(groups) if len(held[g]) < room[g]]
        # Least product so far; every axis stands for log variance above the least.
        chosen = min(free, key=lambda g: (logs[g], g))
        held[chosen].append(int(axis))
        logs[chosen] += np.log(max(weights[axis], 1e-12) / max(weights.min(), 1e-12)) + 1e-9
    return np.array([axis for group in held for axis in group])
