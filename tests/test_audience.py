"""
Whether anybody hears one of some event classes.
"""

from __future__ import annotations

import pytest

from eventbus import Event, Hook, ProtectedEvent, on
from eventbus._audience import Audience
from eventbus.testing import isolated


class Asked(ProtectedEvent):
    """A gate."""


class Told(Event):
    """Something to hear."""


@pytest.fixture
def audience():
    """Return the audience of two event classes, which was empty a moment ago."""
    audience = Audience(Asked, Told)
    assert audience.is_empty()
    return audience


def hear(event):
    """Hear an event."""


@pytest.mark.parametrize("event_class", [Asked, Told, Event, ProtectedEvent])
def test_whoever_comes_and_goes(audience, event_class):
    """A subscription to one of the classes, or to a base, counts from its beginning to its end."""
    with event_class.subscribe(hear):
        assert not audience.is_empty()
        assert not audience.is_empty()
    assert audience.is_empty()
    assert audience.is_empty()


def test_a_subscription_to_one_run(audience):
    """Who hears a single run is somebody, too."""
    with Told.subscribe(hear, correlation_id="run-1"):
        assert not audience.is_empty()
        with Told.subscribe(hear, correlation_id="run-2"):
            assert not audience.is_empty()
    assert audience.is_empty()


def test_a_function_that_blinker_connects(audience):
    """Nor does it matter how he came."""
    Told.signal.connect(hear)
    assert not audience.is_empty()
    with Told.signal.muted():
        assert audience.is_empty()
    assert not audience.is_empty()


def test_a_hook(audience):
    """A hook counts while it is registered."""

    class Hears(Hook):
        @on(Asked)
        def judge(self, event: Asked) -> None:
            pass

    assert not audience.is_empty()
    Hears.unregister()
    assert audience.is_empty()


def test_an_isolated_bus(audience):
    """What is registered in an isolated bus counts there, and what is outside counts outside."""
    with isolated():
        Told.subscribe(hear)
        assert not audience.is_empty()
    assert audience.is_empty()
    Told.subscribe(hear)
    with isolated():
        assert audience.is_empty()
    assert not audience.is_empty()


def test_who_comes_while_it_is_looked(audience):
    """Somebody who comes between two looks of one question is found by the next question."""

    def one_after_the_other():
        yield Asked
        Asked.subscribe(hear)
        yield Told

    with Told.subscribe(hear):
        pass
    audience._classes = one_after_the_other()
    assert audience.is_empty()
    audience._classes = (Asked, Told)
    assert not audience.is_empty()
