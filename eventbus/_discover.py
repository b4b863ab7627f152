"""
Importing the modules in which an application keeps its hooks.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable

from ._errors import DiscoveryError

ENTRY_POINTS = "eventbus.hooks"


def discover(package: str | None = None) -> list[str]:
    """
    Import every module of a package, or what installed distributions offer, so that their hooks go live.

    Args:
        package: The dotted name of a package or module; subpackages are searched too, as far as they have an
            `__init__.py`. Without it, the entry points of group `eventbus.hooks` are loaded.

    Returns:
        The names that were imported, in order.

    Raises:
        DiscoveryError: If one fails to import, after all others were; an ExceptionGroup of several.
    """
    loaded: list[str] = []
    failures: list[DiscoveryError] = []

    def attempt(name: str, load: Callable[[], object]) -> None:
        try:
            load()
        except Exception as error:
            failure = DiscoveryError(f"{name} failed to import: {type(error).__name__}: {error}", name=name)
            failure.__cause__ = error
            failures.append(failure)
        else:
            loaded.append(name)

    if package is None:
        from importlib.metadata import entry_points

        for point in sorted(entry_points(group=ENTRY_POINTS), key=lambda point: point.name):
            attempt(point.value, point.load)
    else:
        _walk(package, attempt)
    if failures:
        raise failures[0] if len(failures) == 1 else ExceptionGroup("hooks failed to import", failures)
    return loaded


def _walk(name: str, attempt: Callable[[str, Callable[[], object]], None]) -> None:
    import pkgutil

    attempt(name, lambda: importlib.import_module(name))
    path = getattr(sys.modules.get(name), "__path__", None)
    for found in pkgutil.iter_modules(path or []):
        if found.name != "__main__":  # importing a program would run it
            _walk(f"{name}.{found.name}", attempt)
