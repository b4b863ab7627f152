"""
The peers: the same event, sent to the same number of equal handlers.

Each peer is used as its documentation has it; blinker in the form that is fastest here. One that is not
installed is left out, and the reason is printed.
"""

from __future__ import annotations

import asyncio
import importlib
import importlib.metadata
import logging
import types
import warnings
from collections.abc import Callable
from typing import Any, Final

import attrs

from eventbus import Event

from .measuring import AsyncTimed, Contender, Effort, Timed


class Placed(Event):
    """
    The event as ours: frozen, with an id and a time.
    """

    order: str
    items: int
    total: float


@attrs.frozen
class Plain:
    """
    The event as the peers': an object with the same three fields, frozen as well.
    """

    order: str
    items: int
    total: float


LACKS: Final = {
    "blinker": "no order, no isolation (the first exception ends the delivery), no async from `send`",
    "pyee": "no isolation; order of connecting only; async handlers need a class and a loop of their own",
    "psygnal": "no isolation; order of connecting only (or a priority); typed by position; no async",
    "pluggy": "no isolation; order reversed, `tryfirst` and `trylast`; no async; collects results",
    "django": "isolates (`send_robust`); order of connecting; no priorities; collects results",
    "bubus": "isolates; async throughout: an event is a pydantic model, queued, awaited, kept in a history",
    "opentelemetry": "spans only: no handlers, and nothing to judge or change",
    "logging": "lines only, from a text that is ready",
}
"""What each does not do, of isolation, order and async; none of them freezes an event, or builds it."""


def function() -> Callable[[Any], None]:
    """
    Return a new function that takes the event and does nothing.
    """

    def handle(event: Any) -> None:
        pass

    return types.FunctionType(handle.__code__, {}, "handle")


def functions(number: int) -> list[Callable[[Any], None]]:
    """
    Return equal handlers.
    """
    return [function() for _ in range(number)]


def plain() -> Plain:
    """
    Build the event as peers send it.
    """
    return Plain("A1", 3, 9.5)


def send_blinker(number: int) -> Callable[[], object]:
    """Return blinker's `send`, the event as sender, which is its fastest form."""
    import blinker

    signal = blinker.Signal()
    for one in functions(number):
        signal.connect(one, weak=False)
    return lambda: signal.send(plain())


def send_pyee(number: int) -> Callable[[], object]:
    """Return pyee's `emit`."""
    import pyee

    emitter = pyee.EventEmitter()
    for one in functions(number):
        emitter.add_listener("placed", one)
    return lambda: emitter.emit("placed", plain())


def send_psygnal(number: int, *, fast: bool = False) -> Callable[[], object]:
    """Return psygnal's `emit`; or `emit_fast`, which "does not use any thread safety locks"."""
    import psygnal

    class Orders:
        placed = psygnal.Signal(object)

    orders = Orders()
    orders.kept = functions(number)  # psygnal holds them weakly
    for one in orders.kept:
        orders.placed.connect(one)
    if fast:
        return lambda: orders.placed.emit_fast(plain())
    return lambda: orders.placed.emit(plain())


def send_pluggy(number: int) -> Callable[[], object]:
    """Return a call of a pluggy hook."""
    import pluggy

    spec, impl = pluggy.HookspecMarker("shop"), pluggy.HookimplMarker("shop")

    class Specification:
        @spec
        def placed(self, event: Any) -> None: ...

    manager = pluggy.PluginManager("shop")
    manager.add_hookspecs(Specification)
    for _ in range(number):

        class Plugin:
            @impl
            def placed(self, event: Any) -> None:
                pass

        manager.register(Plugin())
    return lambda: manager.hook.placed(event=plain())


def send_django(number: int) -> Callable[[], object]:
    """Return Django's `send_robust`."""
    from django.dispatch import Signal

    signal = Signal()
    for _ in range(number):

        def handle(event: Any, **_: Any) -> None:
            pass

        signal.connect(handle, weak=False)
    return lambda: signal.send_robust(None, event=plain())


PEERS: Final[dict[str, Callable[[int], Callable[[], object]]]] = {
    "blinker": send_blinker,
    "pyee": send_pyee,
    "psygnal": send_psygnal,
    "pluggy": send_pluggy,
    "django": send_django,
}

MODULES: Final = {
    "blinker": "blinker",
    "pyee": "pyee",
    "psygnal": "psygnal",
    "pluggy": "pluggy",
    "django": "django.dispatch",
    "bubus": "bubus",
    "opentelemetry": "opentelemetry.sdk.trace",
}

DISTRIBUTIONS: Final = {
    "attrs": "attrs",
    "structlog": "structlog",
    "blinker": "blinker",
    "pyee": "pyee",
    "psygnal": "psygnal",
    "pluggy": "pluggy",
    "django": "Django",
    "bubus": "bubus",
    "opentelemetry": "opentelemetry-sdk",
    "orjson": "orjson",
}


def missing() -> dict[str, str]:
    """
    Return why peers cannot be imported, by name.
    """
    reasons: dict[str, str] = {}
    for name, module in MODULES.items():
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                importlib.import_module(module)
        except Exception as error:
            reasons[name] = f"{type(error).__name__}: {error}"
    return reasons


def versions() -> dict[str, str]:
    """
    Return the versions of what is installed.
    """
    found: dict[str, str] = {}
    for name, distribution in DISTRIBUTIONS.items():
        try:
            found[name] = importlib.metadata.version(distribution)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def peers(number: int, effort: Effort, without: dict[str, str]) -> list[Contender]:
    """
    Return the peers that are installed, each with so many handlers.
    """
    found = [
        Contender(name, Timed(make(number), effort)) for name, make in PEERS.items() if name not in without
    ]
    if "psygnal" not in without:
        # Seen, and not counted: it is for one thread only, and says so.
        fast = Timed(send_psygnal(number, fast=True), effort)
        found.append(Contender("psygnal's emit_fast", fast, counts=False))
    return found


class Bubus:
    """
    A bubus bus on a loop of its own, with so many handlers.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, number: int, effort: Effort) -> None:
        import bubus

        logging.getLogger("bubus").setLevel(logging.CRITICAL)

        class PlacedEvent(bubus.BaseEvent[None]):
            order: str
            items: int
            total: float

        async def make() -> Any:
            bus = bubus.EventBus()
            for count, one in enumerate(functions(number)):
                one.__name__ = one.__qualname__ = f"handle_{count}"
                bus.on(PlacedEvent, one)
            return bus

        self._loop = loop
        self._bus = loop.run_until_complete(make())

        async def send() -> None:
            await self._bus.dispatch(PlacedEvent(order="A1", items=3, total=9.5))

        self.contender = Contender("bubus", AsyncTimed(loop, send, effort))

    def close(self) -> None:
        """Stop the bus."""
        self._loop.run_until_complete(self._bus.stop(clear=True))
