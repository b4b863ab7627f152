"""
A record of what was emitted, and the assertions on it.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any, Final, Generic, TypeVar, overload

from ._event import Event, EventRoot
from .values import RunInfo

E = TypeVar("E", bound=EventRoot)
T = TypeVar("T", bound=EventRoot)

FIRST: Final = -(2**31)
"""The priority of a recorder: it sees an event before any handler can raise."""

SHOWN: Final = 20
"""How many recorded events a failed assertion shows."""

LONGEST: Final = 1000
"""How many characters of each it shows."""

_MISSING: Final = object()


class Recorder(Generic[E]):
    """
    The events that were emitted while it recorded, in the order of delivery.

    Args:
        *event_classes: What it records, and may be asked for; any event by default.

    Attributes:
        events: The events themselves.
    """

    def __init__(self, *event_classes: type[E]) -> None:
        self.events: list[E] = []
        self._classes = tuple(map(_checked, event_classes))

    def __iter__(self) -> Iterator[E]:
        return iter(list(self.events))

    def __len__(self) -> int:
        return len(self.events)

    def __getitem__(self, index: int) -> E:
        return self.events[index]

    def of(self, event_class: type[T]) -> list[T]:
        """
        Return the recorded events of one class, subclasses included.

        Raises:
            TypeError: If it is no event class, or one that is not recorded here.
        """
        _checked(event_class)
        if self._classes and not any(_related(event_class, each) for each in self._classes):
            # There would never be any, and a test that hopes for none would pass whatever happens.
            names = [each.__qualname__ for each in (*self._classes, event_class)]
            msg = (
                f"{names[-1]} is not recorded here, only {', '.join(names[:-1])}; "
                f"record it with capture({', '.join(names)})."
            )
            raise TypeError(msg)
        return [event for event in list(self.events) if isinstance(event, event_class)]

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
            **fields: Payload keys and the values they must equal; `correlation_id` and `timestamp` too.

        Returns:
            The first such event.

        Raises:
            AssertionError: If there is none; the text tells what was emitted instead, the nearest first, and
                what differs.
            TypeError: If it is no event class, or one that is not recorded here.
        """
        same = self.of(event_class)
        for event in same:
            if not _differences(event, fields):
                return event
        msg = f"{_named(event_class, fields)} was not emitted; {self._told(same, fields)}"
        raise AssertionError(msg)

    def assert_not_emitted(self, event_class: type[EventRoot], /, **fields: Any) -> None:
        """
        Check that no event of a class, with these payload values, was emitted.

        Args:
            event_class: The class; subclasses count.
            **fields: Payload keys and the values they must equal; `correlation_id` and `timestamp` too.

        Raises:
            AssertionError: If there is one; the text shows it.
            TypeError: If it is no event class, or one that is not recorded here.
        """
        for event in self.of(event_class):
            if not _differences(event, fields):
                msg = f"{_named(event_class, fields)} was emitted: {_event(event)}"
                raise AssertionError(msg)

    def _told(self, same: list[Any], fields: dict[str, Any]) -> str:
        if same:
            found = sorted(((_differences(event, fields), event) for event in same), key=_how_many)
            head, lines = "only these of its class were:", [_near(*each) for each in found[:SHOWN]]
        elif self.events:
            head, lines = "these were:", [_event(event) for event in self.events[:SHOWN]]
        else:
            return "nothing was."
        more = len(same or self.events) - len(lines)
        rest = [f"... and {more} more"] if more else []
        return "\n  ".join([head, *lines, *rest])


def shown(value: object) -> str:
    """
    Return a value as an assertion shows it: never too long, and whatever its `__repr__` does.
    """
    try:
        text = repr(value)
    except Exception as error:
        return f"a {type(value).__name__} whose repr raises {type(error).__name__}"
    return _cut(text)


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"


def _checked(event_class: Any) -> type[Any]:
    if isinstance(event_class, type) and issubclass(event_class, EventRoot):
        return event_class
    msg = f"{event_class!r} is no event class; name a subclass of Event or ProtectedEvent."
    raise TypeError(msg)


def _related(one: type, other: type) -> bool:
    return issubclass(one, other) or issubclass(other, one)


def _named(event_class: type, fields: dict[str, Any]) -> str:
    told = ", ".join(f"{key}={shown(value)}" for key, value in fields.items())
    return f"{event_class.__qualname__}({told})"


def _event(event: EventRoot) -> str:
    if type(event).__repr__ is not EventRoot.__repr__:
        return shown(event)
    # Most readers of the catalog are None; the run's id and agent stand in the event itself.
    told = {key: value for key, value in _values(event).items() if not isinstance(value, RunInfo | None)}
    return _cut(_named(type(event), told))


def _values(event: EventRoot) -> dict[str, Any]:
    return {**event.payload, "correlation_id": event.correlation_id, "timestamp": event.timestamp}


def _differences(event: EventRoot, fields: dict[str, Any]) -> list[str]:
    payload = _values(event)
    found: list[str] = []
    for key, wanted in fields.items():
        value = payload.get(key, _MISSING)
        if value is _MISSING:
            found.append(f"there is no {key!r}")
        elif not (value is wanted or value == wanted):
            found.append(f"{key} is {shown(value)}, not {shown(wanted)}")
    return found


def _how_many(found: tuple[list[str], Any]) -> int:
    return len(found[0])


def _near(differences: list[str], event: EventRoot) -> str:
    return f"{_event(event)}: {'; '.join(differences)}"


@overload
def capture() -> AbstractContextManager[Recorder[Event]]: ...
@overload
def capture(*event_classes: type[E]) -> AbstractContextManager[Recorder[E]]: ...
@contextmanager
def capture(*event_classes: type[Any]) -> Generator[Recorder[Any]]:
    """
    Record the events that are emitted inside, by whichever thread.

    Args:
        *event_classes: The classes to record, their subclasses included, gates too; all observed events by
            default.

    Yields:
        The recorder, which keeps its events afterwards. A gate is recorded as it is, and shows in the end
        what its handlers have written.

    Raises:
        TypeError: If something is no event class.
    """
    classes = event_classes or (Event,)
    recorder = Recorder[Any](*classes)
    with ExitStack() as stack:
        for event_class in classes:
            stack.enter_context(event_class.subscribe(recorder.events.append, priority=FIRST))
        yield recorder
