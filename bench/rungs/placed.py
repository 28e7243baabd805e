"""An index that velo built, as arrays: which rows share a page, and which vertices a vertex links to.

The files are read as docs/FORMAT.md describes them.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from bench.harness.datasets import Dataset, unit

Floats = NDArray[np.float32]
Numbers = NDArray[np.int64]

_CLASSES = 33
_CODE_LENGTH_MAX = 10
_LINKS_HEAD = 128
_LINKS_GROUP = 16
_STARTS_HEAD = 24


@dataclass(frozen=True)
class Placed:
    """Rows in placement order; a vertex is a place in it.

    Attributes
    ----------
    vectors : ndarray of shape (n, dim)
        What distances are taken of: of cosine the rows at length 1.
    rows : ndarray of shape (n,)
        The row of each vertex.
    starts : ndarray of shape (pages + 1,)
        The first vertex of each page, and n.
    page_of : ndarray of shape (n,)
    links : ndarray of shape (n, links)
        By id; -1 where a list is shorter.
    tiers : ndarray of shape (n, links)
        Tiers 0 to t hold the first links of pruning's order.
    entry : int
    """

    vectors: Floats
    rows: Numbers
    starts: Numbers
    page_of: Numbers
    links: Numbers
    tiers: Numbers
    entry: int

    @property
    def n(self) -> int:
        return len(self.vectors)

    @property
    def dim(self) -> int:
        return int(self.vectors.shape[1])

    @property
    def page_count(self) -> int:
        return len(self.starts) - 1


def read(folder: Path, dataset: Dataset) -> Placed:
    """The index in ``folder``, which was built of the rows of ``dataset`` and without ids."""
    with pa.memory_map(str(folder / "ids.arrow")) as file:
        rows = pa.ipc.open_file(file).read_all()["id"].to_numpy().astype(np.int64)
    starts = _starts(np.fromfile(folder / "page_starts.bin", dtype=np.uint8))
    page_of = np.repeat(np.arange(len(starts) - 1), np.diff(starts))
    vectors = targets(dataset.base[np.sort(rows)], dataset.metric)[rows]
    entry = int(np.fromfile(folder / "codes.bin", dtype="<u4", count=4)[3])
    links, tiers = _links(np.fromfile(folder / "links.bin", dtype=np.uint8), len(rows))
    return Placed(vectors, rows, starts, page_of, links, tiers, entry)


def targets(vectors: Any, metric: str) -> Floats:
    """Vectors of a set as float32; of cosine at length 1, so that squared distances rank them."""
    as_float: Floats = np.asarray(vectors).astype(np.float32)
    return unit(as_float) if metric == "cosine" else as_float


def _starts(data: NDArray[np.uint8]) -> Numbers:
    """The Elias-Fano sequence of page_starts.bin, and n behind it."""
    pages, n, low_bits = (int(x) for x in data[8:20].view("<u4"))
    low_end = _STARTS_HEAD + -(-pages * low_bits // 8)
    low = np.unpackbits(data[_STARTS_HEAD:low_end], bitorder="little")[: pages * low_bits]
    lows = low.reshape(pages, low_bits).astype(np.int64) @ (1 << np.arange(low_bits, dtype=np.int64))
    highs = np.flatnonzero(np.unpackbits(data[low_end:], bitorder="little"))[:pages] - np.arange(pages)
    return np.append((highs << low_bits) | lows, n)


@dataclass(frozen=True)
class _PrefixCode:
    """Of the next ten bits of a stream: the class of a value, and how long its code is."""

    classes: NDArray[np.int64]
    lengths: NDArray[np.int64]

    @staticmethod
    def of(lengths: NDArray[np.uint8]) -> _PrefixCode:
        classes = np.zeros(1 << _CODE_LENGTH_MAX, dtype=np.int64)
        taken = np.zeros(1 << _CODE_LENGTH_MAX, dtype=np.int64)
        following = 0
        for length in range(1, _CODE_LENGTH_MAX + 1):
            for number in np.flatnonzero(lengths == length):
                code = following >> (_CODE_LENGTH_MAX - length)
                following += 1 << (_CODE_LENGTH_MAX - length)
                mirrored = int(f"{code:0{length}b}"[::-1], 2)
                classes[mirrored :: 1 << length] = number
                taken[mirrored :: 1 << length] = length
        return _PrefixCode(classes, taken)


def _links(data: NDArray[np.uint8], n: int) -> tuple[Numbers, Numbers]:
    """The lists of links.bin and the tier of each link: all lists at once, a link a step."""
    built = int(data[16:20].view("<u4")[0])
    heap_bytes = int(data[24:32].view("<u8")[0])
    first = _PrefixCode.of(data[32 : 32 + _CLASSES])
    gap = _PrefixCode.of(data[32 + _CLASSES : 32 + 2 * _CLASSES])
    groups = -(-n // _LINKS_GROUP)
    at = _LINKS_HEAD + 8 * (groups + 1)
    group_starts = data[_LINKS_HEAD:at].view("<u8").astype(np.int64)[:groups]
    sizes = data[at : at + _LINKS_GROUP * groups].astype(np.int64).reshape(groups, _LINKS_GROUP)
    begins = (group_starts[:, None] + np.cumsum(sizes, axis=1) - sizes).ravel()[:n]
    heap = data[at + _LINKS_GROUP * groups :][:heap_bytes]
    counts = heap[begins].astype(np.int64)
    links = np.full((n, built), -1, dtype=np.int64)
    position, value = begins * 8 + 8, np.arange(n)
    for place in range(built):
        live = np.flatnonzero(counts > place)
        if not len(live):
            break
        word = _words(heap, position[live])
        code = first if place == 0 else gap
        look = (word & np.uint64((1 << _CODE_LENGTH_MAX) - 1)).astype(np.int64)
        kind, length = code.classes[look], code.lengths[look]
        raw_bits = np.maximum(kind - 1, 0)
        raw = ((word >> length.astype(np.uint64)).astype(np.int64)) & ((1 << raw_bits) - 1)
        number = np.where(kind > 0, (1 << raw_bits) | raw, 0)
        step = np.where(number & 1, -(number + 1) // 2, number // 2) if place == 0 else number + 1
        value[live] += step
        links[live, place] = value[live]
        position[live] += length + raw_bits
    assert links.max() < n
    stride = -(-3 * built // 8)
    runs = data[at + _LINKS_GROUP * groups + heap_bytes :].reshape(n, stride)
    bits = np.unpackbits(runs, axis=1, bitorder="little")[:, : 3 * built].reshape(n, built, 3)
    return links, bits.astype(np.int64) @ np.array([1, 2, 4])


def _words(heap: NDArray[np.uint8], positions: Numbers) -> NDArray[np.uint64]:
    """The bits from each position on: 57 at least."""
    padded = np.append(heap, np.zeros(8, dtype=np.uint8))
    word = np.zeros(len(positions), dtype=np.uint64)
    for byte in range(8):
        word |= padded[(positions >> 3) + byte].astype(np.uint64) << np.uint64(8 * byte)
    return word >> (positions & 7).astype(np.uint64)
