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


def test_without_pytest_it_names_what_to_install(monkeypatch):
    """The ImportError says what is missing."""
    monkeypatch.delitem(sys.modules, "eventbus.pytest_plugin", raising=False)
    monkeypatch.setitem(sys.modules, "pytest", None)
    with pytest.raises(
        ImportError,
        match=r"^eventbus\.pytest_plugin needs pytest; install it with: pip install 'eventbus\[pytest\]'",
    ):
        importlib.import_module("eventbus.pytest_plugin")
