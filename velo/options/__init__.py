"""What can be chosen when building, opening and searching, checked before the library sees it."""

from velo.options.bits import (
    LINKS_STEPS,
    SHARED_LINKS,
    bits_around,
    bits_within,
    codes_bytes_least,
    links_fit,
    page_codes_bytes,
    shared_links_within,
)
from velo.options.build import (
    LINKS_KEPT_USUAL,
    BuildKeywords,
    BuildOptions,
    PublicField,
    build_options,
    shows_build_options,
)
from velo.options.checks import (
    UINT32_MAX,
    folder_path,
    in_range,
    k_of_one_search,
    limit_of,
    memory_bytes,
    whole_number,
)
from velo.options.codes import (
    DTYPE_CODES,
    FILTER_PLANS,
    IO_CODES,
    METRIC_CODES,
    PLAN_CODES,
    code_of,
)
from velo.options.fusion import RRF, Fusion, Weighted, fusion_of, texts_of
from velo.options.tuning import Effort, OpenTuning, SearchTuning, fill_search

__all__ = [
    "DTYPE_CODES",
    "FILTER_PLANS",
    "IO_CODES",
    "LINKS_KEPT_USUAL",
    "LINKS_STEPS",
    "METRIC_CODES",
    "PLAN_CODES",
    "RRF",
    "SHARED_LINKS",
    "UINT32_MAX",
    "BuildKeywords",
    "BuildOptions",
    "Effort",
    "Fusion",
    "OpenTuning",
    "PublicField",
    "SearchTuning",
    "Weighted",
    "bits_around",
    "bits_within",
    "build_options",
    "code_of",
    "codes_bytes_least",
    "fill_search",
    "folder_path",
    "fusion_of",
    "in_range",
    "k_of_one_search",
    "limit_of",
    "links_fit",
    "memory_bytes",
    "page_codes_bytes",
    "shared_links_within",
    "shows_build_options",
    "texts_of",
    "whole_number",
]
