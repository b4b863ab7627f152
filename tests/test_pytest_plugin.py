"""
The pytest plugin: its fixtures, and the check for hooks that a test has left behind.
"""

from __future__ import annotations

import importlib
import re
import sys

import pytest

from eventbus import hooks

pytest_plugins = "pytester"

HEAD = """
from eventbus import Event, Hook, on
class Happened(Event):
    n: int = 0
"""


@pytest.fixture
def run(pytester, monkeypatch):
    """Run a test module with the plugin, in this process, and return its outcomes and its output."""

    def run_module(source, **files):
        # pytest says so when a plugin was imported before it came to it.
        monkeypatch.delitem(sys.modules, "eventbus.pytest_plugin", raising=False)
        pytester.makeconftest('pytest_plugins = ["eventbus.pytest_plugin"]')
        pytester.makepyfile(**files, test_inner=HEAD + source)
        result = pytester.runpytest_inprocess("-p", "no:randomly", "-p", "no:cacheprovider", "-q")
        return result.parseoutcomes(), result.stdout.str()

    return run_module


class TestFixtures:
    """`eventbus_recorder` and `eventbus_isolated`."""

    def test_the_recorder_records(self, run):
        """It has every observed event of the test, and none of another's."""
        outcomes, _ = run(
            """
def test_one(eventbus_recorder):
    Happened.emit(n=1)
    eventbus_recorder.assert_emitted(Happened, n=1)

def test_two(eventbus_recorder):
    assert [] == eventbus_recorder.events
"""
        )
        assert {"passed": 2} == outcomes

    @pytest.mark.parametrize("turn", [1, -1])
    def test_isolated_is_an_empty_bus(self, run, turn):
        """Outer subscriptions are silent, inner ones vanish; the recorder hears the inner bus."""
        order = ", ".join(["eventbus_recorder", "eventbus_isolated"][::turn])
        outcomes, _ = run(
            f"""
seen = []
Happened.subscribe(seen.append)

def test_one({order}):
    Happened.subscribe(lambda event: seen.append("inner"))
    Happened.emit()
    assert ["inner"] == seen
    assert 1 == len(eventbus_recorder)

def test_two():
    Happened.emit()
    assert ["inner", Happened()] == seen
"""
        )
        assert {"passed": 2} == outcomes

    def test_the_clock_stands_still(self, run):
        """It is the test's own, and lets no retry wait."""
        outcomes, _ = run(
            """
def test_one(eventbus_clock, eventbus_recorder):
    eventbus_clock.tick(5)
    Happened.emit()
    assert eventbus_clock.time() == eventbus_recorder[0].timestamp

def test_two(eventbus_clock):
    assert 0.0 == eventbus_clock.monotonic()
"""
        )
        assert {"passed": 2} == outcomes


