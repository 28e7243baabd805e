"""An open index: search it, look into it, close it."""

from velo.index.from_vectors import build
from velo.index.index import Index
from velo.index.info import BUDGETED, device_dict
from velo.index.open import UNKNOWN_COLUMNS, create_index, open_index, open_path
from velo.index.sharded import ShardedIndex
from velo.index.verify import verify_folder

__all__ = [
    "BUDGETED",
    "UNKNOWN_COLUMNS",
    "Index",
    "ShardedIndex",
    "build",
    "create_index",
    "device_dict",
    "open_index",
    "open_path",
    "verify_folder",
]
