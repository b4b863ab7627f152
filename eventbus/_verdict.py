"""
What the edits of a gate mean: what was decided, by whom, and why.
"""

from __future__ import annotations

from collections.abc import Mapping
from threading import TIMEOUT_MAX
from typing import TYPE_CHECKING, Any, Final, cast

from ._event import STICKY
from ._gate import RAISED, Edit, ProtectedEvent

if TYPE_CHECKING:
    from .gates import AfterModelCallEvent, AfterToolCallEvent, BeforeModelCallEvent

ANSWERS: Final = ("result", "response")
"""The fields that answer in place of a call."""


def decision(gate: ProtectedEvent, edit: Edit, *, may_retry: bool) -> dict[str, Any] | None:
    """
    Return what an edit means as a GateDecisionEvent; None if it means nothing by itself.
    """
    action, applied, reason = "edit", edit.applied, None
    if edit.field == RAISED:
        action, reason = "error", text_of(edit.new)
    elif is_sticky(gate, edit.field):
        if edit.new:
            action, reason = "deny", reason_of(edit.new, edit.handler)
        elif not edit.old:
            return None
    elif edit.field == "retry":
        if edit.new:
            action, applied = "retry", edit.applied and may_retry and bool(gate["retry"])
            reasons = [e.new for e in gate.edits if e.field == "reason" and e.handler == edit.handler]
            reason = reasons[-1] if reasons else None
        elif not edit.old:
            return None
    elif edit.field == "reason" and any(e.field == "retry" and e.handler == edit.handler for e in gate.edits):
        return None
    elif edit.field in ANSWERS and not gate.reverse and edit.new is not None:
        action, applied = "answer", edit.applied and not is_refused(gate)
    return {
        "gate": type(gate).__name__,
        "by": edit.handler,
        "action": action,
        "field": edit.field if edit.field != RAISED else None,
        "reason": reason,
        "applied": applied,
        "tool_call": gate.get("tool_call"),
    }


def is_sticky(gate: ProtectedEvent, name: str) -> bool:
    """
    Tell whether a field of a gate latches, as a refusal does.
    """
    field = gate._writable.get(name)
    return field is not None and bool(field.metadata[STICKY])


def is_refused(gate: ProtectedEvent) -> bool:
    """
    Tell whether a handler has refused what a gate judges.
    """
    return any(is_sticky(gate, name) and getattr(gate, name) for name in gate._writable)


def text_of(error: BaseException) -> str:
    """
    Return an error's own text, or its name if it has none; never fails.
    """
    try:
        return str(error) or type(error).__name__
    except Exception:
        return type(error).__name__


def name_of(call: Any) -> str:
    """
    Return the name of the tool that a call asks for, as tools are found by it.
    """
    # What `str` makes of a member of an enum is no name of a tool, and yet it finds the tool.
    return str.__str__(call.name) if isinstance(call.name, str) else str(call.name)


def shown(value: object) -> str:
    """
    Return a value as an error shows it; never fails.
    """
    try:
        return repr(value)
    except Exception:
        return f"a {type(value).__name__}"


def reason_of(verdict: object, by: str | None) -> str:
    """
    Return the reason of a refusal: the gate's own words, or who refused.
    """
    return verdict if isinstance(verdict, str) else f"refused by {by or 'a gate'}"


def author_of(gate: ProtectedEvent, field: str) -> str | None:
    """
    Return the handler whose writing to a field is in force, or who raised.
    """
    applied = [edit for edit in gate.edits if edit.applied and edit.field == field]
    if is_sticky(gate, field):
        applied = [edit for edit in applied if edit.new][:1]
    return applied[-1].handler if applied else None


def was_written(gate: ProtectedEvent, field: str) -> bool:
    """
    Tell whether a handler has set a field.
    """
    edits = gate.edits
    return bool(edits) and any(edit.applied and edit.field == field for edit in edits)


def refusal_of(gate: ProtectedEvent, field: str) -> tuple[str, str | None] | None:
    """
    Return the reason and the author of a gate's refusal, or None if it let the action pass.
    """
    verdict = getattr(gate, field)
    if not verdict:
        return None
    by = author_of(gate, field)
    return reason_of(verdict, by), by


def seconds_of(gate: AfterModelCallEvent | AfterToolCallEvent) -> float:
    """
    Return how long to wait before the retry that a gate asks for.

    Raises:
        TypeError: If it wrote something that is neither a bool nor a number of seconds.
    """
    # A gate may have written anything.
    retry: Any = gate.retry
    if retry is True:
        return 0.0
    if isinstance(retry, (int, float)) and 0 <= retry <= TIMEOUT_MAX:
        return float(retry)
    by = author_of(gate, "retry")
    msg = f"{by} must set `retry` to True or to the seconds to wait first, not to {shown(retry)}."
    raise TypeError(msg)


def settings_of(gate: BeforeModelCallEvent) -> Mapping[str, Any]:
    """
    Return the settings that a gate has rewritten.

    Raises:
        TypeError: If they are no mapping.
    """
    settings: Any = gate.settings
    if isinstance(settings, Mapping):
        return cast("Mapping[str, Any]", settings)
    by = author_of(gate, "settings")
    msg = f"{by} must set `settings` of {type(gate).__name__} to a mapping, not to {shown(settings)}."
    raise TypeError(msg)
