"""Options of full-text searches: texts, and the fusion of their hits with those of vectors."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np

from velo.errors import InvalidArgumentError
from velo.options.checks import k_of_one_search, real_number, whole_number
from velo.types import Float64Array

_WEIGHT_MAX: Final = 1e6
#: Characters of a text.
_TEXT_MAX: Final = 1 << 16
#: Default number of hits of each list: a multiple of k, and a minimum.
#: Five times as many found hardly more and read four times as much (docs/results/hybrid-text.md).
_DEPTH_OF_K: Final = 2
_DEPTH_MIN: Final = 20


@dataclass(frozen=True, kw_only=True)
class _Fusing(ABC):
    """Weights of both lists, and how many hits of each are taken."""

    vectors: float = 1.0
    words: float = 1.0
    depth: int | None = None

    def __post_init__(self) -> None:
        for name in ("vectors", "words"):
            real_number(getattr(self, name), name, 0.0, _WEIGHT_MAX)
        if not self.vectors + self.words > 0:
            raise InvalidArgumentError("one of the weights is above 0", argument="vectors")
        if self.depth is not None:
            whole_number(self.depth, "depth", 1, 4096)

    def depth_of(self, k: int) -> int:
        """Hits of each list for an answer of k.

        Parameters
        ----------
        k : int

        Returns
        -------
        int
        """
        depth = max(_DEPTH_OF_K * k, _DEPTH_MIN) if self.depth is None else self.depth
        if depth < k:
            raise InvalidArgumentError(
                f"depth is {depth}, fewer than the {k} hits asked for", argument="depth"
            )
        return min(depth, k_of_one_search())

    def points(self, values: Float64Array) -> Float64Array:
        """Return the points of each hit of one list.

        Parameters
        ----------
        values : ndarray of shape (n,), float64
            More is better; the best first.

        Returns
        -------
        ndarray of shape (n,), float64
        """
        return self._points(values)

    @abstractmethod
    def _points(self, values: Float64Array) -> Float64Array: ...


@dataclass(frozen=True, kw_only=True)
class RRF(_Fusing):
    """Fuse by ranks: a hit scores ``weight / (constant + rank)`` in each list that has it; ranks begin at 1.

    Attributes
    ----------
    constant : float
        The larger it is, the less the first ranks stand out.
    vectors, words : float
        Weights of the lists; 0 leaves one out.
    depth : int, optional
        Hits of each list; without it 2·k, at least 20. More of them read more pages.

    Examples
    --------
    >>> velo.RRF(words=2.0).depth_of(k=10)
    20
    """

    constant: float = 60.0

    def __post_init__(self) -> None:
        real_number(self.constant, "constant", 0.0, _WEIGHT_MAX)
        super().__post_init__()

    def _points(self, values: Float64Array) -> Float64Array:
        ranks: Float64Array = np.arange(1, len(values) + 1, dtype=np.float64)
        return 1.0 / (self.constant + ranks)


@dataclass(frozen=True, kw_only=True)
class Weighted(_Fusing):
    """Fuse by scores: a hit scores in each list that has it the weight times where it lies between the list's
    worst (0) and best (1). For vectors that goes by distance.

    Attributes
    ----------
    vectors, words : float
        Weights of the lists; 0 leaves one out.
    depth : int, optional
        Hits of each list; without it 2·k, at least 20. More of them read more pages.

    Examples
    --------
    >>> velo.Weighted(vectors=0.7, words=0.3).depth_of(k=200)
    400
    """

    vectors: float = 0.5
    words: float = 0.5

    def _points(self, values: Float64Array) -> Float64Array:
        if len(values) == 0 or values[0] == values[-1]:
            return np.ones(len(values))
        points: Float64Array = (values - values[-1]) / (values[0] - values[-1])
        return points


Fusion: TypeAlias = RRF | Weighted

_NAMED: Final[dict[str, Fusion]] = {"rrf": RRF(), "weighted": Weighted()}


def fusion_of(given: Any) -> Fusion:
    """The fusion of ``search(fusion=)``; RRF by default."""
    if isinstance(given, RRF | Weighted):
        return given
    found = _NAMED["rrf"] if given is None else _NAMED.get(given) if isinstance(given, str) else None
    if found is None:
        names = ", ".join(map(repr, _NAMED))
        raise InvalidArgumentError(
            f"fusion is {names}, a velo.RRF or a velo.Weighted, not {given!r:.80}", argument="fusion"
        )
    return found


def texts_of(given: Any, count: int) -> list[str]:
    """The texts of ``search(text=)``, one for each query; a single text is that of all."""
    texts = [given] * count if isinstance(given, str) else given
    if not isinstance(texts, list | tuple | np.ndarray) or not all(isinstance(one, str) for one in texts):
        raise InvalidArgumentError(
            f"text is a str, or a list of one for each query, not {given!r:.80}", argument="text"
        )
    if len(texts) != count:
        raise InvalidArgumentError(f"{len(texts)} texts were given for {count} queries", argument="text")
    for row, one in enumerate(texts):
        if len(one) > _TEXT_MAX:
            raise InvalidArgumentError(
                f"text {row} has {len(one):,} characters, of {_TEXT_MAX:,} at most", argument="text", row=row
            )
        if not one.isascii() and any("\ud800" <= letter <= "\udfff" for letter in one):
            raise InvalidArgumentError(f"text {row} is no Unicode text", argument="text", row=row)
    return [str(one) for one in texts]
