"""Results of searches and writes."""

from velo.results.explanation import Explanation, FilterCost, FilterPlan
from velo.results.hits import (
    Expectation,
    Fuses,
    GroupedResult,
    Hits,
    RangeResult,
    SearchResult,
    Served,
    fused,
    html_table,
    kept_text,
    size_text,
)
from velo.results.written import Written

__all__ = [
    "Expectation",
    "Explanation",
    "FilterCost",
    "FilterPlan",
    "Fuses",
    "GroupedResult",
    "Hits",
    "RangeResult",
    "SearchResult",
    "Served",
    "Written",
    "fused",
    "html_table",
    "kept_text",
    "size_text",
]
