"""
A record of what was emitted, and the assertions on it.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any, Final, Generic, TypeAlias, TypeVar, overload

from ._emitter import all_fields
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

ALIKE: Final = 100
"""How many characters two values may begin with in common before that is left out."""

AROUND: Final = 40
"""How many of them are left in."""

_MISSING: Final = object()

Outcome: TypeAlias = bool | Exception
"""Whether a value is the one that was asked for, or what their comparison raised."""


class Recorder(Generic[E]):
    """
    The events that were emitted while it recorded, in the order of delivery; `capture` makes one.

    Attributes:
        events: The events themselves.
    """

    events: list[E]
    _classes: tuple[type[E], ...]

    def __init__(self, *_: object) -> None:
        msg = "A Recorder that is made by hand would record nothing; use `with capture(...) as recorder:`."
        raise TypeError(msg)

    def __repr__(self) -> str:
        count = len(self.events)
        return f"<{type(self).__name__} of {_listed(self._classes)}: {count} event{'s' * (count != 1)}>"

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
        __tracebackhide__ = True
        _checked(event_class)
        if not any(_related(event_class, each) for each in self._classes):
            # There would never be any, and a test that hopes for none would pass whatever happens.
            msg = (
                f"{event_class.__qualname__} is not recorded here, only {_listed(self._classes)}; "
                f"record it with capture({_listed([*self._classes, event_class])})."
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
            **fields: Payload keys and the values they must equal; `correlation_id` and `timestamp` too. An
                error equals one of the same type with the same arguments.

        Returns:
            The first such event.

        Raises:
            AssertionError: If there is none; the text tells what was emitted instead, the nearest first, and
                what differs.
            TypeError: If it is no event class, or one that is not recorded here.
        """
        __tracebackhide__ = True
        same = self.of(event_class)
        for event in same:
            if all(outcome is True for outcome in _outcomes(event, fields).values()):
                return event
        msg = f"{_named(event_class, fields)} was not emitted; {self._told(same, fields)}"
        raise AssertionError(msg)

    def assert_not_emitted(self, event_class: type[EventRoot], /, **fields: Any) -> None:
        """
        Check that no event of a class, with these payload values, was emitted.

        Args:
            event_class: The class; subclasses count.
            **fields: As for `assert_emitted`.

        Raises:
            AssertionError: If there is one, or one that cannot be compared; the text shows it.
            TypeError: If it is no event class, or one that is not recorded here. Also if a key is neither a
                field of the class nor in an event of it that was recorded: there would never be one.
        """
        __tracebackhide__ = True
        same = self.of(event_class)
        _check_keys(event_class, same, fields)
        for event in same:
            outcomes = _outcomes(event, fields)
            if False not in outcomes.values():
                if all(outcome is True for outcome in outcomes.values()):
                    msg = f"{_named(event_class, fields)} was emitted: {_event(event)}"
                else:
                    told = _near(event, fields, outcomes)
                    msg = f"whether {_named(event_class, fields)} was emitted cannot be told: {told}"
                raise AssertionError(msg)

    def _told(self, same: list[Any], fields: dict[str, Any]) -> str:
        # What else was emitted is not known here.
        of = "" if self._classes == (Event,) else f", of what is recorded here ({_listed(self._classes)})"
        if same:
            found = sorted(((event, fields, _outcomes(event, fields)) for event in same), key=_how_far)
            head, lines = "only these of its class were:", [_near(*each) for each in found[:SHOWN]]
        elif self.events:
            head, lines = f"these were{of}:", [_event(event) for event in self.events[:SHOWN]]
        else:
            return f"nothing was{of}."
        more = len(same or self.events) - len(lines)
        rest = [f"... and {more} more"] if more else []
        return "\n  ".join([head, *lines, *rest])


def shown(value: object) -> str:
    """
    Return a value as an assertion shows it: never too long, and whatever its `__repr__` does.
    """
    return _cut(_repr(value))


