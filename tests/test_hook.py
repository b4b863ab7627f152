"""
Hooks: what is live when, which handlers a class has, and which mistakes are told when the class is created.
"""

from __future__ import annotations

import abc
import dataclasses
import functools
import gc
import inspect
import logging
import textwrap
import threading
import types
import weakref

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from eventbus import (
    Event,
    Hook,
    Priority,
    ProtectedEvent,
    configure,
    hooks,
    on,
    stats,
    writable,
)
from eventbus.testing import capture, isolated


class Placed(Event):
    number: int = 0


class Shipped(Event):
    number: int = 0


class Express(Shipped):
    pass


class BeforeRefund(ProtectedEvent):
    cancel: bool | str = writable(default=False, sticky=True)


def live():
    """Return the names of the live hooks, in delivery order."""
    return [info.name for info in hooks() if info.state == "live"]


def states():
    """Return the state of each hook, by name."""
    return {info.name: info.state for info in hooks()}


def run(source, name="shop.hooks", **names):
    """Execute source as a module of the given name, and return its namespace."""
    namespace = {"__name__": name, "Hook": Hook, "on": on, "Placed": Placed, "Shipped": Shipped, **names}
    exec(compile(textwrap.dedent(source), "hooks.py", "exec"), namespace)
    return namespace


class TestDefining:
    """A class is live as soon as it is defined."""

    def test_a_class_is_live_at_once(self):
        """Nothing but the class statement wires a hook in."""
        seen = []

        class Audit(Hook):
            @on(Placed)
            def audit(self, event):
                seen.append(event.number)

        Placed.emit(number=7)
        assert [7] == seen
        assert ["Audit"] == live()

    def test_a_handler_may_take_nothing(self):
        """A handler without a parameter for the event is called without it."""
        seen = []

        class Audit(Hook):
            @on(Placed)
            def audit(self):
                seen.append(type(self).__name__)

        Placed.emit()
        assert ["Audit"] == seen

    def test_several_classes_share_a_handler(self):
        """A handler of several classes receives the event that fired, of its own class."""
        seen = []

        class Audit(Hook):
            @on(Placed, Shipped)
            def audit(self, event):
                seen.append(type(event))

        Placed.emit()
        Express.emit()
        assert [Placed, Express] == seen

    def test_stacked_decorators_add_up(self):
        """A handler under two decorators hears both events, and one event of both once."""
        seen = []

        class Audit(Hook):
            @on(Placed)
            @on(Shipped)
            @on(Express)
            def audit(self, event):
                seen.append(type(event))

        Placed.emit()
        Express.emit()
        assert [Placed, Express] == seen

    def test_handlers_run_in_declaration_order(self):
        """Several handlers of one event run as they stand in the class."""
        seen = []

        class Audit(Hook):
            @on(Placed)
            def zebra(self):
                seen.append("zebra")

            @on(Placed)
            def ant(self):
                seen.append("ant")

        Placed.emit()
        assert ["zebra", "ant"] == seen

    def test_a_predicate_chooses_the_events(self):
        """With `when` a handler is called only for events that it says yes to."""
        seen = []

        class Audit(Hook):
            @on(Placed, when=lambda e: e.number > 1)
            def audit(self, event):
                seen.append(event.number)

        for number in range(4):
            Placed.emit(number=number)
        assert [2, 3] == seen

    def test_a_handler_may_have_a_priority_of_its_own(self):
        """A handler's priority goes before that of its hook."""
        seen = []

        class Late(Hook):
            priority = Priority.BUSINESS

            @on(Placed, priority=400)
            def last(self):
                seen.append("last")

            @on(Placed)
            def middle(self):
                seen.append("middle")

            @on(Placed, priority=0)
            def first(self):
                seen.append("first")

        Placed.emit()
        assert ["first", "middle", "last"] == seen

    def test_grandchildren_are_live_too(self):
        """A subclass of a subclass of Hook is found as any."""
        seen = []

        class Base(Hook):
            abstract = True

        class Middle(Base):
            abstract = True

        class Leaf(Middle):
            @on(Placed)
            def audit(self):
                seen.append("leaf")

        Placed.emit()
        assert ["leaf"] == seen

    def test_class_keywords_reach_other_bases(self):
        """A hook may have a base whose class creation takes keywords."""

        class Tagged:
            def __init_subclass__(cls, tag=None, **kwargs):
                super().__init_subclass__(**kwargs)
                cls.tag = tag

        class Audit(Hook, Tagged, tag="a"):
            pass

        assert "a" == Audit.tag


class TestKindsOfHandlers:
    """Whatever Python binds as a method can handle events."""

    def test_methods_of_every_kind(self):
        """Static and class methods, partial methods, partials, callables, cached functions."""
        seen = []

        class Callable:
            def __call__(self, event):
                seen.append(("callable", event.number))

        class Audit(Hook):
            @on(Placed)
            @staticmethod
            def static(event):
                seen.append(("static", event.number))

            @staticmethod
            @on(Placed)
            def static_below():
                seen.append(("static_below", None))

            @on(Placed)
            @classmethod
            def of_class(cls, event):
                seen.append((cls.__name__, event.number))

            @classmethod
            @on(Placed)
            def of_class_below(cls):
                seen.append((cls.__name__, None))

            def both(self, label, event):
                seen.append((label, event.number))

            partial_method = on(Placed)(functools.partialmethod(both, "partial_method"))
            # As Python 3.13 asks for: a bare partial will be a method in a later one.
            partial = on(Placed)(
                staticmethod(functools.partial(lambda label, event: seen.append((label, event.number)), "p"))
            )
            called = on(Placed)(Callable())
            short = on(Placed)(lambda self, event: seen.append(("lambda", event.number)))

            @on(Placed)
            @functools.lru_cache
            def cached(self, event):
                seen.append(("cached", event.number))

            @on(Placed)
            @functools.singledispatchmethod
            def dispatched(self, event):
                seen.append(("dispatched", event.number))

            @on(Placed)
            def variadic(self, *args):
                seen.append(("variadic", args[0].number))

            @on(Placed)
            def with_default(self, event=None):
                seen.append(("default", event.number))

        Placed.emit(number=3)
        Audit.cached.cache_clear()
        expected = [
            ("static", 3),
            ("static_below", None),
            ("Audit", 3),
            ("Audit", None),
            ("partial_method", 3),
            ("p", 3),
            ("callable", 3),
            ("lambda", 3),
            ("cached", 3),
            ("dispatched", 3),
            ("variadic", 3),
            ("default", 3),
        ]
        assert expected == seen

    def test_a_decorated_handler_is_called_as_decorated(self):
        """A decorator that wraps the handler, above `@on` or below, is part of it."""
        seen = []

        def loud(fn):
            @functools.wraps(fn)
            def wrapper(self, event):
                seen.append("loud")
                return fn(self, event)

            return wrapper

        class Audit(Hook):
            @loud
            @on(Placed)
            def above(self, event):
                seen.append("above")

            @on(Placed)
            @loud
            def below(self, event):
                seen.append("below")

        Placed.emit()
        assert ["loud", "above", "loud", "below"] == seen

    def test_the_function_is_given_back(self):
        """What `@on` decorates stays the plain function that it was."""

        def audit(self, event):
            return 5

        assert audit is on(Placed)(audit)

    def test_what_takes_no_attributes_cannot_be_marked(self):
        """A callable that `@on` can leave nothing on is refused, with the way out."""
        with pytest.raises(TypeError, match=r"@on cannot mark .*print.*; wrap it in a function"):
            on(Placed)(print)


