"""An extension of Griffe: it makes links of the roles by which docstrings name things (:class:`Index`)."""

from __future__ import annotations

import re
from typing import Any

import griffe

ROLE = re.compile(r":(?:class|func|meth|mod|attr|exc|data):`([^`]+)`")


class Roles(griffe.Extension):
    """Rewrites the roles of every docstring as it is read."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            text = obj.docstring.value
            text = ROLE.sub(lambda match: _link(match[1], obj), text)
            obj.docstring.value = re.sub(r"::\n\n(?=    )", ":\n\n", text)


def _link(name: str, obj: griffe.Object) -> str:
    """A link to what a role names, or its name as code where the reference does not show it."""
    target = _target(name.lstrip("~"), obj)
    shown = f"`{name.removeprefix('velo.')}`"
    return f"[{shown}][{target}]" if target else shown


def _target(name: str, obj: griffe.Object) -> str | None:
    import velo
    import velo.errors

    if name == "velo" or name.startswith(("velo.", "velo_serving.")):
        return name
    head = name.split(".")[0]
    if head in velo.__all__:
        return f"velo.{name}"
    if head in velo.errors.__all__:
        return f"velo.errors.{name}"
    owner = obj if obj.is_class else obj.parent
    if owner is not None and owner.is_class and owner.name in velo.__all__:
        return f"velo.{owner.name}.{name}"
    return None
