"""
What tests of an application with hooks need: recording, isolation, strictness.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Generic, TypeVar

from . import _registry
from ._event import Event, EventRoot
from ._settings import configure, settings

__all__ = ["Recorder", "capture", "isolated", "strict"]

E = TypeVar("E", bound=EventRoot)
T = TypeVar("T", bound=EventRoot)

FIRST = -(2**31)
"""The priority of a recorder: it sees an event before any handler can raise."""

SHOWN = 20
"""How many recorded events a failed assertion shows."""


class Recorder(Generic[E]):
    """
    The events that were emitted while it recorded, in the order of delivery.

    Attributes:
        events: The events themselves.
    """

    def __init__(self) -> None:
        self.events: list[E] = []

    def __iter__(self) -> Iterator[E]:
        return iter(list(self.events))

    def __len__(self) -> int:
        return len(self.events)

    def __getitem__(self, index: int) -> E:
        return self.events[index]

    def of(self, event_class: type[T]) -> list[T]:
        """
        Return the recorded events of one class, subclasses included.
        """
        return [event for event in self.events if isinstance(event, event_class)]

    def clear(self) -> None:
        """
        Forget what was recorded so far.
        """
        self.events.clear()

    def assert_emitted(self, event_class: type[T], /, **fields: Any) -> T:
        """
        Check that an event of a class, with these payload values, was emitted.

        Args:
            event_class: The class; subclasses count.
            **fields: Payload keys and the values they must equal; `correlation_id` is accepted too.

        Returns:
            The first such event.

        Raises:
            AssertionError: If there is none; the text tells what was emitted instead.
        """
        for event in self.of(event_class):
            if _matches(event, fields):
                return event
        msg = f"{_wanted(event_class, fields)} was not emitted; {self._told(event_class)}"
        raise AssertionError(msg)

    def assert_not_emitted(self, event_class: type[EventRoot], /, **fields: Any) -> None:
        """
        Check that no event of a class, with these payload values, was emitted.

        Args:
            event_class: The class; subclasses count.
            **fields: Payload keys and the values they must equal.

        Raises:
            AssertionError: If there is one; the text shows it.
        """
        for event in self.of(event_class):
            if _matches(event, fields):
                msg = f"{_wanted(event_class, fields)} was emitted: {event!r}"
                raise AssertionError(msg)

    def _told(self, event_class: type) -> str:
        if not self.events:
            return "nothing was."
        same: list[Any] = self.of(event_class)
        shown: list[Any] = (same or self.events)[:SHOWN]
        lines = "".join(f"\n  {event!r}" for event in shown)
        more = len(same or self.events) - len(shown)
        rest = f"\n  ... and {more} more" if more else ""
        return ("only these of its class were:" if same else "these were:") + lines + rest


def _wanted(event_class: type, fields: dict[str, Any]) -> str:
    return f"{event_class.__qualname__}({', '.join(f'{key}={value!r}' for key, value in fields.items())})"


def _matches(event: EventRoot, fields: dict[str, Any]) -> bool:
    missing = object()
    payload = {**event.payload, "correlation_id": event.correlation_id}
    return all(payload.get(key, missing) == value for key, value in fields.items())


@contextmanager
def capture(*event_classes: type[Event]) -> Generator[Recorder[Event]]:
    """
    Record the events that are emitted inside, by whichever thread.

    Args:
        *event_classes: The classes to record, their subclasses included; all observed events by default.

    Yields:
        The recorder, which keeps its events afterwards.
    """
    recorder = Recorder[Event]()
    with ExitStack() as stack:
        for event_class in event_classes or (Event,):
            stack.enter_context(event_class.subscribe(recorder.events.append, priority=FIRST))
        yield recorder


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