class TestMistakes:
    """Mistakes are a TypeError when the class is created, naming hook, handler and fix."""

    @pytest.mark.parametrize(
        ("decorator", "text"),
        [
            (
                on(int),
                "Bad.audit: @on names <class 'int'>, which is no event class; name subclasses of Event",
            ),
            (on("placed"), "Bad.audit: @on names 'placed', which is no event class"),
            (on(Placed, None), "Bad.audit: @on names None, which is no event class"),
            (on([Placed, Shipped]), r"Bad.audit: @on names \[.*\], which is no event class"),
            (on(), r"Bad.audit: @on\(\) names no event; name the event classes it handles"),
            (on, r"Bad.audit: write @on\(...\) with the event classes"),
            (on(Placed, when=5), "`when` of .*Bad.audit must be a function of the event, not 5"),
            (on(Placed, priority="first"), "Bad.audit: `priority` must be an int, not 'first'"),
        ],
    )
    def test_of_the_decorator(self, decorator, text):
        """What is no event class, no class at all, or `@on` without parentheses."""
        with pytest.raises(TypeError, match=text):

            class Bad(Hook):
                @decorator
                def audit(self, event):
                    pass

        assert "Bad" not in states()

    def test_an_async_predicate(self):
        """An async `when` would always be true."""

        async def when(event):
            return False

        with pytest.raises(
            TypeError, match=r"Bad.audit is an async function, whose result would always be true"
        ):

            class Bad(Hook):
                @on(Placed, when=when)
                def audit(self, event):
                    pass

    def _generator(self, event):
        yield event

    async def _async_generator(self, event):
        yield event

    def _needs_more(self, event, other):
        pass

    def _needs_keyword(self, event, *, other):
        pass

    def _no_self():
        pass

    @pytest.mark.parametrize(
        ("function", "text"),
        [
            (_generator, "Bad.audit is a generator function, whose body would never run; make it a plain"),
            (_async_generator, "Bad.audit is a generator function"),
            (_needs_more, "Bad.audit needs more arguments than the event: other; give them defaults"),
            (_needs_keyword, "Bad.audit needs more arguments than the event: other"),
            (_no_self, "Bad.audit takes no `self`; give it one, or make it a staticmethod"),
            (staticmethod(_needs_more), "Bad.audit needs more arguments than the event: event, other"),
            (functools.partialmethod(_needs_more), "Bad.audit needs more arguments"),
        ],
    )
    def test_of_the_handler(self, function, text):
        """A generator, a handler that needs more than the event, or one that takes no instance."""
        with pytest.raises(TypeError, match=text):

            class Bad(Hook):
                audit = on(Placed)(function)

        assert "Bad" not in states()

    def test_an_override_that_is_no_handler(self):
        """What a subclass puts in a handler's place must be able to handle."""

        class Base(Hook):
            @on(Placed)
            def audit(self, event):
                pass

        with pytest.raises(TypeError, match=r"Bad.audit must be callable, not 5"):

            class Bad(Base):
                audit = 5

        assert ["Base"] == live()

    @pytest.mark.parametrize("name", ["__init__", "__new__"])
    def test_a_constructor_that_needs_arguments(self, name):
        """The bus makes instances without arguments."""

        def constructor(self, client, *args, retries=3, **kwargs):
            pass

        with pytest.raises(TypeError, match=rf"Bad.{name} needs client, but the bus makes instances without"):
            type("Bad", (Hook,), {name: constructor})
        assert "Bad" not in states()

    def test_a_constructor_with_defaults_is_fine(self):
        """Arguments with defaults, and variadic ones, are not needed."""

        class Good(Hook):
            def __new__(cls, *args):
                return super().__new__(cls)

            def __init__(self, retries=3, *args, limit=5, **kwargs):
                self.retries = retries

        assert ["Good"] == live()

    def test_an_abstract_class_may_need_arguments(self):
        """No instance is made of an abstract class, so its constructor is its own matter."""

        class Base(Hook):
            abstract = True

            def __init__(self, client):
                self.client = client

        assert {"Base": "abstract"} == states()

    def test_a_constructor_that_does_not_tell(self):
        """A constructor of an extension module without a signature is taken as it is."""

        class Untold:
            @property
            def __signature__(self):
                raise ValueError("no signature found")

            def __call__(self, *args):
                return None

        class Opaque(Hook):
            __init__ = Untold()

        with pytest.raises(ValueError, match="no signature"):
            inspect.signature(Opaque.__init__)
        assert ["Opaque"] == live()

    @pytest.mark.parametrize(
        ("name", "value", "what"),
        [
            ("stateful", 1, "True or False"),
            ("shared", None, "True or False"),
            ("abstract", "yes", "True or False"),
            ("replaces", [], "True or False"),
            ("shadow", 0, "True or False"),
            ("priority", "high", "an int"),
            ("stateful_capacity", 0, "an int of at least 1, or None"),
            ("stateful_capacity", True, "an int of at least 1, or None"),
            ("stateful_capacity", 1.5, "an int of at least 1, or None"),
            ("lock_timeout", 0, "more than 0 seconds, or None"),
            ("lock_timeout", True, "more than 0 seconds, or None"),
            ("lock_timeout", "1", "more than 0 seconds, or None"),
            ("lock_timeout", float("nan"), "more than 0 seconds, or None"),
        ],
    )
    def test_a_setting_without_meaning(self, name, value, what):
        """A setting has to be of its type and to mean something."""
        with pytest.raises(
            TypeError, match=rf"Bad\.{name} must be {what}, not .*settings are class attributes"
        ):
            type("Bad", (Hook,), {name: value})
        assert "Bad" not in states()

    def test_a_setting_that_attrs_made_a_field(self):
        """An annotated setting in an attrs class is a field, and no setting any more."""
        with pytest.raises(TypeError, match=r"Bad\.stateful must be True or False, not <member"):

            @attrs.define
            class Bad(Hook):
                stateful: bool = True

        assert {} == states()

    def test_stateful_and_shared_exclude_each_other(self):
        """An instance lives for a run, or for the process."""
        with pytest.raises(TypeError, match=r"Bad is both stateful .* and shared .*; choose one"):

            class Bad(Hook):
                stateful = shared = True


