"""
What tests of an application with hooks need: recording, scripts, a clock, isolation, strictness.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

from . import _registry
from ._frozen import FrozenClock, frozen_clock
from ._recorder import Recorder, capture
from ._scripted import InTurn, ModelRequest, ScriptedModel, ScriptedTools
from ._settings import configure, settings

__all__ = [
    "FrozenClock",
    "InTurn",
    "ModelRequest",
    "Recorder",
    "ScriptedModel",
    "ScriptedTools",
    "capture",
    "frozen_clock",
    "isolated",
    "strict",
]


@contextmanager
def isolated() -> Generator[None]:
    """
    Give the code inside an empty bus: outer hooks and subscriptions are silent, inner ones vanish at the end.

    The outer registry is set aside as a whole and put back as a whole, so it returns exactly as it was. It is
    process-wide: other threads see the empty bus too. An outer hook is let in with `HookClass.register()`.
    """
    inner = _registry.State()
    inner.channels.update(_registry.state.channels)
    inner.stated.update(_registry.state.stated)
    outer = _registry.swap(inner)
    try:
        yield
    finally:
        _registry.swap(outer)
        with _registry.lock:
            for entry in inner.hooks.values():
                entry.close()
        for resource in inner.resources.values():
            resource.close()


@contextmanager
def strict() -> Generator[None]:
    """
    Raise what observers raise, as `configure(strict=True)` does, for the code inside.
    """
    before = settings.strict
    configure(strict=True)
    try:
        yield
    finally:
        configure(strict=before)
