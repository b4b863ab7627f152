"""The settings of policies: what a subclass may state, and what becomes of the rest."""

from __future__ import annotations

import asyncio
import functools
import threading
from abc import ABC, abstractmethod
from typing import ClassVar

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from eventbus import Event, Hook, HookInfo, Priority, hooks, on, policies
from eventbus._policy import (
    PolicyHook,
    Recent,
    flag,
    function,
    names,
    number,
    optional,
    setting,
    text,
    whole,
)


class Asked(Event):
    pass


def yes(request):
    return ("yes", request)


@pytest.fixture
def guard():
    """Return a shipped policy with a setting of each kind."""

    class GuardHook(PolicyHook):
        abstract = True
        priority = Priority.SECURITY

        block_tools: ClassVar = setting((), names)
        limit: ClassVar[int] = setting(3, whole(0))
        delay: ClassVar[float] = setting(1.5, number(0, "seconds"))
        strict: ClassVar[bool] = setting(default=False, check=flag)
        policy: ClassVar[str] = setting("", text)
        judge: ClassVar = setting(None, optional(function), arguments=("request",))

        def violations(self):
            return ()

        @on(Asked)
        def check(self, event):
            log.append((type(self).__name__, sorted(self.block_tools)))

    return GuardHook


log: list = []


@pytest.fixture(autouse=True)
def empty_log():
    """Forget what handlers of earlier tests have noted."""
    log.clear()


def state_of(cls) -> str | None:
    """Return what `hooks()` says of a class."""
    found: HookInfo | None = next((info for info in hooks() if info.cls is cls), None)
    return None if found is None else found.state


class TestGoingLive:
    def test_a_shipped_policy_is_abstract(self, guard):
        """It is not live, and handles nothing."""
        Asked.emit()

        assert "abstract" == state_of(guard)
        assert [] == log

    def test_a_subclass_is_live(self, guard):
        """Its settings count for its handlers."""

        class Guard(guard):
            block_tools = {"shell"}

        Asked.emit()

        assert "live" == state_of(Guard)
        assert [("Guard", ["shell"])] == log

    def test_a_subclass_without_settings_is_live(self, guard):
        """The defaults count."""

        class Guard(guard):
            pass

        assert "live" == state_of(Guard)
        assert (frozenset(), 3, 1.5, False, "", None) == (
            Guard.block_tools,
            Guard.limit,
            Guard.delay,
            Guard.strict,
            Guard.policy,
            Guard.judge,
        )

    def test_two_subclasses_have_settings_of_their_own(self, guard):
        """Neither sees the other's, and both are live."""

        class One(guard):
            block_tools = {"a"}

        class Two(guard):
            block_tools = {"b"}

        Asked.emit()

        assert [("One", ["a"]), ("Two", ["b"])] == log

    def test_what_a_failed_class_would_have_been_is_not_live(self, guard):
        """A mistake in the body leaves nothing behind."""
        with pytest.raises(TypeError):

            class Guard(guard):
                block_tool = {"shell"}

        Asked.emit()

        assert [] == log
        assert None is hooks().get("Guard")

    def test_the_shipped_ones_are_abstract(self):
        """Whatever `eventbus.policies` exports as a hook says so in its own body."""
        shipped = [value for name in policies.__all__ if isinstance(value := getattr(policies, name), type)]
        found = [cls for cls in shipped if issubclass(cls, Hook)]

        assert {"ModelRetryHook", "SteeringHook"} <= {cls.__name__ for cls in found}
        assert [] == [cls for cls in found if not vars(cls).get("abstract")]