class TestLifeOfAnInstance:
    """How long an instance lives."""

    def test_by_default_one_per_event(self):
        """Each event has an instance of its own, which all handlers of the hook share."""
        seen = []

        class Audit(Hook):
            def __init__(self):
                self.steps = []

            @on(Placed, priority=1)
            def first(self):
                self.steps.append("first")

            @on(Placed, priority=900)
            def second(self):
                self.steps.append("second")
                seen.append(self.steps)

        Placed.subscribe(lambda e: None)
        Placed.emit()
        Placed.emit()
        assert [["first", "second"]] * 2 == seen

    @pytest.mark.parametrize("wanted", [{"a"}, {"b"}, {"a", "b"}, {"b", "c"}, {"a", "c"}, set("abc")])
    def test_a_predicate_leaves_nothing_on_the_event(self, wanted):
        """Whichever handlers a predicate lets through, an event sent again gets a fresh instance."""
        seen = []

        class Audit(Hook):
            def __init__(self):
                self.steps = ""

            @on(Placed, when=lambda e: "a" in wanted)
            def a(self):
                self.steps += "a"
                seen.append(self.steps)

            @on(Placed, when=lambda e: "b" in wanted)
            def b(self):
                self.steps += "b"
                seen.append(self.steps)

            @on(Placed, when=lambda e: "c" in wanted)
            def c(self):
                self.steps += "c"
                seen.append(self.steps)

        event = Placed()
        event.publish()
        once = list(seen)
        assert "".join(sorted(wanted)) == once[-1]
        event.publish()
        assert once * 2 == seen

    def test_the_instance_of_an_event_is_let_go(self):
        """An event that is kept does not keep the instances that handled it."""
        instances = []

        class Audit(Hook):
            @on(Placed)
            def first(self):
                instances.append(weakref.ref(self))

            @on(Placed)
            def second(self):
                pass

        with capture(Placed) as recorder:
            Placed.emit()
        gc.collect()
        assert [None] == [reference() for reference in instances]
        assert 1 == len(recorder)

    def test_a_failing_handler_does_not_cost_the_others_the_instance(self):
        """The instance is the same before and after a handler that raised."""
        seen = []

        class Audit(Hook):
            @on(Placed)
            def first(self):
                self.mark = "kept"

            @on(Placed)
            def fails(self):
                raise ValueError

            @on(Placed)
            def last(self):
                seen.append(self.mark)

        Placed.emit()
        assert ["kept"] == seen

    def test_an_init_that_raises_is_a_failure_of_the_handler(self):
        """An exception of the constructor is reported like one of the handler."""
        seen = []

        class Audit(Hook):
            def __init__(self):
                raise ValueError("no database")

            @on(Placed)
            def audit(self):
                seen.append("never")

        before = stats()["failures"]
        Placed.subscribe(lambda e: seen.append("other"))
        Placed.emit()
        assert ["other"] == seen
        assert 1 == stats()["failures"] - before