def _repr(value: object) -> str:
    try:
        return repr(value)
    except Exception as error:
        return f"a {type(value).__name__} whose repr raises {type(error).__name__}"


def _cut(text: str, start: int = 0) -> str:
    text = text if start == 0 else f"…{text[start:]}"
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"


def _listed(classes: Iterable[type]) -> str:
    return ", ".join(each.__qualname__ for each in classes)


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


def _outcomes(event: EventRoot, fields: dict[str, Any]) -> dict[str, Outcome]:
    values = _values(event)
    return {key: _outcome(values.get(key, _MISSING), wanted) for key, wanted in fields.items()}


def _outcome(value: object, wanted: object) -> Outcome:
    try:
        return value is not _MISSING and is_equal(value, wanted)
    except Exception as error:
        # Arrays compare item by item, and say that this is neither true nor false.
        return error


def is_equal(value: object, wanted: object) -> bool:
    """
    Tell whether two values are equal; errors are if they are of the same type and have the same arguments.

    Raises:
        Exception: What the values' comparison raises.
    """
    if value is wanted or value == wanted:
        return True
    if isinstance(value, BaseException) and isinstance(wanted, BaseException):
        return type(value) is type(wanted) and value.args == wanted.args
    return False


def _apart(value: object, wanted: object) -> str:
    # Two values that are not equal, so that one sees where.
    texts = _repr(value), _repr(wanted)
    if texts[0] == texts[1]:
        kinds = [f"{type(each).__module__}.{type(each).__qualname__}" for each in (value, wanted)]
        other = "another one" if kinds[0] == kinds[1] else f"a {kinds[1]} and not a {kinds[0]}"
        return f"{_cut(texts[0])}, not equal to what was asked for, which is {other} that looks the same"
    pairs = enumerate(zip(*texts, strict=False))
    alike = next((index for index, (one, other) in pairs if one != other), min(map(len, texts)))
    start = alike - AROUND if alike > ALIKE else 0
    told = f"{_cut(texts[0], start)}, not {_cut(texts[1], start)}"
    return f"{told} (from character {start} on)" if start else told


def _check_keys(event_class: type[EventRoot], same: Iterable[EventRoot], fields: Iterable[str]) -> None:
    __tracebackhide__ = True
    known = [field.name for field in all_fields(event_class)]
    unknown = set(fields).difference(known, *map(_values, same))
    if unknown:
        msg = (
            f"{event_class.__qualname__} has no field {', '.join(map(repr, sorted(unknown)))}, and no event "
            f"of it that was recorded has such a key; its fields are {', '.join(known)}."
        )
        raise TypeError(msg)


def _how_far(found: tuple[EventRoot, dict[str, Any], dict[str, Outcome]]) -> int:
    return sum(outcome is not True for outcome in found[2].values())


def _near(event: EventRoot, fields: dict[str, Any], outcomes: dict[str, Outcome]) -> str:
    values = _values(event)
    told = [
        _difference(key, values.get(key, _MISSING), fields[key], outcome)
        for key, outcome in outcomes.items()
        if outcome is not True
    ]
    return f"{_event(event)}: {'; '.join(told)}"


def _difference(key: str, value: object, wanted: object, outcome: Outcome) -> str:
    if value is _MISSING:
        return f"there is no {key!r}"
    if isinstance(outcome, Exception):
        return f"{key} is {shown(value)}, and to compare it with {shown(wanted)} raises {shown(outcome)}"
    return f"{key} is {_apart(value, wanted)}"


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
    cls: type[Recorder[Any]] = Recorder
    recorder = cls.__new__(cls)
    recorder.events = []
    recorder._classes = tuple(map(_checked, event_classes or (Event,)))
    with ExitStack() as stack:
        for event_class in recorder._classes:
            stack.enter_context(event_class.subscribe(recorder.events.append, priority=FIRST))
        yield recorder