class TestUnknownNames:
    def test_a_misspelt_setting_names_the_nearest(self, guard):
        """The text names the class, the policy and what was probably meant."""
        with pytest.raises(
            TypeError,
            match=r"Guard\.block_tool is no setting of GuardHook\. Did you mean `block_tools`\?",
        ):

            class Guard(guard):
                block_tool = {"shell"}

    def test_an_unknown_one_lists_what_there_is(self, guard):
        """Without anything near, all settings are named."""
        with pytest.raises(
            TypeError, match=r"Its settings are block_tools, delay, judge, limit, policy, str"
        ):

            class Guard(guard):
                xyzzy = 1

    @pytest.mark.parametrize("name", ["shadows", "priorty", "statefull", "replace"])
    def test_a_misspelt_setting_of_every_hook(self, guard, name):
        """What Hook itself understands is among the nearest."""
        with pytest.raises(TypeError, match=r"Did you mean `(shadow|priority|stateful|replaces)`"):
            type(guard)("Guard", (guard,), {name: True})

    def test_an_annotated_one(self, guard):
        """An annotation makes no new setting."""
        with pytest.raises(TypeError, match="Did you mean `block_tools`"):

            class Guard(guard):
                block_tool: ClassVar = {"shell"}

    def test_a_colon_for_an_equals_sign(self, guard):
        """An annotation alone would set nothing."""
        with pytest.raises(
            TypeError, match=r"block_tools has an annotation and no value; write `block_tools ="
        ):

            class Guard(guard):
                block_tools: {1}

    def test_a_method_named_almost_like_a_setting(self, guard):
        """It would never be called."""
        with pytest.raises(
            TypeError, match=r"Guard\.judges is no setting of GuardHook\. Did you mean `judge`"
        ):

            class Guard(guard):
                def judges(self, request):
                    return True

    @pytest.mark.parametrize(("name", "near"), [("JUDGE", "judge"), ("blockTools", "block_tools")])
    def test_a_method_in_another_case_of_letters(self, guard, name, near):
        """A setting in capitals is a misspelt one, too."""
        with pytest.raises(
            TypeError, match=rf"Guard.{name} is no setting of GuardHook. Did you mean `{near}`?"
        ):
            type(guard)("Guard", (guard,), {name: lambda self, request: None})

    def test_settings_in_a_class_of_their_own(self, guard):
        """They would not count there."""
        text = r"Guard.Config has `block_tools` in it, which does not count; write it in .*Guard itself\."
        with pytest.raises(TypeError, match=text):

            class Guard(guard):
                class Config:
                    block_tools = {"shell"}

    def test_a_value_in_the_place_of_a_method(self, guard):
        """A method of the policy is no setting."""
        with pytest.raises(TypeError, match=r"Guard\.violations is a method of GuardHook and no setting"):

            class Guard(guard):
                violations = 100

    def test_an_abstract_subclass_is_checked_too(self, guard):
        """A class in between may be abstract, and may not err."""
        with pytest.raises(TypeError, match="Did you mean `block_tools`"):

            class Base(guard):
                abstract = True
                block_tool = {"shell"}

    def test_both_of_two_policies(self, guard):
        """Handlers of the one could take the place of the other's."""

        class OtherHook(PolicyHook):
            abstract = True
            depth: ClassVar[int] = setting(1, whole(1))

        with pytest.raises(TypeError, match="Both is both GuardHook and OtherHook; define a hook for each"):

            class Both(guard, OtherHook):
                pass