class TestAttrsAndDataclasses:
    """A class that a decorator builds again is wired once."""

    @pytest.mark.parametrize(
        "decorator",
        [
            attrs.define,
            attrs.define(slots=False),
            attrs.frozen,
            dataclasses.dataclass,
            dataclasses.dataclass(slots=True),
        ],
    )
    def test_one_hook_comes_of_it(self, decorator):
        """Slots or not, one entry is live, its fields work, and each event is handled once."""
        seen = []

        @decorator
        class Audit(Hook):
            limit: int = 3

            @on(Placed)
            def audit(self):
                seen.append((type(self), self.limit))

        Placed.emit()
        assert [(Audit, 3)] == seen
        assert [Audit] == [info.cls for info in hooks()]
        assert Audit in hooks()

    def test_a_rebuilt_class_keeps_its_place(self):
        """The class object that attrs made stands where the first one stood, in order, file and line."""
        seen = []

        @attrs.define
        class First(Hook):
            @on(Placed)
            def audit(self):
                seen.append("first")

        class Second(Hook):
            @on(Placed)
            def audit(self):
                seen.append("second")

        Placed.emit()
        assert ["first", "second"] == seen
        info = hooks().get("First")
        assert __file__ == info.file
        with open(__file__) as file:
            assert "class First(Hook):" in "".join(file.read().splitlines()[info.line - 1 : info.line + 1])

    @pytest.mark.parametrize(
        "decorator",
        [
            attrs.define,
            attrs.define(slots=False),
            attrs.define(slots=False, auto_attribs=True),
            dataclasses.dataclass(slots=True),
        ],
    )
    def test_a_required_field_is_told_and_leaves_nothing_live(self, decorator):
        """What the constructor needs is seen once there is one; that the class went live is undone."""
        with pytest.raises(TypeError, match=r"Audit.__init__ needs client"):

            @decorator
            class Audit(Hook):
                client: object

                @on(Placed)
                def audit(self):
                    pass

        assert {} == states()
        assert not Placed.has_receivers()

    def test_an_abstract_class_may_have_required_fields(self):
        """No instance is made of it."""

        @attrs.define(slots=False)
        class Base(Hook):
            abstract = True
            client: object

        assert {"Base": "abstract"} == states()

    @pytest.mark.parametrize("decorator", [attrs.define, attrs.define(slots=False)])
    @pytest.mark.parametrize("is_wanted", [True, False])
    def test_a_failed_definition_leaves_the_earlier_one_as_it_was(self, decorator, is_wanted):
        """The hook that was to be replaced is live again, or unregistered, as it was, and in its place."""
        seen = []
        first = run(
            """
            class Audit(Hook):
                @on(Placed)
                def audit(self):
                    seen.append("earlier")

            class Other(Hook):
                @on(Placed)
                def audit(self):
                    seen.append("other")
            """,
            seen=seen,
        )
        if not is_wanted:
            first["Audit"].unregister()
        with pytest.raises(TypeError, match=r"Audit.__init__ needs client"):
            run(
                """
                @decorator
                class Audit(Hook):
                    client: object

                    @on(Placed)
                    def audit(self):
                        seen.append("failed")
                """,
                seen=seen,
                decorator=decorator,
            )
        Placed.emit()
        assert [*["earlier"] * is_wanted, "other"] == seen
        assert first["Audit"] in hooks()
        assert {"Audit": "live" if is_wanted else "unregistered", "Other": "live"} == states()

    def test_the_first_pass_undone_revives_the_base(self):
        """A base that only the undone first pass had retired is live again."""

        class Base(Hook):
            @on(Placed)
            def audit(self):
                pass

        with pytest.raises(TypeError, match="needs client"):

            @attrs.define
            class Audit(Base):
                client: object

        assert ["Base"] == live()

    def test_a_failed_definition_leaves_the_count_of_subclasses(self):
        """A base that could not be defined again is live once after its subclass is gone, and not before."""
        seen = []
        namespace = run(
            """
            class Base(Hook):
                @on(Placed)
                def audit(self, event):
                    seen.append(type(self).__name__)

            class Leaf(Base):
                pass
            """,
            seen=seen,
        )
        with pytest.raises(TypeError, match="needs client"):
            run("@attrs.define\nclass Base(Hook):\n    client: object", attrs=attrs)
        again = run(
            """
            class Base(Hook):
                @on(Placed)
                def audit(self, event):
                    seen.append(type(self).__name__)
            """,
            seen=seen,
        )
        Placed.emit()
        assert ["Leaf"] == seen
        namespace["Leaf"].unregister()
        Placed.emit()
        assert ["Leaf", "Base"] == seen
        assert again["Base"] in hooks()

    def test_a_failed_definition_whose_earlier_one_is_gone_keeps_the_count_too(self):
        """Where only the registry knew what was replaced, nothing comes back, and subclasses stay counted."""
        source = "class Base(Hook):\n    pass\n"
        leaf = run(source + "class Leaf(Base):\n    pass")["Leaf"]
        run(source)

        def collect(cls, fields):
            gc.collect()
            return fields

        with pytest.raises(TypeError, match="needs client"):
            run(
                "@attrs.define(field_transformer=collect)\nclass Base(Hook):\n    client: object",
                attrs=attrs,
                collect=collect,
            )
        assert {"Base": "unregistered", "Leaf": "live"} == states()
        run(source)
        assert ["Leaf"] == live()
        leaf.unregister()
        assert ["Base"] == live()

    def test_a_failed_definition_that_was_replaced_meanwhile_leaves_that(self):
        """What took the name while attrs was at work is not undone with it."""
        source = "class Audit(Hook):\n    pass\n"
        defined = []

        def define(cls, fields):
            defined.append(run(source)["Audit"])
            return fields

        with pytest.raises(TypeError, match="needs client"):
            run(
                "@attrs.define(field_transformer=define, slots=False)\n"
                "class Audit(Hook):\n    client: object",
                attrs=attrs,
                define=define,
            )
        assert {"Audit": "live"} == states()
        assert defined == [info.cls for info in hooks()]

    def test_stateful_with_slots(self):
        """A stateful attrs hook keeps its fields for the run."""
        seen = []

        @attrs.define
        class Counting(Hook):
            count: int = 0

            @on(Placed)
            def add(self):
                self.count += 1
                seen.append(self.count)

        class Kept(Counting):
            stateful = True

        Placed.emit(correlation_id="a")
        Placed.emit(correlation_id="a")
        Kept.unregister()
        assert [1, 2] == seen

    def test_another_class_of_the_same_namespace_is_another(self):
        """A namespace copied by hand under another name makes a hook of its own."""
        seen = []

        class Audit(Hook):
            @on(Placed)
            def audit(self):
                seen.append(type(self).__name__)

        body = {k: v for k, v in vars(Audit).items() if k not in ("__dict__", "__weakref__")}
        type("Copy", (Hook,), body)
        Placed.emit()
        assert ["Audit", "Copy"] == seen


class TestListenersOfBlinker:
    """Whoever listens to blinker's news of receivers is user code, and runs without the registry's lock."""

    SOURCE = """
        class Audit(Hook):
            stateful = __stateful__
            @on(Placed, Shipped)
            def audit(self):
                seen.append(__tag__)
    """

    def test_they_may_wait_for_another_thread(self):
        """One that subscribes, emits and defines hooks goes on meanwhile, whether a hook comes or goes."""
        done = []

        def listener(signal, **_):
            def work():
                with Shipped.subscribe(lambda e: None):
                    Shipped.emit()

            thread = threading.Thread(target=work)
            thread.start()
            thread.join(5)
            done.append(not thread.is_alive())

        Placed.signal.receiver_connected.connect(listener)
        Placed.signal.receiver_disconnected.connect(listener)

        class Audit(Hook):
            @on(Placed)
            def audit(self):
                pass

        Audit.unregister()
        Audit.register()
        assert [True] * 3 == done

    def test_a_change_counts_in_one_step(self):
        """While a later definition takes the place of an earlier one, one of them counts at any moment."""
        seen, news = [], []

        def listener(signal, **_):
            news.append(signal)
            Placed.emit()

        run(self.SOURCE, seen=seen, __tag__="earlier", __stateful__=False)
        for signal in (Placed.signal, Shipped.signal):
            signal.receiver_connected.connect(listener)
            signal.receiver_disconnected.connect(listener)
        run(self.SOURCE, seen=seen, __tag__="later", __stateful__=False)
        assert [Placed.signal, Shipped.signal] * 2 == news
        assert ["earlier"] * 2 + ["later"] * 2 == seen

    def test_what_a_later_definition_adds_counts_with_the_rest(self):
        """A handler that is connected first waits for the others."""
        seen = []

        def listener(signal, **_):
            Placed.emit()

        run(self.SOURCE, seen=seen, __tag__="earlier", __stateful__=False)
        Placed.signal.receiver_connected.connect(listener)
        run(
            self.SOURCE.rstrip()
            + "\n            @on(Placed)\n            def more(self): seen.append('more')",
            seen=seen,
            __tag__="later",
            __stateful__=False,
        )
        assert ["earlier"] * 2 == seen
        Placed.emit()
        assert ["later", "more"] == seen[2:]

    def test_a_hook_that_a_listener_unregisters_stays_so(self):
        """What was decided last holds, though the connecting had begun before."""
        seen, defined = [], []

        def listener(signal, **_):
            defined.append(hooks().get("Audit"))
            defined[0].cls.unregister()

        Placed.signal.receiver_connected.connect(listener)
        run(self.SOURCE, seen=seen, __tag__="never", __stateful__=False)
        assert 1 == len(defined)
        Placed.emit()
        Shipped.emit()
        assert [] == seen
        assert ({}, {}) == (Placed.signal.receivers, Shipped.signal.receivers)

    def test_one_that_fails_ends_the_class_statement(self):
        """Its error is raised, and what was connected until then counts."""

        def listener(signal, **_):
            raise ValueError("no more receivers")

        Shipped.signal.receiver_connected.connect(listener)
        with pytest.raises(ValueError, match="no more"):
            run(self.SOURCE, seen=(seen := []), __tag__="connected", __stateful__=False)
        Placed.emit()
        assert ["connected"] == seen

    def test_a_finalizer_of_an_instance_runs_without_the_lock_too(self):
        """What is kept for runs is let go of after the change."""
        done = []

        class Audit(Hook):
            stateful = True

            @on(Placed)
            def audit(self):
                pass

            def __del__(self):
                thread = threading.Thread(target=lambda: type("Other", (Hook,), {}))
                thread.start()
                thread.join(5)
                done.append(not thread.is_alive())

        Placed.emit(correlation_id="a")
        Audit.unregister()
        assert [True] == done


