"""A vector search engine that keeps its index on an SSD.

::

    import velo

    index = velo.build("photos.velo", vectors, metadata=table, memory="15%")
    ids, distances = index.search(queries, k=10, filter=velo.col("year") >= 2020)

:func:`build` makes an index and :func:`open` opens one; :class:`Index` searches and changes it. :func:`col`
and dicts make filters, :mod:`velo.formats` reads and writes vector files, :mod:`velo.testing` measures
recall, and every error is a :class:`VeloError` (:mod:`velo.errors`).
"""

from typing import TYPE_CHECKING

from velo import errors
from velo.building.collection import build_collection
from velo.errors import *  # noqa: F403
from velo.filters import col, ids, mask
from velo.hints import FUNCTIONS
from velo.index import Index, ShardedIndex, build
from velo.index import create_index as create
from velo.index import open_path as open  # noqa: A004
from velo.index import verify_folder as verify
from velo.options import RRF, OpenTuning, SearchTuning, Weighted
from velo.planning.budgets import plans
from velo.planning.proposal import Proposal, TunedCandidate
from velo.planning.sample import TunedPoint
from velo.planning.sizes import SizePlan, size_plan
from velo.planning.tune import tune
from velo.results import Expectation, Explanation, GroupedResult, RangeResult, SearchResult, Written

__version__ = "0.1.0"

__all__ = [
    "RRF",
    "Expectation",
    "Explanation",
    "GroupedResult",
    "Index",
    "OpenTuning",
    "Proposal",
    "RangeResult",
    "SearchResult",
    "SearchTuning",
    "ShardedIndex",
    "SizePlan",
    "TunedCandidate",
    "TunedPoint",
    "Weighted",
    "Written",
    "__version__",
    "build",
    "build_collection",
    "col",
    "create",
    "ids",
    "mask",
    "open",
    "plans",
    "size_plan",
    "tune",
    "verify",
]
__all__ += errors.__all__


if not TYPE_CHECKING:  # otherwise type checkers would accept any name

    def __getattr__(name: str) -> object:
        """Suggest velo's name for a name of another library."""
        hint = FUNCTIONS.get(name)
        raise AttributeError(
            f"module 'velo' has no attribute {name!r}" + (f": {hint}" if hint else ""), name=name
        )
