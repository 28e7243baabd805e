"""Names of options and the numbers that the library uses for them."""

from __future__ import annotations

import warnings
from typing import Any, Final

import numpy as np

from velo.errors import InvalidArgumentError
from velo.hints import metric_hint

METRIC_CODES: Final = {"l2": 0, "ip": 1, "cosine": 2}
DTYPE_CODES: Final = {"float32": 0, "float16": 1, "uint8": 2, "int8": 3}
IO_CODES: Final = {"auto": 0, "uring": 1, "threads": 2, "simulated": 3}
PLAN_CODES: Final = {"auto": 0, "links_in_memory": 1, "links_on_disk": 2, "walk": 3}
_GPUS_MAX: Final = 1024
FILTER_PLANS: Final = {"auto": 0, "late": 1, "gate": 3, "scan": 4}


#: States of a GPU (velo_gpu_state).
GPU_STATES: Final = {0: None, 1: "ready", 2: "cpu", 3: "lost"}


def gpu_code(device: Any, *, optional: bool = False) -> int:
    """``gpu`` of the native options for ``"cpu"``, ``"cuda"``, ``"cuda:1"`` or ``"auto"``.

    `optional`: The CPU does the work where that GPU cannot be had.
    """
    if optional:
        return -abs(gpu_code(device))
    if device == "auto":
        return -1
    if device == "cpu":
        return 0
    if device == "cuda":
        return 1
    number = device.removeprefix("cuda:") if isinstance(device, str) else ""
    if number == device or not (number.isascii() and number.isdigit()) or int(number) >= _GPUS_MAX:
        raise InvalidArgumentError(
            f"device must be 'cpu', 'cuda', 'cuda:' and a number, or 'auto', not {device!r}",
            argument="device",
        )
    return int(number) + 1


def plan_name(plan: Any, *, stacklevel: int = 2) -> Any:
    """``"walk"`` for its former name ``"pages"``, with a warning at the caller's `stacklevel`."""
    if plan != "pages":
        return plan
    warnings.warn('plan="pages" is now plan="walk"', FutureWarning, stacklevel=stacklevel + 1)
    return "walk"


def code_of(codes: dict[str, int], value: Any, argument: str) -> int:
    """The native number behind a name such as ``"l2"``, or behind numpy's own name of a type."""
    if codes is DTYPE_CODES and isinstance(value, (type, np.dtype)):
        value = np.dtype(value).name
    if not isinstance(value, str) or value not in codes:
        names = ", ".join(repr(name) for name in codes)
        hint = metric_hint(value) if codes is METRIC_CODES else ""
        message = f"{argument} must be one of {names}, not {value!r}{hint}"
        raise InvalidArgumentError(message, argument=argument)
    return codes[value]