class TestWhatElseABodyMayHold:
    def test_helpers_handlers_private_names_and_what_hooks_have(self, guard):
        """None of it is taken for a setting."""

        class Guard(guard):
            priority = Priority.BUSINESS
            shadow = True
            stateful = True
            stateful_capacity = 5
            lock_timeout = 2.0
            _client = object()
            __slots__ = ()

            class Inner:
                pass

            @property
            def size(self):
                return 1

            @staticmethod
            def clean(value):
                return value

            @classmethod
            def make(cls):
                return cls()

            @functools.cached_property
            def tokens(self):
                return 3

            def helper(self):
                return 2

            def state(self):
                return "near to a setting of every hook, which takes no methods"

            @on(Asked)
            def judged(self):
                log.append("judged")

        Asked.emit()

        assert ["judged"] == [entry for entry in log if entry == "judged"]
        assert "live" == state_of(Guard)

    def test_a_method_of_the_policy_may_be_overridden(self, guard):
        """What is a method there may be one here."""

        class Guard(guard):
            def violations(self):
                return (1,)

        assert (1,) == Guard().violations()

    def test_a_handler_may_be_dropped(self, guard):
        """None in its place drops it, where the class says that it replaces something."""

        class Guard(guard):
            replaces = True
            check = None

        Asked.emit()

        assert [] == log

    def test_a_handler_is_not_switched_off_by_accident(self, guard):
        """A method that happens to be named like a handler is refused, with what to do about it."""
        message = r"Guard\.check would switch off a handler of GuardHook; .*`replaces = True`"
        for check in (lambda self: 1, on(Asked)(lambda self, event: None), None):
            with pytest.raises(TypeError, match=message):
                type("Guard", (guard,), {"check": check, "__module__": __name__})

        class Live(guard):
            pass

        with pytest.raises(TypeError, match="would switch off"):
            Live.check = lambda self: 1

    def test_a_handler_of_one_s_own_may_be_replaced(self, guard):
        """What a subclass has added is its own."""

        class Guard(guard):
            def helper(self):
                return 1

        class Other(Guard):
            replaces = True

            def helper(self):
                return 2

        assert 2 == Other().helper()

    def test_an_attribute_of_a_mixin_may_be_set(self, guard):
        """A plain value that a base has is known."""

        class Client:
            url = "a"

        class Guard(Client, guard):
            url = "b"

        assert "b" == Guard.url

    def test_a_policy_may_be_an_abstract_base_class(self, guard):
        """The metaclass of policies does not stand in the way of ABC's."""

        class Named(ABC):
            @abstractmethod
            def label(self): ...

        class Guard(guard, Named):
            def label(self):
                return "x"

        Asked.emit()

        assert "x" == Guard().label()
        assert [("Guard", [])] == log


class TestValues:
    @pytest.mark.parametrize(
        ("name", "value", "error", "text"),
        [
            ("block_tools", "shell", TypeError, r"a collection of names, as in {.shell.}, not 'shell'"),
            ("block_tools", {"shell": 1}, TypeError, "collection of names"),
            ("block_tools", [1], TypeError, "collection of names"),
            ("block_tools", [["shell"]], TypeError, "collection of names"),
            ("block_tools", {""}, ValueError, "none of them empty"),
            ("block_tools", {" shell"}, ValueError, "none of them empty or with space around it"),
            ("block_tools", None, TypeError, "collection of names"),
            ("limit", "3", TypeError, "an int of at least 0, not '3'"),
            ("limit", True, TypeError, "an int of at least 0"),
            ("limit", -1, ValueError, "an int of at least 0, not -1"),
            ("delay", "1", TypeError, "a number of seconds of at least 0, not '1'"),
            ("delay", True, TypeError, "a number of seconds"),
            ("delay", -0.1, ValueError, "a number of seconds of at least 0, not -0.1"),
            ("delay", float("nan"), ValueError, "not nan"),
            ("delay", float("inf"), ValueError, "not inf"),
            ("strict", 1, TypeError, "True or False, not 1"),
            ("policy", b"x", TypeError, "a string, not b'x'"),
            ("judge", "me", TypeError, "a function, or an object that can be called, not 'me'"),
            ("judge", ValueError, TypeError, "a function, or an object that can be called"),
        ],
    )
    def test_a_wrong_one_names_the_setting_and_the_fix(self, guard, name, value, error, text):
        """TypeError for what it is, ValueError for which it is."""
        with pytest.raises(error, match=rf"Guard\.{name} must be .*{text}"):
            type(guard)("Guard", (guard,), {name: value})

    def test_a_set_of_names_is_kept_as_one_that_cannot_change(self, guard):
        """What is done to the caller's own set afterwards changes nothing."""
        mine = {"shell"}

        class Guard(guard):
            block_tools = mine

        mine.clear()

        assert frozenset({"shell"}) == Guard.block_tools

    def test_a_value_whose_repr_raises(self, guard):
        """The error says what it can."""

        class Rude:
            def __repr__(self):
                raise RuntimeError

        with pytest.raises(TypeError, match=r"Guard\.limit must be an int of at least 0, not a Rude"):
            type(guard)("Guard", (guard,), {"limit": Rude()})

    @given(st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(), st.lists(st.text())))
    def test_any_value_is_kept_or_refused(self, value):
        """Whatever is stated, each check keeps what it would keep again, or raises one of two errors."""
        for check in (flag, text, whole(0), number(0), names, optional(names)):
            try:
                kept = check("x", value)
            except (TypeError, ValueError) as error:
                assert str(error).startswith("x must be ")
            else:
                assert kept == check("x", kept)


