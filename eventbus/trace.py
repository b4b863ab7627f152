"""
The trace store: every observed event, durably, in an SQLite file.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from ._retention import Retention

if TYPE_CHECKING:
    from ._schema import Durability

__all__ = ["Retention", "flush", "start", "stop"]


def start(
    path: str | os.PathLike[str], durability: Durability = "batched", retention: Retention | None = None
) -> None:
    """
    Store every observed event from now on, in an SQLite file that is made at need.

    Args:
        path: The file.
        durability: "batched": written in batches of about 5 ms. "sync": an emit returns after its commit.
        retention: What is deleted in time; None keeps everything.
    """
    from ._writer import Store
    from . import _registry
    from ._event import Event

    store = Store(os.path.abspath(os.fspath(path)), durability, retention)
    store.open()
    global _store
    _store = store
    _registry.signal_of(Event).connect(store.receiver, weak=False)


def stop() -> None:
    """
    Write what is in the queue, and close the store.
    """
    global _store
    from . import _registry
    from ._event import Event

    if _store is not None:
        store, _store = _store, None
        _registry.signal_of(Event).disconnect(store.receiver)
        store.close()


def flush(timeout: float = 5.0) -> bool:
    """
    Wait until everything emitted so far is in the file.
    """
    return _store is None or _store.flush(timeout)


_store = None
