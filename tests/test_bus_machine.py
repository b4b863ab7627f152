"""
A random play of the whole bus holds what the contract says of delivery; and a bus with a bug in it does not.
"""

from __future__ import annotations

import os

import pytest
from bus_invariants import INVARIANTS, VIEWS
from bus_machine import BusMachine
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test
from seeded_bugs import BUGS

LONG = "EVENTBUS_LONG_PLAYS"
"""The environment variable that says how many plays to try instead, each time others."""

NORMAL = settings(
    derandomize=True,
    database=None,
    max_examples=150,
    stateful_step_count=15,
    suppress_health_check=list(HealthCheck),
    print_blob=False,
)

# What hypothesis tries first depends on the constants of the modules that are imported: a bug that one order
# of the tests lets it find in the usual number of plays may take more in another.
SEEDED = settings(NORMAL, max_examples=600, phases=[Phase.generate], report_multiple_bugs=False)


def test_a_play_holds_whatever_is_done():
    """No sequence of defining, subscribing, cancelling, emitting and raising breaks an invariant."""
    plays = os.environ.get(LONG)
    limits = settings(NORMAL, derandomize=False, max_examples=int(plays)) if plays else NORMAL

    run_state_machine_as_test(BusMachine, settings=limits)


@pytest.mark.parametrize("name", BUGS)
def test_a_seeded_bug_is_caught(name, monkeypatch):
    """A bus with a bug breaks the invariant that is about it, within a few hundred plays."""
    bug, invariant = BUGS[name]
    monkeypatch.setattr(BusMachine, "wanted", invariant)

    with bug(), pytest.raises(AssertionError, match=invariant):
        run_state_machine_as_test(BusMachine, settings=SEEDED)


def test_each_invariant_catches_a_bug():
    """None is there that nothing has ever broken."""
    assert {*INVARIANTS, *VIEWS} == {invariant for _, invariant in BUGS.values()}


def test_each_invariant_names_the_contract():
    """Each says which section it holds the bus to."""
    texts = [*VIEWS.values(), *(check.__doc__ for check in INVARIANTS.values())]

    assert [] == [text for text in texts if not text.startswith("§")]