class TestInheritance:
    def test_through_several_subclasses(self, guard):
        """What a class does not state it has from the nearest that does."""

        class Base(guard):
            abstract = True
            block_tools = {"shell"}
            limit = 7

        class Middle(Base):
            abstract = True
            limit = 8

        class Guard(Middle):
            delay = 0

        assert (frozenset({"shell"}), 8, 0) == (Guard.block_tools, Guard.limit, Guard.delay)

    def test_specialising_a_live_policy(self, guard):
        """Only the subclass is live, with the settings of both."""

        class Guard(guard):
            block_tools = {"shell"}

        class Stricter(Guard):
            limit = 0

        Asked.emit()

        assert [("Stricter", ["shell"])] == log
        assert "retired" == state_of(Guard)

    def test_a_plain_mixin(self, guard):
        """Its settings count, checked and kept like any."""

        class NoShell:
            block_tools = ["shell"]

        class Guard(NoShell, guard):
            pass

        assert frozenset({"shell"}) == Guard.block_tools

    def test_a_mixin_with_a_wrong_value(self, guard):
        """The error names the mixin."""

        class NoShell:
            block_tools = "shell"

        with pytest.raises(TypeError, match=r"NoShell\.block_tools must be a collection of names"):

            class Guard(NoShell, guard):
                pass

    def test_a_mixin_that_misspells(self, guard):
        """Of a mixin's names only those that are almost settings are taken for mistakes."""

        class NoShell:
            block_tool = {"shell"}
            client = 1

        with pytest.raises(TypeError, match=r"NoShell\.block_tool is no setting of GuardHook"):

            class Guard(NoShell, guard):
                pass

    def test_a_mixin_that_comes_too_late(self, guard):
        """Its setting would be hidden by the default."""

        class NoShell:
            block_tools = {"shell"}

        with pytest.raises(
            TypeError, match=r"NoShell\.block_tools would not count: .*name .*NoShell before it"
        ):

            class Guard(guard, NoShell):
                pass

    def test_a_body_may_overrule_a_mixin(self, guard):
        """What the class itself states comes first."""

        class NoShell:
            client = 1
            block_tools = {"shell"}

        class Guard(NoShell, guard):
            block_tools = {"other"}

        assert frozenset({"other"}) == Guard.block_tools

    def test_a_policy_that_extends_a_policy(self, guard):
        """It has the settings of both, and its subclasses name it."""

        class MoreHook(guard):
            abstract = True
            depth: ClassVar[int] = setting(1, whole(1))

        class More(MoreHook):
            depth = 2
            limit = 1

        assert (2, 1) == (More.depth, More.limit)
        with pytest.raises(TypeError, match="no setting of MoreHook"):
            More.dept = 3


