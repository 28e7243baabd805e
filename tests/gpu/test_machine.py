"""The kernels' PTX, run by a machine of the tests, finds what a search in plain Python finds.

Kernels on the host are tested in Zig. This is about PTX itself: instructions between lanes, control flow
that is the same in all lanes, addresses, and the structs as they lie in memory.
"""

from __future__ import annotations

import bisect
import struct
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from tests.gpu import ptx

NONE = 0xFFFF_FFFF
NO_KEY = (1 << 63) - 1
GLOBAL_AT = 0x1_0000
SLOTS = 256
ENTRIES_BEST = 8


@dataclass
class Shape:
    dim: int
    bits: int
    degree: int
    rows: int
    list_size: int
    centers: int
    queries: int = 3
    #: k, followed, share
    stop: tuple[int, int, float] = (1, NONE, 1.0)


@dataclass
class World:
    """A segment and queries, as a kernel gets them."""

    shape: Shape
    codes: npt.NDArray[np.uint8]
    offsets: npt.NDArray[np.uint16]
    factors: npt.NDArray[np.uint16]
    center_ids: npt.NDArray[np.uint8]
    norms2: npt.NDArray[np.float32]
    links: list[list[int]]
    entries: list[int]
    starts: list[int]
    entry_vertex: int
    query: npt.NDArray[np.int8]
    terms: npt.NDArray[np.float32]
    scale: npt.NDArray[np.float32]
    bias: npt.NDArray[np.float32]
    excluded: list[int]


def made(shape: Shape, seed: int) -> World:
    random = np.random.default_rng(seed)
    n = shape.rows
    links = []
    for vertex in range(n):
        others = np.setdiff1d(np.arange(n), [vertex, (vertex + 1) % n])
        count = int(random.integers(0, shape.degree))
        links.append([(vertex + 1) % n, *map(int, random.choice(others, count, replace=False))])
    links[0] += [one for one in range(2, n) if one not in links[0]][: shape.degree - len(links[0])]
    center_ids = random.integers(0, shape.centers, n).astype(np.uint8)
    drawn = np.flatnonzero(random.random(n) < 0.3)
    entries = sorted(map(int, drawn), key=lambda one: (center_ids[one], one))
    homes = [int(center_ids[one]) for one in entries]
    return World(
        shape=shape,
        codes=random.integers(0, 1 << shape.bits, (n, shape.dim)).astype(np.uint8),
        offsets=(random.random(n).astype(np.float32) * 50 + 1)
        .view(np.uint32)
        .__rshift__(15)
        .astype(np.uint16),
        factors=(random.random(n).astype(np.float32) + 0.1).view(np.uint32).__rshift__(15).astype(np.uint16),
        center_ids=center_ids,
        norms2=random.random(shape.centers).astype(np.float32),
        links=links,
        entries=entries,
        starts=[bisect.bisect_left(homes, center) for center in range(shape.centers + 1)],
        entry_vertex=int(random.integers(n)),
        query=random.integers(-127, 128, (shape.queries, shape.dim)).astype(np.int8),
        terms=random.normal(0, 20, (shape.queries, shape.centers)).astype(np.float32),
        scale=(random.random(shape.queries) / 50).astype(np.float32),
        bias=random.random(shape.queries).astype(np.float32),
        excluded=[NONE, *map(int, random.integers(0, n, shape.queries - 1))],
    )


# ---- in plain Python ----


def estimates(world: World, query: int) -> npt.NDArray[np.float32]:
    """Of all rows: docs/rabitq.md."""
    dots = (world.codes.astype(np.int64) @ world.query[query].astype(np.int64)).astype(np.float32)
    offset = (world.offsets.astype(np.uint32) << 15).view(np.float32)
    factor = (world.factors.astype(np.uint32) << 15).view(np.float32)
    term = world.terms[query][world.center_ids]
    estimated = offset + term - factor * (dots * world.scale[query] - world.bias[query])
    return np.asarray(estimated, np.float32)


