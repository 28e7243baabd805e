"""An open index: search it, look into it, close it."""

from velo.index.folder import BUDGETED, device_dict, gpu_dict, verify_folder
from velo.index.from_vectors import build
from velo.index.index import Index
from velo.index.open import UNKNOWN_COLUMNS, create_index, open_index, open_path
from velo.index.sharded import ShardedIndex

__all__ = [
    "BUDGETED",
    "UNKNOWN_COLUMNS",
    "Index",
    "ShardedIndex",
    "build",
    "create_index",
    "device_dict",
    "gpu_dict",
    "open_index",
    "open_path",
    "verify_folder",
]
