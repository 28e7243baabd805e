"""The cost estimate of a filtered search before it runs."""

from __future__ import annotations

from typing import Any, Final

from velo import _native
from velo.filters.native import NativeFilter
from velo.options import FILTER_PLANS
from velo.results import FilterCost, FilterPlan

__all__ = ["filter_plan_of"]

_NAMES: Final = {code: name for name, code in FILTER_PLANS.items()}


def filter_plan_of(
    index: Any,
    filter: NativeFilter | None,  # noqa: A002
    options: Any,
    option: str,
) -> FilterPlan | None:
    """The plan for a filter.

    Parameters
    ----------
    index : cdata
        ``velo_index *``, kept open by the caller.
    filter : NativeFilter or None
    options : velo_search_options
    option : str
        ``SearchTuning.filter_plan`` of the request.

    Returns
    -------
    FilterPlan or None
        None where there is no filter.
    """
    if filter is None:
        return None
    info = _native.new("velo_filter_plan_info")
    status = _native.lib.velo_filter_plan(index, filter.handle, options, info)
    _native.check(status, "filter")
    costs = {name: _cost(getattr(info, name)) for name in ("scan", "gate", "late")}
    chosen = _NAMES[info.plan]
    return FilterPlan(
        chosen=chosen,
        reason=_reason(chosen, option, float(info.matches), costs),
        matches=float(info.matches),
        matches_exact=bool(info.matches_exact),
        costs=costs,
        gate_needs_bytes=int(info.gate_needs_bytes),
    )


def _cost(cost: Any) -> FilterCost:
    return FilterCost(
        possible=bool(cost.possible),
        reads=float(cost.reads),
        estimates=float(cost.estimates),
        expanded=float(cost.expanded),
        cost_us=float(cost.us),
    )


def _reason(chosen: str, option: str, matches: float, costs: dict[str, FilterCost]) -> str:
    if option != "auto":
        return "asked for" if chosen == option else f"{option} was asked for, and links are on disk"
    if matches == 0:
        return "nothing passes, so nothing is looked at"
    if not (costs["scan"].possible or costs["late"].possible):
        return "pages are ranked, and only those are read on which something passes"
    other = costs["gate"] if costs["gate"].possible else costs["late"]
    if chosen == "scan":
        return f"looking at all that pass takes less than a walk of {other.expanded:,.0f} hops"
    ahead = f"a walk of {other.expanded:,.0f} hops takes less than looking at all that pass"
    return ahead if costs["gate"].possible else f"{ahead}, and without links in memory every hop is a read"
