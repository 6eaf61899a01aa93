"""Lazy public names: imported when they are first used (PEP 562)."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable, Mapping
from typing import Any


def lazy_names(package: str, modules: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return ``__getattr__`` and ``__dir__`` for a package.

    Args:
        package: ``__name__`` of the package.
        modules: By public name, the module in the package that defines it.
    """
    namespace = vars(sys.modules[package])

    def get_attribute(name: str) -> Any:
        if name in modules:
            value = getattr(importlib.import_module(f"{package}.{modules[name]}"), name)
            # Python calls this function only for names that are not in the namespace: once for each.
            namespace[name] = value
            return value
        # Modules of the package are attributes, too. find_spec raises for names such as "no.thing".
        if (
            name.isidentifier()
            and not name.startswith("_")
            and importlib.util.find_spec(f"{package}.{name}") is not None
        ):
            return importlib.import_module(f"{package}.{name}")
        raise AttributeError(f"module '{package}' has no attribute '{name}'")

    def list_names() -> list[str]:
        return sorted({*namespace, *modules})

    return get_attribute, list_names
