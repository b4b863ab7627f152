"""
What `configure` sets, and who is told when it changes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Literal, TypeAlias, cast

Redact: TypeAlias = Callable[[tuple[str, ...], Any], Any]
Output: TypeAlias = Literal["stderr", "json", "stdlib", "structlog", "off"]

OUTPUTS: Final = ("stderr", "json", "stdlib", "structlog", "off")
LEVELS: Final = ("debug", "info", "warning", "error")


class Unset:
    """
    The type of a setting that a call of `configure` leaves alone.
    """

    def __repr__(self) -> str:
        return "<unchanged>"


UNSET: Final = Unset()


class Settings:
    """
    The current settings of the process; read on the spot by whoever needs one.
    """

    __slots__ = (
        "level",
        "lock_timeout",
        "log",
        "log_data",
        "logger",
        "max_pending",
        "redact",
        "slow_handler",
        "stateful_capacity",
        "strict",
    )

    def __init__(self) -> None:
        self.strict = False
        self.slow_handler: float | None = None
        self.lock_timeout = 10.0
        self.stateful_capacity = 10_000
        self.max_pending = 100_000
        self.log: Output | Unset = UNSET
        self.logger: Any = None
        self.level = "info"
        self.log_data = True
        self.redact: Redact | None = None


settings = Settings()
_listeners: list[Callable[[frozenset[str]], None]] = []


def on_change(listener: Callable[[frozenset[str]], None]) -> None:
    """
    Call `listener` with the names of the settings that a `configure` call has set.
    """
    _listeners.append(listener)


def configure(
    *,
    strict: bool | Unset = UNSET,
    slow_handler: float | Unset | None = UNSET,
    lock_timeout: float | Unset = UNSET,
    stateful_capacity: int | Unset = UNSET,
    max_pending: int | Unset = UNSET,
    log: Output | Unset | None = UNSET,
    logger: Any = UNSET,
    level: str | Unset = UNSET,
    log_data: bool | Unset = UNSET,
    redact: Redact | Unset | None = UNSET,
) -> None:
    """
    Change settings of the bus, for the whole process; what is not given stays as it is.

    All arguments are checked before the first is set. Callable from any thread.

    Args:
        strict: Raise what observers raise, after all handlers of the event ran, instead of reporting it.
        slow_handler: Seconds after which a handler is reported as slow; None (the default) measures nothing.
        lock_timeout: Seconds that a handler of a stateful hook waits for its run's lock (10).
        stateful_capacity: Runs kept per stateful hook (10,000); a hook's own attribute of that name wins.
        max_pending: Async deliveries that may wait at one time (100,000).
        log: Where lines go: "stderr", "json", "stdlib", "structlog"; None or "off" for nowhere. Without it
            the environment variable EVENTBUS_LOG decides, else "stderr".
        logger: A stdlib or structlog logger to use; it implies `log` unless that is given too. None takes it
            back.
        level: The lowest level that is logged: "debug", "info", "warning", "error".
        log_data: Whether the data of tool results is logged.
        redact: `fn(path, value) -> value`, called for every value before it leaves the process; None (the
            default) is `default_redact`.

    Raises:
        TypeError: If an argument has the wrong type.
        ValueError: If an argument has the right type and no meaning.
    """
    changes: dict[str, Any] = {}
    for name, flag in (("strict", strict), ("log_data", log_data)):
        if not isinstance(flag, Unset):
            if not isinstance(cast("object", flag), bool):
                msg = f"`{name}` must be True or False, not {flag!r}."
                raise TypeError(msg)
            changes[name] = flag
    if slow_handler is None:
        changes["slow_handler"] = None
    elif not isinstance(slow_handler, Unset):
        changes["slow_handler"] = _seconds("slow_handler", slow_handler)
    if not isinstance(lock_timeout, Unset):
        changes["lock_timeout"] = _seconds("lock_timeout", lock_timeout)
    for name, count in (("stateful_capacity", stateful_capacity), ("max_pending", max_pending)):
        if not isinstance(count, Unset):
            if not isinstance(cast("object", count), int) or isinstance(count, bool):
                msg = f"`{name}` must be an int, not {count!r}."
                raise TypeError(msg)
            if count < 1:
                msg = f"`{name}` must be at least 1, not {count!r}."
                raise ValueError(msg)
            changes[name] = count
    if not isinstance(log, Unset):
        output = "off" if log is None else log
        if output not in OUTPUTS:
            msg = f"`log` must be one of {', '.join(OUTPUTS)} or None, not {log!r}."
            raise ValueError(msg)
        changes["log"] = output
    if not isinstance(logger, Unset):
        if logger is not None and not callable(getattr(logger, "error", None)):
            msg = f"`logger` must be a stdlib or structlog logger, not {logger!r}."
            raise TypeError(msg)
        changes["logger"] = logger
        if logger is not None:
            # Its type says where lines go, until it is taken back.
            changes.setdefault("log", UNSET)
    if not isinstance(level, Unset):
        if level not in LEVELS:
            msg = f"`level` must be one of {', '.join(LEVELS)}, not {level!r}."
            raise ValueError(msg)
        changes["level"] = level
    if not isinstance(redact, Unset):
        if redact is not None and not callable(redact):
            msg = f"`redact` must be a function of (path, value) or None, not {redact!r}."
            raise TypeError(msg)
        changes["redact"] = redact
    for name, value in changes.items():
        setattr(settings, name, value)
    names = frozenset(changes)
    for listener in _listeners:
        listener(names)


def _seconds(name: str, value: float) -> float:
    if not isinstance(cast("object", value), (int, float)) or isinstance(value, bool):
        msg = f"`{name}` must be a number of seconds, not {value!r}."
        raise TypeError(msg)
    if not value > 0:
        msg = f"`{name}` must be more than 0 seconds, not {value!r}."
        raise ValueError(msg)
    return float(value)
