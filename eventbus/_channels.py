"""
The dotted names of event classes.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, cast

from . import _registry
from ._errors import UnknownChannelError

if TYPE_CHECKING:
    from ._event import Event
    from ._gate import ProtectedEvent

_WORD_START = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_STATED = re.compile(r"\w+(?:[.\-]\w+)*")


def derive(cls: type) -> str:
    """
    Return the channel of a class that states none: its module's path and its name in snake case.
    """
    name = cls.__name__.removesuffix("Event") or cls.__name__
    return f"{cls.__module__}.{_WORD_START.sub('_', name).lower()}"


def check_stated(cls: type, channel: object) -> str:
    """
    Return the channel that a class states, if it may have it.

    Raises:
        TypeError: If it is no dotted name, or another class states it too.
    """
    if not isinstance(channel, str) or not _STATED.fullmatch(channel):
        msg = f"{cls.__qualname__} states channel {channel!r}; a channel is a dotted name, like 'shop.order'."
        raise TypeError(msg)
    other = _registry.state.stated.get(channel)
    if other is not None and not _is_again(cls, other):
        msg = (
            f"{cls.__module__}.{cls.__qualname__} states channel {channel!r}, which "
            f"{other.__module__}.{other.__qualname__} has stated already; give one of them another name."
        )
        raise TypeError(msg)
    return channel


def _is_again(cls: type, other: type) -> bool:
    return (cls.__module__, cls.__qualname__) == (other.__module__, other.__qualname__)


def find(channel: str) -> type[Event] | type[ProtectedEvent]:
    """
    Return the latest event class with a channel.

    Args:
        channel: A dotted name, such as `eventbus.tool_call.completed`.

    Returns:
        The class.

    Raises:
        UnknownChannelError: If there is none; the text names the nearest.
    """
    cls = _registry.state.channels.get(channel)
    if cls is None:
        from difflib import get_close_matches

        near = get_close_matches(channel, _registry.state.channels, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else "."
        msg = f"No event class has the channel {channel!r}{hint}"
        raise UnknownChannelError(msg)
    return cast("type[Event] | type[ProtectedEvent]", cls)
