"""
What tests of an application with hooks need: recording, scripts, a clock, isolation, strictness.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

from . import _registry
from ._frozen import FrozenClock, frozen_clock
from ._recorder import Recorder, capture
from ._scopes import Scopes
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


def _swap_registry(state: _registry.State) -> _registry.State:
    return _registry.swap(state)


def _swap_strict(value: bool) -> bool:
    before = settings.strict
    configure(strict=value)
    return before


_isolated = Scopes(_swap_registry)
_strict = Scopes(_swap_strict)


@contextmanager
def isolated() -> Generator[None]:
    """
    Give the code inside an empty bus: outer hooks and subscriptions are silent, inner ones vanish at the end.

    The outer registry is set aside as a whole and put back as a whole, so it returns exactly as it was. An
    outer hook is let in with `HookClass.register()`.

    It is process-wide: other threads and tasks see the empty bus too. Of scopes that overlap, as two tests in
    threads may have them, the bus of the one that began last is everybody's; they may end in any order, and
    the end of the last gives back what was there before the first.

    Async handlers that are pending at the end still run, and what they raise is reported on the outer bus:
    `drain()`, or `await adrain()`, inside the block waits for them.
    """
    inner = _registry.State()
    inner.channels.update(_registry.state.channels)
    inner.stated.update(_registry.state.stated)
    try:
        with _isolated.scope(inner):
            yield
    finally:
        with _registry.lock:
            for entry in inner.hooks.values():
                entry.close()
        for resource in inner.resources.values():
            resource.close()


@contextmanager
def strict() -> Generator[None]:
    """
    Raise what observers raise, as `configure(strict=True)` does, for the code inside.

    It is process-wide. Scopes that overlap may end in any order; the end of the last puts back what was set
    before the first.
    """
    with _strict.scope(True):
        yield