class TestSpecialising:
    """A class is live while it has no live subclass."""

    def test_an_inherited_handler_runs_once_on_the_subclass(self):
        """Subclassing retires the base."""
        seen = []

        class Base(Hook):
            @on(Placed)
            def audit(self):
                seen.append(type(self).__name__)

        class Leaf(Base):
            pass

        Placed.emit()
        assert ["Leaf"] == seen
        assert {"Base": "retired", "Leaf": "live"} == states()

    def test_two_subclasses_are_both_live(self):
        """Siblings do not retire each other, and the base is live once both are gone."""

        class Base(Hook):
            @on(Placed)
            def audit(self):
                pass

        class Left(Base):
            pass

        class Right(Base):
            pass

        assert ["Left", "Right"] == live()
        Left.unregister()
        assert ["Right"] == live()
        Right.unregister()
        assert ["Base"] == live()

    def test_an_override_keeps_the_decorator(self):
        """A method that overrides a handler without `@on` handles the same events, in its place."""
        seen = []

        class Base(Hook):
            @on(Placed)
            def first(self):
                seen.append("base")

            @on(Placed)
            def second(self):
                seen.append("second")

        class Leaf(Base):
            def first(self, event):
                seen.append("leaf")

        Placed.emit()
        assert ["leaf", "second"] == seen

    def test_an_override_with_its_own_decorator_replaces_it(self):
        """A method that overrides a handler with another `@on` handles what that says, and nothing else."""
        seen = []

        class Base(Hook):
            @on(Placed)
            def audit(self):
                seen.append("base")

        class Leaf(Base):
            @on(Shipped)
            def audit(self, event):
                seen.append(type(event).__name__)

        Placed.emit()
        Shipped.emit()
        assert ["Shipped"] == seen
        assert (Shipped,) == hooks().get("Leaf").events

    def test_super_works_in_an_override(self):
        """An override may call what it overrides."""
        seen = []

        class Base(Hook):
            @on(Placed)
            def audit(self, event):
                seen.append("base")

        class Leaf(Base):
            def audit(self, event):
                super().audit(event)
                seen.append("leaf")

        Placed.emit()
        assert ["base", "leaf"] == seen

    def test_none_drops_a_handler(self):
        """A handler that is set to None is none, also below; a later definition brings the name back."""
        seen = []

        class Base(Hook):
            @on(Placed)
            def audit(self):
                seen.append("audit")

            @on(Placed)
            def other(self):
                seen.append("other")

        class Leaf(Base):
            audit = None

        class Lower(Leaf):
            pass

        Placed.emit()
        assert ["other"] == seen

        class Back(Lower):
            @on(Placed)
            def audit(self):
                seen.append("back")

        Placed.emit()
        assert ["other", "other", "back"] == seen

    def test_the_handlers_of_a_plain_mixin_count(self):
        """A class that is no hook may hold handlers for those that are."""
        seen = []

        class Mixin:
            @on(Placed)
            def mixed(self, event):
                seen.append((type(self).__name__, event.number))

        class Left(Mixin, Hook):
            pass

        class Right(Hook, Mixin):
            pass

        Placed.emit(number=1)
        assert [("Left", 1), ("Right", 1)] == seen

    def test_a_mixin_may_override_a_handler(self):
        """The method resolution order decides, as in Python."""
        seen = []

        class Base(Hook):
            @on(Placed)
            def audit(self):
                seen.append("base")

        class Quiet:
            def audit(self):
                seen.append("mixin")

        class Leaf(Quiet, Base):
            pass

        Placed.emit()
        assert ["mixin"] == seen

    def test_a_diamond_runs_each_handler_once(self):
        """A handler inherited along two ways is one handler."""
        seen = []

        class Top(Hook):
            @on(Placed)
            def top(self):
                seen.append("top")

        class Left(Top):
            @on(Placed)
            def left(self):
                seen.append("left")

        class Right(Top):
            @on(Placed)
            def right(self):
                seen.append("right")

        class Bottom(Left, Right):
            pass

        Placed.emit()
        assert ["left", "right", "top"] == sorted(seen)
        assert ["Bottom"] == live()

    def test_a_retirement_is_a_debug_notice_and_shows(self, caplog):
        """Who was retired by whom is a debug line; `hooks()` shows the state."""
        configure(logger=logging.getLogger("bus"), level="debug")
        from eventbus import EventLogger

        EventLogger.register()

        class Base(Hook):
            pass

        with caplog.at_level(logging.DEBUG, "bus"):

            class Leaf(Base):
                pass

        assert ["HOOK RETIRED Base by=Leaf"] == caplog.messages
        assert "retired" == hooks().get("Base").state

    def test_it_is_told_once(self, caplog):
        """Not again for a second subclass, nor when the first is defined again."""
        configure(logger=logging.getLogger("bus"), level="debug")
        from eventbus import EventLogger

        EventLogger.register()
        base = run("class Base(Hook): ...")["Base"]
        with caplog.at_level(logging.DEBUG, "bus"):
            for name in ("Leaf", "Other", "Leaf"):
                run(f"class {name}(Base): ...", Base=base)

        assert ["HOOK RETIRED Base by=Leaf"] == caplog.messages

    def test_a_retirement_is_told_outside_of_the_registry_s_lock(self):
        """Whoever hears of a retirement may wait for another thread that defines a hook."""
        done = []

        class Handler(logging.Handler):
            def emit(self, record):
                other = threading.Thread(target=lambda: type("Other", (Hook,), {}))
                other.start()
                other.join(5)
                done.append(not other.is_alive())

        logger = logging.getLogger("waiting")
        handler = Handler()
        logger.addHandler(handler)
        logger.setLevel("DEBUG")
        logger.propagate = False
        configure(logger=logger, level="debug")
        from eventbus import EventLogger

        EventLogger.register()

        class Base(Hook):
            pass

        class Leaf(Base):
            pass

        logger.removeHandler(handler)
        assert [True] == done


