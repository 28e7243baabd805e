"""What is asked of a condition's three values, as ``not`` is moved to the leaves."""

from __future__ import annotations

from enum import Enum

__all__ = ["Want"]


class Want(Enum):
    """Which rows are wanted: (those where the condition is true or those where it is false, and null)."""

    TRUE = (True, False)
    FALSE = (False, False)
    NOT_FALSE = (True, True)
    NOT_TRUE = (False, True)

    @property
    def positive(self) -> bool:
        """Whether rows are wanted where the condition is true."""
        return self.value[0]

    @property
    def null(self) -> bool:
        """Whether rows are wanted where it is null."""
        return self.value[1]

    @property
    def of_not(self) -> Want:
        """What is asked of `x` where this is asked of ``NOT x``, which is null where `x` is."""
        return Want((not self.positive, self.null))

    @property
    def of_not_true(self) -> Want:
        """What is asked of `x` where this is asked of ``x IS NOT TRUE``, which is never null."""
        return Want.NOT_TRUE if self.positive else Want.TRUE
