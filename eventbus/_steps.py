"""
What a script of `_order` may ask of whoever drives it, and what it comes to.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, TypeVar

if TYPE_CHECKING:
    from ._errors import ToolCallRefused
    from ._event import Event
    from ._gate import ProtectedEvent
    from ._run import RunBase
    from .catalog import CatalogEvent

T = TypeVar("T")


class Tell(NamedTuple):
    """
    Emit an observed event of a run.
    """

    run: RunBase
    event_class: type[Event]
    fields: dict[str, Any]


class Ask(NamedTuple):
    """
    Let the handlers of a gate judge.
    """

    gate: ProtectedEvent


class Perform(NamedTuple):
    """
    Call the tool or the model; what it returns is sent back.
    """

    subject: Any
    settings: Mapping[str, Any]


class Raised(NamedTuple):
    """
    What came of a step that raised.

    It is sent, not thrown: a GeneratorExit that is thrown would end the scripts inside a script at once. So
    one that comes by itself says that nobody drives the script any more.
    """

    error: BaseException


class Wait(NamedTuple):
    """
    Wait, in seconds.
    """

    seconds: float


class Quiet(NamedTuple):
    """
    Wait, a bounded time, until nobody else is telling something of the run.
    """

    run: RunBase


class Abandoned(GeneratorExit):
    """
    A script is being thrown away where it waits for its Perform; it can do nothing more.
    """


class Carried(Exception):  # noqa: N818 - it is no error, it brings one
    """
    Brings a StopIteration out of a script, which would make a RuntimeError of it.
    """

    def __init__(self, error: StopIteration) -> None:
        super().__init__(error)
        self.error = error


class ToolOutcome(NamedTuple):
    """
    What came of a tool call: a result, always; and whether it was refused, or answered by a gate.
    """

    result: Any
    refused: ToolCallRefused | None = None
    answered: bool = False


class ModelOutcome(NamedTuple):
    """
    What came of asking the model; an error of its own is returned, since a script cannot raise StopIteration.
    """

    response: Any
    answered: bool = False
    error: Exception | None = None


Opened: TypeAlias = "tuple[type[CatalogEvent], dict[str, Any], float, bool]"
"""
A start that has no end yet: the event that ends it if the run ends first, what both say, when it was by the
monotonic clock, and whether that event has an error.
"""

Step: TypeAlias = Tell | Ask | Perform | Wait | Quiet
Script: TypeAlias = Generator[Step, Any, T]


def passed(done: Any) -> Any:
    """
    Return what came of a step, or raise what it raised.
    """
    if not isinstance(done, Raised):
        return done
    try:
        raise carried(done.error)
    finally:
        # The error's traceback keeps this frame, which must not keep the error.
        del done


def carried(error: BaseException) -> BaseException:
    """
    Return an error as a script can raise it.
    """
    return Carried(error) if isinstance(error, StopIteration) else error


def original(error: BaseException) -> BaseException:
    """
    Return an error as it was before a script raised it.
    """
    return error.error if isinstance(error, Carried) else error


def performed(done: Any) -> tuple[Any, Exception | None]:
    """
    Return what the tool or the model returned, and what it raised.

    Raises:
        BaseException: What it raised, if that is no Exception.
    """
    if isinstance(done, Raised) and isinstance(done.error, Exception):
        return None, done.error
    return passed(done), None
