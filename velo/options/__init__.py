"""Options of builds, opens and searches, checked before the library sees them."""

from velo.options.build import (
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
    GPU_STATES,
    IO_CODES,
    METRIC_CODES,
    PLAN_CODES,
    code_of,
    gpu_code,
    plan_name,
)
from velo.options.fusion import RRF, Fusion, Weighted, fusion_of, texts_of
from velo.options.sizes import links_steps, sizes_of
from velo.options.tuning import Effort, OpenTuning, SearchTuning, fill_search

__all__ = [
    "DTYPE_CODES",
    "FILTER_PLANS",
    "GPU_STATES",
    "IO_CODES",
    "METRIC_CODES",
    "PLAN_CODES",
    "RRF",
    "UINT32_MAX",
    "BuildKeywords",
    "BuildOptions",
    "Effort",
    "Fusion",
    "OpenTuning",
    "PublicField",
    "SearchTuning",
    "Weighted",
    "build_options",
    "code_of",
    "fill_search",
    "folder_path",
    "fusion_of",
    "gpu_code",
    "in_range",
    "k_of_one_search",
    "limit_of",
    "links_steps",
    "memory_bytes",
    "plan_name",
    "shows_build_options",
    "sizes_of",
    "texts_of",
    "whole_number",
]
