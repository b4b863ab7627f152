"""
Channels: the dotted names of event classes, stated or derived, and how a class is found by one.
"""

from __future__ import annotations

import types

import attrs
import pytest

import eventbus
from eventbus import Event, UnknownChannelError, catalog, find
from eventbus.testing import isolated


def define(name, module="shop.orders", **keywords):
    """Execute a class statement, as a module or a notebook cell would."""
    return types.new_class(name, (Event,), keywords, lambda namespace: namespace.update(__module__=module))


class TestDerived:
    """The channel of a class that states none."""

    @pytest.mark.parametrize(
        ("name", "channel"),
        [
            ("OrderPlaced", "order_placed"),
            ("OrderPlacedEvent", "order_placed"),
            ("HTTPRequestEvent", "http_request"),
            ("Order2PlacedEvent", "order2_placed"),
            ("EventLost", "event_lost"),
            ("_PrivateEvent", "_private"),
            ("Event", "event"),
            ("plain", "plain"),
        ],
    )
    def test_module_and_snake_case(self, name, channel):
        """It is the module's path and the name in snake case without a trailing `Event`."""
        assert f"shop.orders.{channel}" == define(name).channel

    def test_a_name_looked_up_finds_the_latest(self):
        """Derived names never fail: classes may share one, and the latest is found."""
        first, second = define("Placed"), define("PlacedEvent")
        assert first.channel == second.channel
        assert second is find("shop.orders.placed")

    def test_each_class_has_its_own_signal(self):
        """Sharing a derived name is not sharing listeners."""
        first, second = define("Placed"), define("PlacedEvent")
        seen = []
        first.subscribe(seen.append)
        second.emit()
        first.emit()
        assert [first] == [type(event) for event in seen]
        assert first.signal is not second.signal

    def test_a_subclass_derives_its_own(self):
        """A stated channel is not inherited."""
        stated = define("Placed", channel="shop.placed")

        class Special(stated):
            pass

        assert f"{__name__}.special" == Special.channel

    def test_those_of_the_catalog_start_with_eventbus(self):
        """Every event of the catalog has a channel below `eventbus`."""
        classes = [getattr(catalog, name) for name in catalog.__all__]
        assert classes
        assert all(cls.channel.startswith("eventbus.") for cls in classes)
        assert classes == [find(cls.channel) for cls in classes]


class TestStated:
    """The channel that a class statement gives."""

    def test_it_is_the_channel(self):
        """`channel=` in the class statement names the class."""
        cls = define("Placed", channel="shop.order.placed")
        assert "shop.order.placed" == cls.channel
        assert cls is find("shop.order.placed")

    @pytest.mark.parametrize("channel", ["", ".", "a.", ".a", "a..b", "a b", "a\n", 3, ("a",), "a-"])
    def test_it_must_be_a_dotted_name(self, channel):
        """Anything else is a TypeError that shows how one looks."""
        with pytest.raises(
            TypeError, match=r"^Placed states channel .*; a channel is a dotted name, like 'shop\.order'"
        ):
            define("Placed", channel=channel)

    def test_two_classes_cannot_state_one(self):
        """It is a TypeError that names both, and the first keeps the channel."""
        first = define("Placed", channel="shop.placed")
        with pytest.raises(TypeError) as caught:
            define("Other", module="shop.more", channel="shop.placed")
        assert (
            "shop.more.Other states channel 'shop.placed', which shop.orders.Placed has stated already; "
            "give one of them another name."
        ) == str(caught.value)
        assert first is find("shop.placed")

    def test_a_derived_name_in_between_changes_nothing(self):
        """A class whose derived name is a stated one does not free it for others."""
        define("Stated", channel="shop.orders.placed")
        derived = define("Placed")
        assert derived is find("shop.orders.placed")
        with pytest.raises(TypeError, match="has stated already"):
            define("Third", channel="shop.orders.placed")

    def test_a_stated_one_may_take_a_derived_name(self):
        """Only two that state it collide."""
        define("Placed")
        stated = define("Stated", channel="shop.orders.placed")
        assert stated is find("shop.orders.placed")

    def test_the_same_class_again_replaces_the_earlier(self):
        """A reload or a notebook cell run again defines the class anew, as often as it likes."""
        classes = [define("Placed", channel="shop.placed") for _ in range(3)]
        assert classes[-1] is find("shop.placed")
        assert ["shop.placed"] * 3 == [cls.channel for cls in classes]

    def test_a_decorated_class_again(self):
        """It also does with @attrs.frozen on top."""
        classes = [attrs.frozen(define("Placed", channel="shop.placed")) for _ in range(3)]
        assert classes[-1] is find("shop.placed")

    def test_what_an_isolated_scope_states_is_free_after_it(self):
        """And what was stated outside is taken inside."""
        define("Outer", channel="shop.outer")
        with isolated():
            define("Inner", channel="shop.inner")
            with pytest.raises(TypeError):
                define("Thief", channel="shop.outer")
        define("Other", channel="shop.inner")


class TestFind:
    """Looking a class up."""

    def test_unknown_channels_name_the_nearest(self):
        """The error helps with a typing mistake."""
        with pytest.raises(UnknownChannelError) as caught:
            find("eventbus.tool_call.complete")
        assert (
            "No event class has the channel 'eventbus.tool_call.complete'; "
            "did you mean 'eventbus.tool_call.completed'?"
        ) == str(caught.value)

    def test_unknown_channels_with_nothing_near(self):
        """Without a near one it only says what was asked."""
        with pytest.raises(UnknownChannelError, match=r"^No event class has the channel 'zzzz'\.$"):
            find("zzzz")

    def test_the_error_is_a_lookup_error(self):
        """Code that knows nothing of eventbus can catch it."""
        assert issubclass(UnknownChannelError, LookupError)
        assert issubclass(UnknownChannelError, eventbus.EventbusError)