class TestGates:
    """No import switches a guard off by accident."""

    def _guard(self):
        class Guard(Hook):
            @on(BeforeRefund)
            def check(self, event):
                event.cancel = "guarded"

        return Guard

    def test_retiring_a_gate_takes_a_word(self):
        """A subclass of a hook with gates has to say `replaces = True`."""
        guard = self._guard()
        with pytest.raises(
            TypeError, match=r"Lax would retire .*Guard, whose gates guard runs; set `replaces = True`"
        ):

            class Lax(guard):
                check = None

        assert ["Guard"] == live()
        assert "guarded" == BeforeRefund.emit().cancel

    def test_with_the_word_it_is_retired(self):
        """A subclass that says so takes the guard's place."""
        guard = self._guard()

        class Stricter(guard):
            replaces = True

            def check(self, event):
                event.cancel = "stricter"

        assert "stricter" == BeforeRefund.emit().cancel
        assert ["Stricter"] == live()

    def test_the_word_is_not_inherited(self):
        """Each class that retires a gate says so itself."""
        guard = self._guard()

        class Stricter(guard):
            replaces = True

        with pytest.raises(TypeError, match=r"Lax would retire .*Stricter"):

            class Lax(Stricter):
                pass

    def test_an_abstract_class_retires_nobody(self):
        """A class that does not go live needs no word; what goes live below it does."""
        guard = self._guard()

        class Middle(guard):
            abstract = True

        assert ["Guard"] == live()
        with pytest.raises(TypeError, match=r"Leaf would retire .*Guard"):

            class Leaf(Middle):
                pass

    def test_a_base_with_observers_needs_no_word(self):
        """Only gates guard."""

        class Base(Hook):
            @on(Placed)
            def audit(self):
                pass

        class Leaf(Base):
            @on(BeforeRefund)
            def check(self):
                pass

        assert ["Leaf"] == live()

    def test_registering_by_hand_takes_the_word_too(self):
        """Whatever the order of registering and unregistering, no gate is retired without it."""
        guard = self._guard()
        guard.unregister()

        class Lax(guard):
            check = None

        with pytest.raises(
            TypeError, match=r"Guard has gates that would not guard: its live subclass .*Lax retires it"
        ):
            guard.register()
        Lax.unregister()
        guard.register()
        with pytest.raises(TypeError, match=r"Lax would retire .*Guard"):
            Lax.register()
        assert ["Guard"] == live()

    def test_a_base_that_gains_a_gate_is_not_silently_retired(self):
        """A reload that adds a gate below a live subclass says that the gate would not guard."""
        source = """
            class Base(Hook):
                @on({})
                def check(self, event):
                    pass
        """
        run(source.format("Placed"))
        base = run(source.format("Placed"))["Base"]
        run("class Leaf(Base):\n    pass", Base=base)
        with pytest.raises(TypeError, match="Base has gates that would not guard: its live subclass Leaf"):
            run(source.format("BeforeRefund"), BeforeRefund=BeforeRefund)
        run("class Leaf(Base):\n    replaces = True", Base=base)
        run("class Other(Hook):\n    pass")
        run(source.format("BeforeRefund"), BeforeRefund=BeforeRefund)
        assert ["Leaf", "Other"] == live()


class TestAbstract:
    """`abstract = True` keeps a class from going live, and no other."""

    def test_it_is_never_inherited(self):
        """A subclass of an abstract class is live."""
        seen = []

        class Base(Hook):
            abstract = True

            @on(Placed)
            def audit(self):
                seen.append(type(self).__name__)

        Placed.emit()
        assert {"Base": "abstract"} == states()

        class Leaf(Base):
            pass

        Placed.emit()
        assert ["Leaf"] == seen
        Leaf.unregister()
        assert {"Base": "abstract", "Leaf": "unregistered"} == states()

    def test_it_cannot_be_registered(self):
        """An abstract class, and Hook itself, cannot be made live by hand."""

        class Base(Hook):
            abstract = True

        for cls in (Base, Hook):
            with pytest.raises(
                TypeError, match=f"{cls.__qualname__} is abstract and cannot be live; subclass it"
            ):
                cls.register()
        Hook.unregister()

    def test_its_mistakes_are_told_as_well(self):
        """The handlers of an abstract class are checked when it is created."""
        with pytest.raises(TypeError, match=r"Base.audit: @on names 5"):

            class Base(Hook):
                abstract = True

                @on(5)
                def audit(self, event):
                    pass


class TestByHand:
    """`unregister` and `register`."""

    def test_unregistering_silences(self):
        """A class that was unregistered hears nothing; twice is once."""
        seen = []

        class Audit(Hook):
            @on(Placed)
            def audit(self):
                seen.append("heard")

        Audit.unregister()
        Audit.unregister()
        Placed.emit()
        assert [] == seen
        assert {"Audit": "unregistered"} == states()
        Audit.register()
        Audit.register()
        Placed.emit()
        assert ["heard"] == seen

    def test_a_class_comes_back_to_its_place(self):
        """What was unregistered and registered again stands where it stood."""
        seen = []

        class First(Hook):
            @on(Placed)
            def audit(self):
                seen.append("first")

        class Second(Hook):
            @on(Placed)
            def audit(self):
                seen.append("second")

        First.unregister()
        First.register()
        Placed.emit()
        assert ["first", "second"] == seen

    def test_unregistering_a_subclass_revives_the_base(self):
        """The base that it retired is live again."""
        seen = []

        class Base(Hook):
            @on(Placed)
            def audit(self):
                seen.append(type(self).__name__)

        class Middle(Base):
            pass

        class Leaf(Middle):
            pass

        for cls in (Leaf, Middle, Base):
            Placed.emit()
            cls.unregister()
        Placed.emit()
        assert ["Leaf", "Middle", "Base"] == seen

    def test_an_unregistered_base_stays_so(self):
        """A base that was unregistered by hand is not revived."""

        class Base(Hook):
            pass

        class Leaf(Base):
            pass

        Base.unregister()
        Leaf.unregister()
        assert {"Base": "unregistered", "Leaf": "unregistered"} == states()

    def test_a_handler_may_unregister_its_own_hook(self):
        """What is being delivered goes on; what comes later is not heard."""
        seen = []

        class Once(Hook):
            @on(Placed)
            def first(self):
                seen.append("first")
                Once.unregister()

            @on(Placed)
            def second(self):
                seen.append("second")

        Placed.emit()
        Placed.emit()
        assert ["first", "second"] == seen

    def test_an_outer_hook_let_into_isolation_keeps_its_line(self):
        """Registering is not defining: the entry says where the class statement stands."""

        class Audit(Hook):
            pass

        line = hooks().get("Audit").line
        with isolated():
            Audit.register()
            assert (__file__, line) == (hooks().get("Audit").file, hooks().get("Audit").line)
        assert line == hooks().get("Audit").line

    def test_bases_and_subclasses_let_into_isolation(self):
        """In whatever order they are let in, the base is retired while the subclass is live."""

        class Base(Hook):
            pass

        class Leaf(Base):
            pass

        for order in ([Base, Leaf], [Leaf, Base]):
            with isolated():
                for cls in order:
                    cls.register()
                assert ["Leaf"] == live()
                Leaf.unregister()
                assert ["Base"] == live()

    def test_an_earlier_definition_can_come_back(self):
        """A class that was replaced takes the place of its successor when it is registered."""
        source = "class Audit(Hook):\n    pass"
        first, second = run(source)["Audit"], run(source)["Audit"]
        first.unregister()
        assert [second] == [info.cls for info in hooks()]
        assert first not in hooks()
        first.register()
        assert [(first, "live")] == [(info.cls, info.state) for info in hooks()]
        second.unregister()
        assert ["Audit"] == live()