class TestAssignment:
    def test_it_is_checked_like_the_body(self, guard):
        """A value is kept as it would have been."""

        class Guard(guard):
            pass

        Guard.block_tools = ["shell"]
        Asked.emit()

        assert [("Guard", ["shell"])] == log

    @pytest.mark.parametrize("name", ["block_tools", "block_tool", "BLOCK_TOOLS"])
    def test_an_instance_has_no_settings(self, guard, name):
        """Set on an instance, it would be checked by nobody."""

        class Guard(guard):
            def __init__(self):
                self.client = "a client"
                setattr(self, name, "shell")

        text = rf"Guard.{name} is set on an instance; settings are class attributes, so set `block_tools` in"
        with pytest.raises(TypeError, match=text):
            Guard()

    def test_a_wrong_value_changes_nothing(self, guard):
        """The earlier one stays."""

        class Guard(guard):
            limit = 4

        with pytest.raises(ValueError, match=r"Guard\.limit must be an int of at least 0"):
            Guard.limit = -1

        assert 4 == Guard.limit

    def test_a_misspelt_one_does_not_pass(self, guard):
        """It would be a setting that nobody reads."""

        class Guard(guard):
            pass

        with pytest.raises(TypeError, match="Did you mean `block_tools`"):
            Guard.block_tool = {"shell"}

        assert not hasattr(Guard, "block_tool")

    def test_what_is_no_setting_can_be_assigned(self, guard, monkeypatch):
        """A test may replace a method, or shadow a hook, and take it back."""

        class Guard(guard):
            pass

        with monkeypatch.context() as patch:
            patch.setattr(Guard, "violations", lambda self: (2,))
            patch.setattr(Guard, "shadow", True)
            patch.setattr(Guard, "judge", yes)
            patch.setattr(Guard, "_x", 1, raising=False)

            assert ((2,), True, ("yes", 1)) == (Guard().violations(), Guard.shadow, Guard().judge(1))

        assert ((), False, None) == (Guard().violations(), Guard.shadow, Guard.judge)


class Caller:
    """Objects that can be called, and have a method to give away."""

    def __call__(self, request):
        return ("yes", request)

    def ask(self, request):
        return ("yes", request)


async def later(request):
    return ("yes", request)


