"""
Fixtures for pytest, and a check that no test or fixture leaves a hook behind.

Named in a `conftest.py`: `pytest_plugins = ["eventbus.pytest_plugin"]`.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

try:
    import pytest
except ImportError as error:
    msg = "eventbus.pytest_plugin needs pytest; install it with: pip install 'eventbus[pytest]'"
    raise ImportError(msg) from error

from ._event import Event
from ._hook import Hook
from ._leaks import Registered
from .testing import FrozenClock, Recorder, capture, frozen_clock, isolated


@pytest.fixture
def eventbus_isolated() -> Generator[None]:
    """
    Give the test an empty bus, and put the outer one back after it.
    """
    with isolated():
        yield


@pytest.fixture
def eventbus_recorder(request: pytest.FixtureRequest) -> Generator[Recorder[Event]]:
    """
    Record every observed event that the test emits.
    """
    if "eventbus_isolated" in request.fixturenames:
        # Whichever the test names first: what is recorded is what its own bus delivers.
        request.getfixturevalue("eventbus_isolated")
    with capture() as recorder:
        yield recorder


@pytest.fixture
def eventbus_clock() -> Generator[FrozenClock]:
    """
    Stamp and time what the test emits by a clock that stands still, until the test lets it go on.
    """
    with frozen_clock() as clock:
        yield clock


_observers = pytest.StashKey[list[Registered]]()
"""Who answers for changes at this moment: the test, and the fixtures that are being set up for it."""


@pytest.fixture(autouse=True)
def eventbus_leaks(request: pytest.FixtureRequest) -> Generator[None]:
    """
    Fail a test that leaves hooks registered or unregistered which were not; it is undone, so it fails alone.

    The hooks of a module that is imported or reloaded during a test are the module's, and those of a fixture
    of wider scope that it asks for are the fixture's.
    """
    observers = request.config.stash.setdefault(_observers, [])
    before = Registered()
    observers.append(before)
    yield
    observers.remove(before)
    _fail(before.put_back("The test", "Let it use the fixture `eventbus_isolated`, or"))


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(
    fixturedef: pytest.FixtureDef[Any], request: pytest.FixtureRequest
) -> Generator[None, object, object]:
    """
    Have a fixture of wider scope answer for its hooks: at its end, and not the test that asks for it first.
    """
    if fixturedef.scope == "function":
        return (yield)
    observers = request.config.stash.setdefault(_observers, [])
    before, changed = Registered(), set[type[Hook]]()

    def check() -> None:
        _fail(before.put_back(f"The fixture {fixturedef.argname!r}", "Let it", only=changed))

    # Called after what the fixture does at its end.
    request.addfinalizer(check)
    observers.append(before)
    try:
        return (yield)
    finally:
        observers.remove(before)
        changes = before.changes()
        changed.update(changes)
        for observer in observers:
            observer.accept(changes)


def _fail(sentences: list[str]) -> None:
    if sentences:
        pytest.fail("\n".join(sentences), pytrace=False)
