"""
Correlation: the id that the events of one run share, and the scope that carries it.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import inspect
import os
from collections.abc import Callable, Coroutine, Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, ParamSpec, TypeVar, cast

if TYPE_CHECKING:
    from types import TracebackType

P = ParamSpec("P")
R = TypeVar("R")

correlation_id_var: contextvars.ContextVar[str | None] = contextvars.ContextVar(
    "eventbus_correlation_id", default=None
)
scope_var: contextvars.ContextVar[correlation | None] = contextvars.ContextVar("eventbus_scope", default=None)
_replaying: contextvars.ContextVar[bool] = contextvars.ContextVar("eventbus_replaying", default=False)


SPARE_IDS: Final = 256
"""How many ids are made at once: asking the system costs more than all else that a run does for one."""

_spare_ids: Final[list[str]] = []

# A forked child must not give out what its parent will.
os.register_at_fork(after_in_child=_spare_ids.clear)


def new_correlation_id() -> str:
    """
    Return a new id: 32 random lowercase hex digits, valid as a W3C trace id.

    Returns:
        A str of 32 characters from `0-9a-f`. Source: W3C Trace Context, section `trace-id`. Callable from any
        thread; safe after a fork.
    """
    while True:
        try:
            return _spare_ids.pop()
        except IndexError:
            digits = os.urandom(16 * SPARE_IDS).hex()
            _spare_ids.extend([digits[start : start + 32] for start in range(0, len(digits), 32)])


def new_span_id() -> str:
    """
    Return 16 random lowercase hex digits, valid as a W3C parent id.
    """
    return new_correlation_id()[:16]


def current_correlation_id() -> str | None:
    """
    Return the id that an event emitted here and now would carry.

    Returns:
        The id of the innermost open `correlation` scope of this thread or task, or None outside of any.
    """
    return correlation_id_var.get()


def running_loop() -> asyncio.AbstractEventLoop | None:
    """
    Return the event loop that runs on this thread, or None.
    """
    # `get_running_loop` raises where there is none, which costs more than all the rest of a look.
    return asyncio._get_running_loop()


class correlation:  # noqa: N801 - a context manager reads as a state, as `contextlib.suppress` does
    """
    Set the correlation id of the events emitted inside, for this thread and the tasks it starts.

    Scopes nest, and leaving one restores what was before. Leaving a scope from another context (another task
    or thread) is allowed and changes nothing there. A scope object is for one use at a time.

    Args:
        cid: The id, or None for a new one.
        parent: The id of the run that caused this one; by default the enclosing id.

    Raises:
        TypeError: If `cid` or `parent` is neither a str nor None.
    """

    __slots__ = ("_left_behind", "_outer", "_parent", "adopted", "cid", "closed", "loop", "parent")

    def __init__(self, cid: str | None = None, parent: str | None = None) -> None:
        if cid is not None:
            _must_be_text("cid", cid)
        if parent is not None:
            _must_be_text("parent", parent)
        self.cid: str = new_correlation_id() if cid is None else cid
        self.parent = self._parent = parent
        self.loop: asyncio.AbstractEventLoop | None = None
        self.adopted = False
        self.closed = True
        # Closed while something else was current: nobody has restored what was before.
        self._left_behind = False
        self._outer: correlation | None = None

    def __enter__(self) -> str:
        if not self.closed:
            msg = f"The correlation scope {self.cid!r} is open already; make another for a nested one."
            raise RuntimeError(msg)
        outer = scope_var.get()
        if outer is not None:
            outer = _skip_left_behind(outer)
        self._outer = outer
        if self._parent is None:
            self.parent = None if outer is None else outer.cid
        self.loop = running_loop()
        self.closed = self._left_behind = False
        scope_var.set(self)
        correlation_id_var.set(self.cid)
        return self.cid

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.closed = True
        current = scope_var.get()
        if current is not self and _skip_left_behind(current) is not self:
            self._left_behind = True
            return
        outer = self._outer
        if outer is not None:
            outer = _skip_left_behind(outer)
        scope_var.set(outer)
        correlation_id_var.set(None if outer is None else outer.cid)


def _must_be_text(name: str, value: object) -> None:
    if not isinstance(value, str):
        msg = f"`{name}` must be a str or None, not {value!r}; pass str({name})."
        raise TypeError(msg)


def _skip_left_behind(scope: correlation | None) -> correlation | None:
    # Being closed is no reason: a task that outlives the scope it was started in still belongs to its run.
    while scope is not None and scope._left_behind:
        scope = scope._outer
    return scope


def scope_loop() -> asyncio.AbstractEventLoop | None:
    """
    Return the loop that the innermost scope was opened on, while that loop runs; otherwise None.
    """
    scope = scope_var.get()
    while scope is not None:
        if scope.loop is not None:
            return scope.loop if scope.loop.is_running() else None
        scope = scope._outer
    return None


def carry_context(fn: Callable[P, R]) -> Callable[P, R]:
    """
    Wrap a function so that a plain thread or an executor runs it with the caller's context.

    The context (correlation id included) is the one in which `carry_context` is called. Each call runs in a
    copy of it, so calls may overlap. An async function runs as a task of its own on the loop that awaits it.

    Args:
        fn: Any callable, sync or async.

    Returns:
        A callable with the same signature.

    Raises:
        TypeError: If it is a generator function.
    """
    if inspect.isgeneratorfunction(fn) or inspect.isasyncgenfunction(fn):
        msg = f"carry_context cannot carry {fn!r}: a generator's body runs in the context of who iterates it."
        raise TypeError(msg)
    context = contextvars.copy_context()

    if inspect.iscoroutinefunction(fn) or inspect.iscoroutinefunction(type(fn).__call__):

        @functools.wraps(fn)
        async def in_task(*args: P.args, **kwargs: P.kwargs) -> Any:
            coroutine = cast("Coroutine[Any, Any, Any]", fn(*args, **kwargs))
            return await asyncio.get_running_loop().create_task(coroutine, context=context.copy())

        return cast("Callable[P, R]", in_task)

    @functools.wraps(fn)
    def in_context(*args: P.args, **kwargs: P.kwargs) -> R:
        return context.copy().run(fn, *args, **kwargs)

    return in_context


def is_replaying() -> bool:
    """
    Tell whether recorded runs are being sent through the bus, here and now.

    A hook with effects outside (a mail, a refund) asks this and holds back.
    """
    return _replaying.get()


@contextmanager
def replaying() -> Generator[None]:
    """
    Mark what is emitted inside as recorded rather than real.
    """
    token = _replaying.set(True)
    try:
        yield
    finally:
        _replaying.reset(token)
