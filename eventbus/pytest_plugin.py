"""
Fixtures for pytest, and a check that no test leaves a hook behind.

Named in a `conftest.py`: `pytest_plugins = ["eventbus.pytest_plugin"]`.
"""

from __future__ import annotations

import sys
from collections.abc import Generator

try:
    import pytest
except ImportError as error:
    msg = "eventbus.pytest_plugin needs pytest; install it with: pip install 'eventbus[pytest]'"
    raise ImportError(msg) from error

from ._event import Event
from ._hook import HookInfo, hooks
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


@pytest.fixture(autouse=True)
def eventbus_leaks() -> Generator[None]:
    """
    Fail a test that leaves hooks live which it has defined; they are unregistered, so that it fails alone.

    The hooks of a module that is imported during a test are the module's, not the test's.
    """
    before = {info.cls for info in hooks()}
    modules = set(sys.modules)
    yield
    left = [
        info
        for info in hooks()
        if info.state == "live" and info.cls not in before and info.cls.__module__ in modules
    ]
    for info in left:
        info.cls.unregister()
    if left:
        pytest.fail(
            f"The test left hooks behind: {', '.join(map(_place, left))}. "
            "Let it use the fixture `eventbus_isolated`, or unregister them.",
            pytrace=False,
        )


def _place(info: HookInfo) -> str:
    return info.name if info.file is None else f"{info.name} ({info.file}:{info.line})"