@dataclass
class Walk:
    """A best-first search that follows as many vertices a step as a warp does, and forgets nothing."""

    distances: npt.NDArray[np.float32]
    links: list[list[int]]
    excluded: int
    limit: int
    together: int
    #: k, followed, share
    stop: tuple[int, int, float] = (1, NONE, 1.0)
    listed: list[tuple[float, int]] = field(default_factory=list)
    followed: list[tuple[float, int]] = field(default_factory=list)

    def reach(self) -> float:
        k, sure, share = self.stop
        if len(self.listed) < sure:
            return float("inf")
        return float(
            max(np.float32(self.listed[sure - 1][0]), np.float32(share) * np.float32(self.listed[k - 1][0]))
        )

    def offer(self, ids: list[int]) -> None:
        bound = self.reach()
        if len(self.listed) == self.limit:
            bound = min(bound, self.listed[-1][0])
        for one in ids:
            item = (float(self.distances[one]), one)
            if one != self.excluded and item[0] < bound and item not in self.listed:
                bisect.insort(self.listed, item)
                del self.listed[self.limit :]

    def run(self, entry_vertex: int) -> None:
        met = {one for _, one in self.listed} | {entry_vertex}
        self.offer([entry_vertex])
        while True:
            far = self.reach()
            done = set(self.followed)
            first = next((i for i, one in enumerate(self.listed) if one not in done), len(self.listed))
            stretch = self.listed[first : (first // 32 + 1) * 32]
            chosen = [one for one in stretch if one not in done and one[0] <= far][: self.together]
            if not chosen:
                return
            self.followed.extend(chosen)
            lists = [self.links[vertex] for _, vertex in chosen]
            for begin in range(0, max(map(len, lists)), 32):
                fresh: list[int] = []
                for own in lists:
                    fresh += [one for one in own[begin : begin + 32] if one not in met and one not in fresh]
                met.update(fresh)
                self.offer(fresh)


def searched(world: World, query: int) -> list[tuple[float, int]]:
    """The list of a query."""
    shape = world.shape
    entry = Walk(estimates(world, query), world.links, world.excluded[query], ENTRIES_BEST, 1)
    looked = 0
    for center in np.argsort(world.norms2 + world.terms[query], kind="stable")[:64]:
        if looked >= 256:
            break
        own = world.entries[world.starts[center] : world.starts[center + 1]]
        looked += len(own)
        for one in own:
            entry.offer([one])
    together = max(1, 32 // stride(shape.degree))
    walk = Walk(entry.distances, world.links, world.excluded[query], shape.list_size, together, shape.stop)
    walk.listed = entry.listed[: shape.list_size]
    walk.run(world.entry_vertex)
    return walk.listed


# ---- on the machine ----


def stride(longest: int) -> int:
    if longest > 32:
        return -(-longest // 32) * 32
    return max(4, 1 << (longest - 1).bit_length())


def packed(codes: npt.NDArray[np.uint8], bits: int, code_stride: int) -> bytes:
    """Dimension i in bits [i·bits, (i+1)·bits), each row at its stride."""
    one_a_bit = codes[:, :, None] >> np.arange(bits, dtype=np.uint8) & 1
    rows = np.packbits(one_a_bit.reshape(len(codes), -1), axis=1, bitorder="little")
    return np.pad(rows, ((0, 0), (0, code_stride - rows.shape[1]))).tobytes() + bytes(64)


def plane(query: npt.NDArray[np.int8], bits: int) -> bytes:
    """The order of dimensions of ``codes.dim_of``: those that one word has after it was taken apart."""
    dim = -(-len(query) // 64) * 64
    padded = np.zeros(dim, np.int8)
    padded[: len(query)] = query
    words = []
    for group in range(0, dim, 32):
        for number in range(8):
            if 8 % bits == 0:
                each = 8 // bits
                at = [number // each * 4 * each + byte * each + number % each for byte in range(4)]
            else:
                at = [number + 8 * byte for byte in range(4)]
            words.append(padded[group:][at])
    return np.concatenate(words).tobytes()


class Card:
    """Device memory, filled from its beginning on."""

    def __init__(self) -> None:
        self.memory = ptx.Memory(GLOBAL_AT, 1 << 20)
        self.end = GLOBAL_AT

    def put(self, data: bytes) -> int:
        at = self.end
        self.memory.put(at, data)
        self.end = -(-(at + len(data)) // 128) * 128
        return at

    def put_links(self, links: list[list[int]], width: int) -> int:
        rows = np.full((len(links), width), NONE, np.uint32)
        for vertex, own in enumerate(links):
            rows[vertex, : len(own)] = own
        return self.put(rows.tobytes())

    def run(self, entry: ptx.Entry, index: bytes, batch: bytes, queries: int, list_size: int) -> None:
        """Run a kernel in blocks of two warps. The last warp of an odd number of queries is idle."""
        warp_bytes = 8 * (-(-list_size // 32) * 32) + 32 * 12 + 4 * SLOTS
        for number in range(-(-queries // 2) * 2):
            warp = ptx.Warp(
                entry,
                [index, batch],
                self.memory,
                shared_bytes=2 * warp_bytes,
                thread=32 * (number % 2),
                threads=64,
                block=number // 2,
            )
            warp.run()

    def read(self, at: int, size: int) -> npt.NDArray[np.uint8]:
        return self.memory.bytes[at - GLOBAL_AT :][:size]


def candidates_of(keys: npt.NDArray[np.int64]) -> list[tuple[float, int]]:
    """Distances and vertices of candidates (``quant.Candidate``)."""
    bits = (keys >> 32).astype(np.int32)
    at = (bits ^ (bits >> 31 & 0x7FFF_FFFF)).view(np.float32)
    vertices = (keys & 0xFFFF_FFFF) >> 1
    return [(float(a), int(b)) for a, b in zip(at, vertices, strict=True)]


def run(entry: ptx.Entry, world: World) -> list[list[tuple[float, int]]]:
    """The lists of all queries."""
    shape = world.shape
    card = Card()
    width = stride(shape.degree)
    code_stride = -(-shape.dim * shape.bits // 8 // 16) * 16
    pairs = world.offsets.astype(np.uint32) | world.factors.astype(np.uint32) << 16
    index = struct.pack(
        "<7Q8I",
        card.put(packed(world.codes, shape.bits, code_stride)),
        card.put(pairs.tobytes()),
        card.put(world.center_ids.tobytes()),
        card.put_links(world.links, width),
        card.put(np.array(world.entries, np.uint32).tobytes()),
        card.put(np.array(world.starts, np.uint32).tobytes()),
        card.put(world.norms2.tobytes()),
        *(shape.rows, shape.dim, shape.bits, code_stride, width, shape.centers, world.entry_vertex, 0),
    )
    heads = [
        struct.pack("<ffII", world.scale[i], world.bias[i], world.excluded[i], 0)
        for i in range(shape.queries)
    ]
    inputs = [
        card.put(b"".join(heads)),
        card.put(b"".join(plane(one, shape.bits) for one in world.query)),
        card.put(world.terms.tobytes()),
    ]
    candidates, counters = card.end, card.end + 8 * shape.list_size * shape.queries
    batch = struct.pack(
        "<5Q4IfIQII",
        *inputs,
        candidates,
        counters,
        *(shape.queries, shape.list_size, shape.stop[0], shape.stop[1], shape.stop[2], SLOTS, 0, 0, 0),
    )
    card.run(entry, index, batch, shape.queries, shape.list_size)
    found = []
    for query in range(shape.queries):
        keys = card.read(candidates + 8 * shape.list_size * query, 8 * shape.list_size).view(np.int64)
        count = int(card.read(counters + 16 * query, 4).view(np.uint32)[0])
        assert (keys[count:] == NO_KEY).all()
        found.append(candidates_of(keys[:count]))
    assert not card.memory.written[counters + 16 * shape.queries - GLOBAL_AT :].any()
    return found


SHAPES = [
    Shape(dim=16, bits=1, degree=4, rows=60, list_size=1, centers=1),
    Shape(dim=48, bits=2, degree=7, rows=120, list_size=20, centers=5),
    Shape(dim=112, bits=3, degree=13, rows=120, list_size=40, centers=40, stop=(10, 10, 1.2)),
    Shape(dim=128, bits=4, degree=16, rows=300, list_size=70, centers=100, stop=(10, 17, 1.1)),
    Shape(dim=96, bits=5, degree=30, rows=200, list_size=33, centers=256),
    Shape(dim=272, bits=6, degree=48, rows=150, list_size=32, centers=3),
]


@pytest.mark.long(guarded_by="zig/src/gpu/kernels_test.zig::the list is that of a search in plain loops")
@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: f"bits{shape.bits}-degree{shape.degree}")
def test_a_machine_of_ptx_finds_what_a_plain_search_finds(kernels: Path, shape: Shape) -> None:
    entry = ptx.parse(kernels.read_text(), "velo_search")
    seed = int(np.random.default_rng().integers(1 << 32))
    world = made(shape, seed)
    for query, found in enumerate(run(entry, world)):
        expected = searched(world, query)
        message = f"seed {seed}, query {query}"
        assert [at for at, _ in found] == [at for at, _ in expected], message
        assert sorted(found) == sorted(expected), message


@pytest.mark.long(
    guarded_by="zig/src/gpu/kernels_test.zig::vertices to be inserted follow what a walk on the host follows"
)
@pytest.mark.parametrize("product", [0, 1])
@pytest.mark.parametrize(("dim", "degree"), [(16, 8), (48, 20), (272, 40)])
def test_a_machine_of_ptx_follows_what_a_plain_walk_follows(
    kernels: Path, dim: int, degree: int, product: int
) -> None:
    seed = int(np.random.default_rng().integers(1 << 32))
    shape = Shape(dim=dim, bits=1, degree=degree, rows=150, list_size=30, centers=1, queries=3)
    world = made(shape, seed)
    random = np.random.default_rng(seed)
    codes = random.integers(0, 256, (shape.rows, dim)).astype(np.uint8)
    norm2, f = (random.random((2, shape.rows)) * 50 + 1).astype(np.float32)
    f /= np.float32(5000)
    sums = codes.sum(axis=1, dtype=np.int32)
    factors = b"".join(struct.pack("<ffi", *one) for one in zip(norm2, f, sums, strict=True))
    targets = [world.entry_vertex, *map(int, random.choice(shape.rows, 2))]
    most = 20
    card = Card()
    width = stride(degree)
    index = struct.pack(
        "<7Q8I",
        card.put(codes.tobytes() + bytes(64)),
        card.put(factors),
        0,
        card.put_links(world.links, width),
        *(0, 0, 0, shape.rows, dim, 8, dim, width, 0, world.entry_vertex, product),
    )
    heads = card.put(b"".join(struct.pack("<ffII", 0, 0, target, 0) for target in targets))
    followed, counters = card.end, card.end + 8 * most * len(targets)
    batch = struct.pack(
        "<5Q4IfIQII",
        heads,
        0,
        0,
        0,
        counters,
        len(targets),
        shape.list_size,
        1,
        NONE,
        1.0,
        SLOTS,
        followed,
        most,
        0,
    )
    card.run(ptx.parse(kernels.read_text(), "velo_insert"), index, batch, len(targets), shape.list_size)
    for query, target in enumerate(targets):
        dots = codes.astype(np.int32) @ (codes[target].astype(np.int32) - 128)
        bias = -255 * (int(sums[target]) - 128 * dim) - 255 * dim // 2
        inner = (2 * dots + sums + bias).astype(np.float32)
        distances = np.maximum(np.float32(0), norm2 + norm2[target] - f[target] * f * inner)
        if product:
            distances -= norm2[target] + norm2
        walk = Walk(distances, world.links, target, shape.list_size, max(1, 32 // width))
        walk.run(world.entry_vertex)
        expanded = int(card.read(counters + 16 * query, 8).view(np.uint32)[1])
        assert expanded == len(walk.followed), seed
        keys = card.read(followed + 8 * most * query, 8 * most).view(np.int64)[: min(most, expanded)]
        assert candidates_of(keys) == walk.followed[:most], seed


@pytest.mark.long(guarded_by="zig/src/gpu/kernels_test.zig::the list is that of a search in plain loops")
def test_the_machine_sees_that_barriers_are_missing(kernels: Path) -> None:
    text = kernels.read_text()
    assert "bar.warp.sync" in text
    without = "\n".join(line for line in text.split("\n") if "bar.warp.sync" not in line)
    with pytest.raises(AssertionError, match="what others"):
        run(ptx.parse(without, "velo_search"), made(SHAPES[1], seed=1))