class TestFunctions:
    @pytest.mark.parametrize(
        "judge",
        [
            yes,
            lambda request: ("yes", request),
            functools.partial(lambda word, request: (word, request), "yes"),
            Caller(),
            Caller().ask,
            staticmethod(yes),
            functools.lru_cache(yes),
        ],
        ids=["function", "lambda", "partial", "object", "bound", "staticmethod", "cached"],
    )
    def test_one_given_as_the_value_is_called_without_self(self, guard, judge):
        """Whatever it is."""

        class Guard(guard):
            pass

        Guard.judge = judge
        stated = type(guard)("Stated", (guard,), {"judge": judge})

        assert ("yes", 1) == Guard().judge(1) == stated().judge(1)

    def test_a_lambda_in_the_body_is_a_value(self, guard):
        """It takes no self."""

        class Guard(guard):
            judge = lambda request: ("yes", request)  # noqa: E731

        assert ("yes", 2) == Guard().judge(2)

    def test_a_method_in_the_body_is_called_with_it(self, guard):
        """A `def` there is a method, as anywhere."""

        class Guard(guard):
            def judge(self, request):
                return (type(self).__name__, request)

        class Second(Guard):
            limit = 1

        class Third(Guard):
            def judge(self, request):
                return super().judge(request)

        assert [("Guard", 1), ("Second", 1), ("Third", 1)] == [
            one().judge(1) for one in (Guard, Second, Third)
        ]

    def test_a_class_method_in_the_body(self, guard):
        """It gets the class."""

        class Guard(guard):
            @classmethod
            def judge(cls, request):
                return (cls.__name__, request)

        assert ("Guard", 1) == Guard().judge(1)

    def test_a_decorated_method(self, guard):
        """A decorator that keeps the name makes no difference."""

        def twice(fn):
            @functools.wraps(fn)
            def wrapper(*args):
                return fn(*args) * 2

            return wrapper

        class Guard(guard):
            @twice
            def judge(self, request):
                return (request,)

        assert (1, 1) == Guard().judge(1)

    def test_a_method_of_a_mixin(self, guard):
        """It is called with self; a function that a mixin has as a value is not."""

        class Judging:
            def judge(self, request):
                return (type(self).__name__, request)

        class Given:
            judge = yes

        class Guard(Judging, guard):
            pass

        class Other(Given, guard):
            pass

        assert [("Guard", 1), ("yes", 1)] == [Guard().judge(1), Other().judge(1)]

    def test_async_ones(self, guard):
        """Both forms may be async."""

        class Guard(guard):
            async def judge(self, request):
                return (type(self).__name__, request)

        class Other(guard):
            judge = later

        assert [("Guard", 1), ("yes", 1)] == [asyncio.run(one().judge(1)) for one in (Guard, Other)]

    def test_a_bound_method_of_an_object_whose_class_has_the_same_name(self, guard):
        """A name is not enough to be a method of the policy."""

        def make():
            class Guard:
                def judge(self, request):
                    return ("yes", request)

            return Guard()

        class Guard(guard):
            judge = make().judge

        Guard.judge.__func__.__qualname__ = f"{Guard.__qualname__}.judge"
        Guard.judge = Guard.judge

        assert ("yes", 1) == Guard().judge(1)

    @pytest.mark.parametrize(
        "judge",
        [lambda: True, lambda self, request: True, functools.partial(yes, 1)],
        ids=["none", "two", "used up"],
    )
    def test_one_that_cannot_be_called_so(self, guard, judge):
        """The error says with what it will be called."""
        with pytest.raises(TypeError, match=r"Guard\.judge will be called with \(request\), and cannot be: "):
            type(guard)("Guard", (guard,), {"judge": judge})

    def test_a_method_that_forgets_self(self, guard):
        """The error says that it is a method."""
        with pytest.raises(
            TypeError, match=r"will be called with \(self, request\), and cannot be: too many"
        ):

            class Guard(guard):
                def judge(request):
                    return True

    def test_one_that_does_not_tell_its_parameters(self, guard):
        """It is taken as it is."""

        class Guard(guard):
            judge = max

        assert 2 == Guard().judge([1, 2])


class TestAttrs:
    def test_a_policy_that_attrs_makes_anew(self, guard):
        """Settings without an annotation stay settings."""

        @attrs.define
        class Guard(guard):
            block_tools = {"shell"}
            judge = yes

        Asked.emit()

        assert [("Guard", ["shell"])] == log
        assert ("yes", 1) == Guard().judge(1)

    @pytest.mark.parametrize("slots", [True, False])
    def test_an_annotated_setting_would_be_a_field(self, guard, slots):
        """Then the class itself would not have it."""
        with pytest.raises(
            TypeError, match=r"Guard\.limit is a field of each instance; settings are class attr"
        ):

            @attrs.define(slots=slots)
            class Guard(guard):
                limit: int = 5

        Asked.emit()

        assert [] == log

    def test_other_fields_are_the_users(self, guard):
        """What is no setting may be a private field."""

        @attrs.define(slots=False)
        class Guard(guard):
            _seen: int = 0

        assert 0 == Guard()._seen


class TestRecent:
    def test_the_oldest_goes(self):
        """Beyond the limit, one goes for each that comes."""
        recent: Recent[int] = Recent(3)
        for value in range(5):
            recent.add(value)

        assert (2, 3, 4) == recent.all()

    def test_from_several_threads(self):
        """Who reads meanwhile sees a whole."""
        recent: Recent[int] = Recent(50)

        def add():
            for value in range(500):
                recent.add(value)
                assert len(recent.all()) <= 50

        threads = [threading.Thread(target=add) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

        assert 50 == len(recent.all())
