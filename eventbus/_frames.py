"""
Where an error came from: its text and its innermost frames.
"""

from __future__ import annotations

import os
from collections import deque
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from types import CodeType, FrameType, TracebackType

UNPRINTABLE: Final = "<unprintable>"

_FRAMES: Final = 3
# Neither this package nor code it compiled says where the user's error came from.
_OURS: Final = (os.path.dirname(os.path.abspath(__file__)) + os.sep, "<eventbus", "<attrs generated")


def error_name(error: BaseException) -> str:
    """
    Name the class of an error, without its module.

    Args:
        error: Any error.

    Returns:
        The name as Python shows it above a traceback; never raises.
    """
    return type(error).__name__


def error_message(error: object) -> str:
    """
    Give the text of an error.

    Args:
        error: Any error, or a note of one, its `__str__` included in what may fail.

    Returns:
        `str(error)`, or `<unprintable>` if that raises an Exception.
    """
    try:
        # An exact copy: a subclass of str may answer anything for its methods.
        return str.__str__(str(error))
    except Exception:
        return UNPRINTABLE


def error_frames(error: BaseException) -> list[str]:
    """
    Say where an error was raised: `file.py:12 in function`, innermost first, three at most.

    The frames are those of its traceback, and then the callers of the place that caught it. Frames inside
    eventbus are left out.

    Args:
        error: Any error; one that was never raised has no frames.

    Returns:
        The frames as texts, unescaped.
    """
    raised: deque[str] = deque(maxlen=_FRAMES)
    step: TracebackType | None = error.__traceback__
    frame: FrameType | None = None if step is None else step.tb_frame.f_back
    while step is not None:
        _note(raised, step.tb_frame.f_code, step.tb_lineno)
        step = step.tb_next
    found = list(raised)[::-1]
    while frame is not None and len(found) < _FRAMES:
        _note(found, frame.f_code, frame.f_lineno)
        frame = frame.f_back
    return found


def _note(frames: deque[str] | list[str], code: CodeType, line: int | None) -> None:
    if not code.co_filename.startswith(_OURS):
        name = os.path.basename(code.co_filename)
        frames.append(f"{name}:{line or code.co_firstlineno} in {code.co_name}")
