"""
What every test gets: an empty bus, the default settings afterwards, and a check that nothing is left running.
"""

from __future__ import annotations

import gc
import signal

import hypothesis
import pytest

from eventbus import _settings, drain, stats
from eventbus._settings import Settings, settings
from eventbus.testing import isolated

PATIENCE = 10.0
"""Seconds that what a test has scheduled may take to end; a test that needs them all has hung."""

# How long an example takes says something of the machine alone.
hypothesis.settings.register_profile(
    "untimed", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("untimed")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # As for what a shell runs in the background; the processes that tests interrupt would inherit it.
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def empty_bus():
    """
    Give each test a bus without hooks or subscriptions, and put settings and hooks back after it.
    """
    before = {name: getattr(settings, name) for name in Settings.__slots__}
    with isolated():
        yield
        assert 0 == drain(PATIENCE)
        assert 0 == stats()["pending"]
    after = {name: getattr(settings, name) for name in Settings.__slots__}
    for name, value in before.items():
        setattr(settings, name, value)
    changed = frozenset(name for name in before if before[name] is not after[name])
    if changed:
        for listener in _settings._listeners:
            listener(changed)


@pytest.fixture(autouse=True)
def no_finalizers_at_the_end_of_the_stack(request):
    """
    Let no finalizer of an earlier test's garbage run where a test has no stack left for it.
    """
    if request.node.get_closest_marker("exhausts_stack") is None:
        yield
        return
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