class TestDefiningAgain:
    """The same class defined again replaces the earlier one."""

    SOURCE = """
        class Audit(Hook):
            @on(Placed)
            def audit(self, event):
                seen.append((__tag__, event.number))
    """

    def test_a_reload_replaces(self):
        """However often a module is executed, an event is handled once, by the latest class."""
        seen = []
        for tag in range(3):
            namespace = run(self.SOURCE, seen=seen, __tag__=tag)
        Placed.emit(number=1)
        assert [(2, 1)] == seen
        assert [namespace["Audit"]] == [info.cls for info in hooks()]

    def test_it_keeps_its_place(self):
        """The later definition stands where the earlier one stood."""
        seen = []
        run(self.SOURCE, seen=seen, __tag__="first")
        run(self.SOURCE.replace("Audit", "Other"), seen=seen, __tag__="other")
        run(self.SOURCE, seen=seen, __tag__="again")
        Placed.emit()
        assert [("again", 0), ("other", 0)] == seen

    def test_a_rebuilt_class_is_replaced_as_well(self):
        """An attrs class executed three times is wired once."""
        seen = []
        for tag in range(3):
            run(
                self.SOURCE.replace("class Audit", "@attrs.define\n        class Audit"),
                seen=seen,
                __tag__=tag,
                attrs=attrs,
            )
        Placed.emit()
        assert [(2, 0)] == seen
        assert 1 == len(hooks())

    def test_another_module_is_another_class(self):
        """The same name in two modules makes two hooks."""
        seen = []
        run(self.SOURCE, "shop.a", seen=seen, __tag__="a")
        run(self.SOURCE, "shop.b", seen=seen, __tag__="b")
        Placed.emit()
        assert [("a", 0), ("b", 0)] == seen

    def test_names_of_functions_are_always_new(self):
        """Each call of a factory makes a hook of its own."""
        seen = []

        def make(tag):
            class Audit(Hook):
                @on(Placed)
                def audit(self):
                    seen.append(tag)

            return Audit

        first, second = make("a"), make("b")
        Placed.emit()
        assert ["a", "b"] == seen
        first.unregister()
        Placed.emit()
        assert ["a", "b", "b"] == seen
        assert second in hooks()

    def test_two_factories_of_one_name(self):
        """Factories of the same name make separate hooks too, with attrs as without."""
        seen = []

        def factory(tag):
            @attrs.define
            class Audit(Hook):
                number: int = 0

                @on(Placed)
                def audit(self):
                    seen.append(tag)

        factory("a")
        factory("b")
        Placed.emit()
        assert ["a", "b"] == seen
        assert 2 == len(hooks())

    def test_a_subclass_of_an_earlier_definition_still_retires(self):
        """A base that was defined again stays retired while its subclass is live."""
        namespace = run(
            self.SOURCE + "\n        class Leaf(Audit):\n            pass", seen=(seen := []), __tag__=0
        )
        run(self.SOURCE, seen=seen, __tag__=1)
        Placed.emit()
        assert [(0, 0)] == seen
        namespace["Leaf"].unregister()
        Placed.emit()
        assert [(0, 0), (1, 0)] == seen

    def test_a_class_defined_again_with_another_base(self):
        """The base that it no longer has is live again."""
        source = """
            class Base(Hook):
                pass
            class Other(Hook):
                pass
        """
        bases = {k: v for k, v in run(source).items() if isinstance(v, type)}
        run("class Leaf(Base):\n    pass", **bases)
        assert ["Other", "Leaf"] == live()
        run("class Leaf(Other):\n    pass", **bases)
        assert ["Base", "Leaf"] == live()

    def test_what_is_under_way_keeps_its_class(self):
        """A handler that defines its hook again is followed by the rest of the old class."""
        seen = []
        source = """
            class Audit(Hook):
                shared = True
                @on(Placed)
                def first(self, event):
                    again()
                @on(Placed)
                def second(self, event):
                    seen.append((tag, type(self) is Audit))
        """
        names = {"seen": seen}
        run(source, tag="old", again=lambda: run(source, tag="new", again=lambda: None, **names), **names)
        Placed.emit()
        Placed.emit()
        assert [("old", True), ("new", True)] == seen

    def test_a_subclass_defined_again_leaves_what_is_above_its_base_alone(self):
        """No base comes back for a moment, which would retire others and lose what they keep for runs."""
        seen = []

        class Root(Hook):
            stateful = True

            @on(Placed)
            def audit(self):
                self.count = getattr(self, "count", 0) + 1
                seen.append(self.count)

        leaf = "class Leaf(Base): ..."
        base = run("class Base(Hook): ...\n" + leaf)["Base"]
        run("class Base(Root): ...", Root=Root)
        assert {"Root": "live", "Base": "retired", "Leaf": "live"} == states()
        Placed.emit(correlation_id="a")
        run(leaf, Base=base)
        Placed.emit(correlation_id="a")
        assert [1, 2] == seen

    def test_a_base_defined_again_where_only_its_subclass_is_known(self):
        """A bus that never had the earlier definition knows that its live subclass specialises it."""
        source = "class Base(Hook):\n    @on(Placed)\n    def audit(self): ..."
        base = run(source)["Base"]

        with isolated():
            leaf = run("class Leaf(Base): ...", Base=base)["Leaf"]
            run(source)
            assert {"Leaf": "live", "Base": "retired"} == states()
            leaf.unregister()
            assert ["Base"] == live()


