"""
Subscribing a function to an event class, without a hook.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
import sys
import weakref
from collections.abc import Callable, Hashable
from types import FunctionType, MethodType
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar, cast

from . import _registry
from ._registry import EventSignal, Receiver, lock, name_of, next_order, signal_of, target_of, weak_call

if TYPE_CHECKING:
    from types import TracebackType

P = ParamSpec("P")
R = TypeVar("R")

# Python 3.12 and newer; before, nothing but a function itself counts as one.
_mark_as_coroutine_function: Callable[[Any], object] = getattr(inspect, "markcoroutinefunction", id)


class Subscription(Generic[P, R]):
    """
    A function's subscription: cancel it, use it as a context manager, or call it as the function it is of.
    """

    def __init__(self, fn: Callable[P, R], signal: EventSignal, receiver: Receiver, *, weak: bool) -> None:
        if not weak:
            # Not what `fn` has in its dict: that may take the names of ours. A look-up may raise anything.
            with contextlib.suppress(Exception):
                functools.update_wrapper(self, fn, updated=())
        self._signal = signal
        self._receiver = receiver
        # Not to be what keeps a weakly subscribed function alive.
        self._function: Callable[[], Callable[P, R] | None] = _weak_reference(fn) if weak else lambda: fn
        if inspect.iscoroutinefunction(fn):
            _mark_as_coroutine_function(self)

    def __getattr__(self, name: str) -> Any:
        # The attributes of the function, as far as they are not ours.
        if name.startswith("__") or "_function" not in self.__dict__:
            raise AttributeError(name)
        return getattr(self._live(), name)

    def __reduce__(self) -> str:
        # As a function: by name.
        return self._receiver.name

    def __repr__(self) -> str:
        state = "active" if self.active else "cancelled"
        return f"<subscription of {self._receiver.name} to {self._signal.owner.__qualname__}, {state}>"

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """
        Call the function itself, past the bus.

        Raises:
            ReferenceError: If it was subscribed weakly and is gone.
        """
        return self._live()(*args, **kwargs)

    def _live(self) -> Callable[P, R]:
        fn = self._function()
        if fn is None:
            msg = f"{self._receiver.name} was subscribed with weak=True and is gone."
            raise ReferenceError(msg)
        return fn

    @property
    def _target(self) -> Hashable:
        return self._receiver.target

    @property
    def active(self) -> bool:
        """
        Whether the function still receives events through this subscription.
        """
        signal = self._signal
        return _registry.state.signals.get(signal.owner) is signal and id(self._receiver) in signal.receivers

    def cancel(self) -> None:
        """
        End the subscription; doing so again changes nothing. Callable from any thread, and from a handler.

        An event that is being delivered at this moment may still reach the function.
        """
        self._signal.disconnect(self._receiver)

    def __enter__(self) -> Subscription[P, R]:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.cancel()


def _weak_reference(fn: Callable[..., Any]) -> Callable[[], Any]:
    return weakref.WeakMethod(fn) if isinstance(fn, MethodType) else weakref.ref(fn)


class Origin:
    """
    Where a function was defined, to tell a function defined again from another of the same name.
    """

    __slots__ = ("bare", "code", "defaults", "key", "module_spec", "namespace", "receivers")

    def __init__(self, fn: FunctionType) -> None:
        self.key = (fn.__module__, fn.__qualname__)
        # Beneath decorators, whose code is the same for all that they wrap.
        inner = inspect.unwrap(fn)
        self.bare = inner is fn and fn.__closure__ is None
        # Compared by identity: code compiled again from the same text is equal, and another.
        self.code = inner.__code__ if isinstance(inner, FunctionType) else fn.__code__
        self.defaults = (*(fn.__defaults__ or ()), *(fn.__kwdefaults__ or {}).values())
        self.namespace = fn.__globals__
        self.receivers: set[Receiver] = set()
        # A reload gives the module another spec object.
        self.module_spec = getattr(sys.modules.get(fn.__module__), "__spec__", None)

    @property
    def exact(self) -> Hashable:
        """
        What tells this origin from others of the same key.
        """
        return (id(self.code), *map(id, self.defaults))

    def is_defined_again_by(self, later: Origin) -> bool:
        """
        Tell whether `later` is this function, defined again by a reload or a notebook cell run twice.

        Two functions of one name in one file are two functions, unless the file was executed again; so are
        those that one statement makes in a loop, which share its code and differ in their defaults, or in
        what a decorator was given.
        """
        if self.namespace is not later.namespace:
            return False
        if self.code is later.code:
            return self.bare and later.bare and self.exact == later.exact
        return (
            self.code.co_filename != later.code.co_filename
            or self.code.co_firstlineno == later.code.co_firstlineno
            or self.module_spec is not later.module_spec
        )

    def forget(self, signal: EventSignal, receiver: Receiver) -> None:
        """
        Take out a receiver that is connected no more.
        """
        self.receivers.discard(receiver)
        ours = signal.origins.get(self.key, {})
        if not self.receivers and ours.get(self.exact) is self:
            del ours[self.exact]
            if not ours:
                del signal.origins[self.key]


def origin_of(fn: object) -> Origin | None:
    """
    Return where a function was defined; None if its name does not identify it.
    """
    if not isinstance(fn, FunctionType) or "<" in fn.__qualname__:
        return None
    return Origin(fn)


def check_handler(fn: Any, what: str, *, arguments: int) -> int:
    """
    Return how many positional arguments a handler is called with: `arguments`, or fewer if it takes fewer.

    Raises:
        TypeError: If it is not callable, is a generator, or needs more arguments.
    """
    if not callable(fn):
        msg = f"{what} must be callable, not {fn!r}."
        raise TypeError(msg)
    if inspect.isgeneratorfunction(fn) or inspect.isasyncgenfunction(fn):
        msg = f"{what} is a generator function, whose body would never run; make it a plain or an async one."
        raise TypeError(msg)
    if inspect.iscoroutinefunction(fn) or inspect.iscoroutinefunction(type(fn).__call__):
        # The scheduler needs it at exit. It registers itself with fork, and must not while another thread
        # forks: where handlers are defined that is less likely than at the first event.
        importlib.import_module("concurrent.futures.thread")
    try:
        parameters = inspect.signature(fn).parameters.values()
    except (TypeError, ValueError):
        # Some callables of extension modules do not tell.
        return arguments
    kinds = inspect.Parameter
    positional = [p for p in parameters if p.kind in (kinds.POSITIONAL_ONLY, kinds.POSITIONAL_OR_KEYWORD)]
    variadic = any(p.kind is kinds.VAR_POSITIONAL for p in parameters)
    required = [p.name for p in positional if p.default is kinds.empty][arguments:]
    required += [p.name for p in parameters if p.kind is kinds.KEYWORD_ONLY and p.default is kinds.empty]
    if required:
        msg = f"{what} needs more arguments than the event: {', '.join(required)}; give them defaults."
        raise TypeError(msg)
    return arguments if variadic else min(arguments, len(positional))


def check_when(when: Any, what: str) -> None:
    """
    Raise a TypeError unless `when` can be a predicate.
    """
    if when is None:
        return
    if not callable(when):
        msg = f"`when` of {what} must be a function of the event, not {when!r}."
        raise TypeError(msg)
    if inspect.iscoroutinefunction(when) or inspect.iscoroutinefunction(type(when).__call__):
        msg = (
            f"`when` of {what} is an async function, whose result would always be true; make it a plain one."
        )
        raise TypeError(msg)


def subscribe(
    cls: type,
    fn: Any = None,
    *,
    priority: int,
    when: Callable[[Any], object] | None,
    correlation_id: str | None,
    weak: bool,
) -> Any:
    """
    Subscribe `fn`, or return a decorator; see `Event.subscribe`.
    """
    if fn is None:
        if weak:
            msg = (
                f"{cls.__qualname__}.subscribe(weak=True) as a decorator would leave nothing that holds the "
                "function; subscribe it by name: subscribe(fn, weak=True)."
            )
            raise TypeError(msg)
        return functools.partial(
            subscribe, cls, priority=priority, when=when, correlation_id=correlation_id, weak=weak
        )
    if isinstance(fn, Subscription):
        fn = cast("Subscription[..., Any]", fn)._live()
    name = name_of(fn)
    if check_handler(fn, f"{cls.__qualname__}.subscribe: {name}", arguments=1) != 1:
        msg = f"{cls.__qualname__}.subscribe: {name} must take the event."
        raise TypeError(msg)
    check_when(when, name)
    if not isinstance(cast("object", priority), int):
        msg = f"{cls.__qualname__}.subscribe: `priority` must be an int, not {priority!r}."
        raise TypeError(msg)
    if correlation_id is not None and not isinstance(cast("object", correlation_id), str):
        msg = (
            f"{cls.__qualname__}.subscribe: `correlation_id` must be a str or None, not {correlation_id!r}; "
            "pass str(correlation_id)."
        )
        raise TypeError(msg)
    signal = signal_of(cls)
    receiver = Receiver(
        fn,
        name=name,
        target=target_of(fn),
        order=(next_order(), 0),
        priority=priority,
        when=when,
        correlation_id=correlation_id,
    )
    if weak:
        receiver.call = weak_call(fn, lambda: signal.disconnect(receiver))
    origin = origin_of(fn) if correlation_id is None else None
    if origin is not None:
        _replace_earlier(signal, origin, receiver)
    # Without the lock: blinker tells whoever listens for it.
    signal.connect(receiver, weak=False)
    return Subscription(fn, signal, receiver, weak=weak)


def _replace_earlier(signal: EventSignal, origin: Origin, receiver: Receiver) -> None:
    with lock:
        ours = signal.origins.setdefault(origin.key, {})
        replaced = [
            old
            for earlier in ours.values()
            if earlier.is_defined_again_by(origin)
            for old in earlier.receivers
            if old.target != receiver.target
        ]
        receiver.origin = ours.setdefault(origin.exact, origin)
        receiver.origin.receivers.add(receiver)
    for old in replaced:
        receiver.order = min(receiver.order, old.order)
        signal.disconnect(old)
