"""What velo's users may name: the public modules, their names, and the methods of their classes."""

from __future__ import annotations

import importlib
import inspect
from dataclasses import dataclass
from typing import Any

import velo.errors

#: Modules whose ``__all__`` the reference shows, and what of it only other rooms use.
MODULES: dict[str, set[str]] = {
    "velo": {"__version__"},
    "velo.errors": set(),
    "velo.filters": {"DEPTH_MAX", "NODES_MAX", "VALUES_MAX", "Value", "refuse", "col", "ids", "mask"}
    | {"And", "Between", "Compare", "Contains", "IsIn", "IsNull", "Not", "Or", "StartsWith"}
    | {"ElementMatch", "Ids", "IsNotTrue", "Like", "Mask"},
    "velo.formats": {"SUFFIXES"},
    "velo.testing": set(),
    "velo.integrations.langchain": set(),
    "velo.integrations.haystack": set(),
    "velo.integrations.llama_index": set(),
    "velo_serving": {"Backend", "Generation", "Router", "ServedCollection"},
}

#: Methods by which the rooms pass options on.
PLUMBING = {"fill", "written", "records", "record", "exchange", "locate", "all_fields", "refuse_others"}


@dataclass(frozen=True)
class PublicName:
    """Something that users may name, and where."""

    path: str
    value: Any

    @property
    def paths(self) -> set[str]:
        """All its names; an awaited method is documented by its twin."""
        if self.path.startswith(("velo_serving.AsyncClient.", "velo_serving.Client.")):
            return {self.path, self.path.replace("AsyncClient", "Client").removesuffix("_async")}
        name = self.path.removeprefix("velo.")
        return {self.path, f"velo.errors.{name}"} if name in velo.errors.__all__ else {self.path}

    @property
    def is_function(self) -> bool:
        return inspect.isroutine(self.value)


def public_names() -> list[PublicName]:
    """All of them, each once."""
    found: dict[str, PublicName] = {}
    for module, others in MODULES.items():
        home = importlib.import_module(module)
        for name in home.__all__:
            if name in others:
                continue
            path, value = f"{module}.{name}", getattr(home, name)
            found[path] = PublicName(path, value)
            if inspect.isclass(value) and not issubclass(value, BaseException):
                found |= {one.path: one for one in _methods(path, value)}
    return list(found.values())


def _methods(path: str, owner: type) -> list[PublicName]:
    found = []
    for name in dir(owner):
        if name.startswith("_") or name in PLUMBING:
            continue
        member = inspect.getattr_static(owner, name)
        value = getattr(owner, name)
        home = getattr(value if inspect.isroutine(value) else getattr(member, "fget", None), "__module__", "")
        is_alias = inspect.isroutine(value) and value.__name__ != name
        if str(home).startswith("velo") and not is_alias:
            found.append(PublicName(f"{path}.{name}", value if inspect.isroutine(value) else member))
    return found