class TestView:
    """What `hooks()` shows."""

    def test_it_is_in_delivery_order(self):
        """By priority, then by registration."""

        class Late(Hook):
            priority = 400

        class Business(Hook):
            priority = Priority.BUSINESS

        class Default(Hook):
            pass

        class Guard(Hook):
            priority = Priority.SECURITY

        class Second(Hook):
            pass

        assert ["Guard", "Business", "Default", "Second", "Late"] == [info.name for info in hooks()]
        assert 5 == len(hooks())

    def test_an_entry_knows_its_class(self):
        """Class, name, events, priority, state, file and line."""

        class Audit(Hook):
            priority = Priority.BUSINESS

            @on(Placed, Shipped)
            def audit(self):
                pass

            @on(Placed)
            def more(self):
                pass

        (info,) = hooks()
        assert (Audit, "Audit", (Placed, Shipped), 250, "live") == (
            info.cls,
            info.name,
            info.events,
            info.priority,
            info.state,
        )
        assert __file__ == info.file
        with open(__file__) as file:
            assert "class Audit(Hook):" in file.read().splitlines()[info.line - 1]

    def test_what_a_shell_has_defined_may_have_no_place(self):
        """Without a frame of the class's own module, file and line are unknown."""
        bare = types.new_class("Bare", (Hook,), exec_body=lambda ns: ns.update(__module__="nowhere"))
        info = hooks().get("Bare")
        assert (bare, None, None) == (info.cls, info.file, info.line)

    def test_it_finds_by_name(self):
        """By the plain name, the qualified one, or with the module; None for what there is not."""
        cls = run("class Outer:\n    class Audit(Hook):\n        pass")["Outer"].Audit
        for name in ("Audit", "Outer.Audit", "shop.hooks.Outer.Audit"):
            assert cls is hooks().get(name).cls
        assert None is hooks().get("Missing")

    def test_of_several_with_one_name_it_finds_the_last(self):
        """The latest definition answers to a name."""
        run("class Audit(Hook):\n    pass", "a")
        later = run("class Audit(Hook):\n    pass", "b")["Audit"]
        assert later is hooks().get("Audit").cls

    def test_membership_is_by_class(self):
        """A class is in it while it is registered, live or not; anything else is not."""

        class Audit(Hook):
            pass

        Audit.unregister()
        assert Audit in hooks()
        assert Hook not in hooks()
        assert "Audit" not in hooks()
        assert [] not in hooks()

    def test_it_is_a_view(self):
        """It is read-only, shows what is registered when it is looked at, and tells it in its repr."""
        view = hooks()
        assert "<hooks: none>" == repr(view)

        class Audit(Hook):
            pass

        assert "<hooks: Audit (live)>" == repr(view)
        with pytest.raises(TypeError):
            view[0] = None
        with pytest.raises(AttributeError):
            view.extra = 1
        with pytest.raises(attrs.exceptions.FrozenInstanceError):
            next(iter(view)).state = "live"

    def test_it_may_be_walked_while_hooks_are_defined(self):
        """A walk sees the registry as it was when it began."""

        class First(Hook):
            pass

        for _ in hooks():
            type("Another", (Hook,), {})
        assert 2 == len(hooks())


class TestAbstractBaseClasses:
    """Hooks with a metaclass."""

    def test_a_hook_may_be_an_abstract_base_class(self):
        """The metaclass stands between the class statement and the bus; the line is found."""

        class Base(Hook, abc.ABC):
            abstract = True

            @on(Placed)
            @abc.abstractmethod
            def audit(self):
                pass

        class Leaf(Base):
            def audit(self):
                seen.append("leaf")

        seen = []
        Placed.emit()
        assert ["leaf"] == seen
        with open(__file__) as file:
            assert "class Leaf(Base):" in file.read().splitlines()[hooks().get("Leaf").line - 1]


class RetiringMachine(RuleBasedStateMachine):
    """Random trees of hooks, registered and unregistered at random."""

    @initialize()
    def start(self):
        self.scope = isolated()
        self.scope.__enter__()
        self.classes = []
        self.wanted = set()
        self.seen = []

    def teardown(self):
        if hasattr(self, "scope"):
            self.scope.__exit__(None, None, None)

    @rule(data=st.data(), abstract=st.booleans())
    def define(self, data, abstract):
        bases = (
            data.draw(st.lists(st.sampled_from(self.classes), max_size=2, unique=True))
            if self.classes
            else []
        )
        seen = self.seen

        def audit(self):
            seen.append(type(self).__name__)

        body = {"audit": on(Placed)(audit), "abstract": abstract}
        name = f"H{len(self.classes)}"
        try:
            type(name, tuple(bases) or (Hook,), {})
        except TypeError:
            return  # no consistent method resolution order
        finally:
            if (stray := hooks().get(name)) is not None:
                stray.cls.unregister()
        cls = type(name, tuple(bases) or (Hook,), body)
        self.classes.append(cls)
        if not abstract:
            self.wanted.add(cls)

    @rule(data=st.data())
    def unregister(self, data):
        if self.classes:
            cls = data.draw(st.sampled_from(self.classes))
            cls.unregister()
            self.wanted.discard(cls)

    @rule(data=st.data())
    def register(self, data):
        concrete = [cls for cls in self.classes if not cls.__dict__["abstract"]]
        if concrete:
            cls = data.draw(st.sampled_from(concrete))
            cls.register()
            self.wanted.add(cls)

    @invariant()
    def exactly_the_lowest_wanted_are_live(self):
        if not hasattr(self, "seen"):
            return
        lowest = {
            a.__name__ for a in self.wanted if not any(b is not a and issubclass(b, a) for b in self.wanted)
        }
        assert lowest == set(live())
        self.seen.clear()
        Placed.emit()
        assert sorted(lowest) == sorted(self.seen)


RetiringMachine.TestCase.settings = settings(max_examples=40, stateful_step_count=12)
TestRandomTrees = RetiringMachine.TestCase


@settings(max_examples=50)
@given(
    steps=st.lists(
        st.tuples(
            st.integers(0, 5), st.integers(-3, 3), st.sampled_from(["define", "unregister", "register"])
        ),
        max_size=20,
    )
)
def test_order_over_redefinition(steps):
    """Whatever is defined, defined again, taken out and put back: priority first, then first registration."""
    with isolated():
        seen: list[int] = []
        first: dict[int, int] = {}
        current: dict[int, tuple[type, int]] = {}
        live_now: set[int] = set()
        for number, priority, action in steps:
            if action == "define":
                source = f"""
                    class H{number}(Hook):
                        priority = {priority}
                        @on(Placed)
                        def audit(self):
                            seen.append({number})
                """
                current[number] = (run(source, seen=seen)[f"H{number}"], priority)
                first.setdefault(number, len(first))
                live_now.add(number)
            elif number in current:
                getattr(current[number][0], action)()
                (live_now.add if action == "register" else live_now.discard)(number)
        Placed.emit()
        assert sorted(live_now, key=lambda n: (current[n][1], first[n])) == seen