class TestLeaks:
    """A leak check names the hook a test left behind."""

    LEAK = """
def test_leaks():
    class Forgotten(Hook):
        @on(Happened)
        def handle(self, event): ...

    type("Made", (Hook,), {"__module__": "nowhere"})
"""

    def test_the_hook_is_named(self, run):
        """With its place and what to do; the next test is not disturbed."""
        outcomes, output = run(self.LEAK + "\ndef test_after():\n    assert not Happened.has_receivers()\n")
        assert {"passed": 2, "errors": 1} == outcomes
        assert "The test left hooks behind: Forgotten (" in output
        assert re.search(r"test_inner\.py:\d+\)", output)
        assert "Let it use the fixture `eventbus_isolated`, or unregister them." in output
        assert hooks().get("Forgotten").state == "unregistered"

    def test_an_isolated_or_tidy_test_passes(self, run):
        """What is isolated, unregistered, or abstract is not left behind."""
        outcomes, _ = run(
            self.LEAK.replace("test_leaks()", "test_leaks(eventbus_isolated)")
            + """
def test_tidy():
    class Tidy(Hook): ...
    class Abstract(Hook):
        abstract = True
    Tidy.unregister()
"""
        )
        assert {"passed": 2} == outcomes

    def test_the_hooks_of_an_imported_module_are_its_own(self, run):
        """An import during a test is no leak."""
        outcomes, _ = run(
            "def test_imports():\n    import inner_hooks\n",
            inner_hooks="from eventbus import Hook\nclass Imported(Hook): ...\n",
        )
        assert {"passed": 1} == outcomes

    def test_a_hook_without_a_place(self, run):
        """A class that was made without a class statement is named alone."""
        outcomes, output = run(
            'import sys\ndef test_made():\n    type("Made", (Hook,), {"__module__": "sys"})\n'
        )
        assert {"passed": 1, "errors": 1} == outcomes
        assert "left hooks behind: Made. Let" in output

    def test_a_subclass_goes_with_its_base(self, run):
        """The base that it has retired is named as well, and does not come back to life."""
        outcomes, output = run(
            """
def test_leaks():
    class A(Hook):
        @on(Happened)
        def handle(self, event): ...
    class B(A): ...

def test_after():
    assert not Happened.has_receivers()
"""
        )
        assert {"passed": 2, "errors": 1} == outcomes
        assert re.search(r"left hooks behind: A \([^)]+\), B \([^)]+\)\. Let it", output)

    def test_a_module_s_own_base_returns(self, run):
        """That the test has only specialised, and is not named."""
        outcomes, output = run(
            """
class Own(Hook):
    @on(Happened)
    def handle(self, event): ...

def test_leaks():
    class Special(Own): ...

def test_after():
    from eventbus import hooks
    assert "live" == hooks().get("Own").state
"""
        )
        assert {"passed": 2, "errors": 1} == outcomes
        assert re.search(r"left hooks behind: Special \([^)]+\)\. Let it", output)

    def test_the_hooks_of_a_reloaded_module_are_its_own(self, run):
        """Those in other classes of it too; the next test hears them."""
        outcomes, _ = run(
            """
import importlib
import inner_reloaded

def test_reloads():
    importlib.reload(inner_reloaded)

def test_after():
    inner_reloaded.seen.clear()
    inner_reloaded.Told.emit()
    assert ["inner", "outer"] == sorted(inner_reloaded.seen)
""",
            inner_reloaded="""
from eventbus import Event, Hook, on
seen = []
class Told(Event): ...
class Outer(Hook):
    @on(Told)
    def handle(self, event): seen.append("outer")
    class Inner(Hook):
        @on(Told)
        def handle(self, event): seen.append("inner")
""",
        )
        assert {"passed": 2} == outcomes

    def test_a_hook_in_the_place_of_another(self, run):
        """What a test defines under the name of a module's hook is named, and the module's returns."""
        outcomes, output = run(
            """
from eventbus import hooks

class Own(Hook): ...

def test_takes_its_place():
    type("Own", (Hook,), {"__module__": __name__, "__qualname__": "Own"})
    assert Own not in hooks()

def test_after():
    assert Own in hooks()
    assert "live" == hooks().get("Own").state
"""
        )
        assert {"passed": 2, "errors": 1} == outcomes
        assert "The test left hooks behind: Own (" in output
        assert "left hooks unregistered" not in output

    def test_what_cannot_be_put_back_is_said(self, run):
        """A base that a module's hook has taken the place of meanwhile; the others are put back."""
        outcomes, output = run(
            """
import inner_base

def test_imports():
    inner_base.Guard.unregister()
    inner_base.Watch.unregister()
    import inner_special

def test_after():
    from eventbus import hooks
    states = [hooks().get(f"inner_base.{name}").state for name in ("Guard", "Watch")]
    assert ["unregistered", "live"] == states
""",
            inner_base="""
from eventbus import BeforeToolCallEvent, Hook, on
class Guard(Hook):
    @on(BeforeToolCallEvent)
    def guard(self, event): ...
class Watch(Hook):
    @on(BeforeToolCallEvent)
    def watch(self, event): ...
""",
            inner_special="from inner_base import Guard\nclass Special(Guard): ...\n",
        )
        assert {"passed": 2, "errors": 1} == outcomes
        assert re.search(r"The test left hooks unregistered: Guard \([^)]+\), Watch \([^)]+\)\.", output)
        assert "Guard stays so: " in output
        assert "Traceback" not in output

    def test_a_change_of_registration_is_named(self, run):
        """And put back: what the test has registered, and what it has unregistered."""
        outcomes, output = run(
            """
class On(Hook):
    @on(Happened)
    def handle(self, event): ...
class Special(On): ...
class Off(Hook): ...
Off.unregister()

def test_changes():
    On.unregister()
    Special.unregister()
    Off.register()

def test_after():
    from eventbus import hooks
    states = [hooks().get(name).state for name in ("On", "Special", "Off")]
    assert ["retired", "live", "unregistered"] == states
"""
        )
        assert {"passed": 2, "errors": 1} == outcomes
        assert re.search(r"The test left hooks behind: Off \([^)]+\)\. Let it use the fixture `ev", output)
        assert re.search(
            r"\nThe test left hooks unregistered: On \([^)]+\), Special \([^)]+\)\. "
            r"Let it use the fixture `eventbus_isolated`, or register them\.",
            output,
        )

    WIDER = """
import pytest
from eventbus.testing import isolated, strict

@pytest.fixture(scope="session")
def above():
    class Above(Hook):
        @on(Happened)
        def handle(self, event): heard.append("above")
    yield
    Above.unregister()

@pytest.fixture(scope="module")
def wide(request):
    request.getfixturevalue("above")
    class Wide(Hook):
        @on(Happened)
        def handle(self, event): heard.append("wide")
    yield
    UNDO

@pytest.fixture(scope="class")
def lone():
    with isolated():
        class Lone(Hook): ...
        yield

heard = []

def test_fetches(request):
    request.getfixturevalue("wide")

def test_uses():
    Happened.emit()
    assert ["above", "wide"] == sorted(heard)

class TestAlone:
    def test_on_a_bus_of_the_class(self, request, eventbus_isolated):
        request.getfixturevalue("lone")

    def test_still_there(self):
        Happened.emit()
        assert 2 == len(heard)

def test_at_the_end(above):
    Happened.emit()
    assert 4 == len(heard)
"""

    def test_the_hooks_of_a_wider_fixture_are_its_own(self, run):
        """A test that asks for it in its body is not blamed, and the tests after it have them."""
        outcomes, _ = run(self.WIDER.replace("UNDO", "Wide.unregister()"))
        assert {"passed": 5} == outcomes

    def test_a_wider_fixture_that_leaves_hooks_behind(self, run):
        """Is named at its end, with what it has left alone."""
        outcomes, output = run(self.WIDER.replace("UNDO", "..."))
        assert {"passed": 5, "errors": 1} == outcomes
        assert re.search(
            r"\nThe fixture 'wide' left hooks behind: Wide \([^)]+\)\. Let it unregister them\.\n", output
        )

    def test_a_wider_fixture_that_fails(self, run):
        """Has its hooks named, and they are gone for the tests after it."""
        outcomes, output = run(
            """
import pytest

@pytest.fixture(scope="module")
def broken():
    class Broken(Hook):
        @on(Happened)
        def handle(self, event): ...
    raise ZeroDivisionError

def test_fetches(request):
    with pytest.raises(ZeroDivisionError):
        request.getfixturevalue("broken")

def test_setup_module(setup):
    pass

@pytest.fixture
def setup(): ...
"""
        )
        assert {"passed": 2, "errors": 1} == outcomes
        assert "The fixture 'broken' left hooks behind: Broken (" in output

    def test_it_can_be_switched_off(self, run):
        """For one test, or for all that see a fixture of its name."""
        outcomes, _ = run(
            """
import pytest

@pytest.mark.parametrize("eventbus_leaks", [None])
def test_one():
    class Kept(Hook): ...

class TestSome:
    @pytest.fixture
    def eventbus_leaks(self): ...

    def test_some(self):
        class Kept(Hook): ...
"""
        )
        assert {"passed": 2} == outcomes

    def test_what_a_failed_assertion_shows(self, run):
        """The line of the test, and nothing of the recorder's own."""
        outcomes, output = run(
            """
from eventbus.testing import ScriptedModel

def test_emitted(eventbus_recorder):
    eventbus_recorder.assert_emitted(Happened)

def test_not_emitted(eventbus_recorder):
    Happened.emit()
    eventbus_recorder.assert_not_emitted(Happened)

def test_script():
    with ScriptedModel("a"):
        pass
"""
        )
        assert {"failed": 3} == outcomes
        assert "test_inner.py" in output
        assert "_recorder.py" not in output
        assert "_scripted.py" not in output


def test_without_pytest_it_names_what_to_install(monkeypatch):
    """The ImportError says what is missing."""
    monkeypatch.delitem(sys.modules, "eventbus.pytest_plugin", raising=False)
    monkeypatch.setitem(sys.modules, "pytest", None)
    with pytest.raises(
        ImportError,
        match=r"^eventbus\.pytest_plugin needs pytest; install it with: pip install 'eventbus\[pytest\]'",
    ):
        importlib.import_module("eventbus.pytest_plugin")
