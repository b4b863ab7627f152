"""
What `configure` sets.
"""

from __future__ import annotations

import logging

import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st

from eventbus import _settings as module
from eventbus import configure
from eventbus._logger import output
from eventbus._settings import UNSET, Settings, settings


def current():
    """Return all settings by name."""
    return {name: getattr(settings, name) for name in Settings.__slots__}


def test_the_defaults():
    """What holds without any call."""
    fresh = Settings()
    assert (False, None, 10.0, 10_000, 100_000) == (
        fresh.strict,
        fresh.slow_handler,
        fresh.lock_timeout,
        fresh.stateful_capacity,
        fresh.max_pending,
    )
    assert (UNSET, None, "info", True, None) == (
        fresh.log,
        fresh.logger,
        fresh.level,
        fresh.log_data,
        fresh.redact,
    )
    assert "<unchanged>" == repr(UNSET)


@pytest.mark.parametrize(
    ("given_", "expected"),
    [
        ({"strict": True}, {"strict": True}),
        ({"slow_handler": 2}, {"slow_handler": 2.0}),
        ({"slow_handler": None}, {"slow_handler": None}),
        ({"lock_timeout": 0.5}, {"lock_timeout": 0.5}),
        ({"lock_timeout": float("inf")}, {"lock_timeout": float("inf")}),
        ({"stateful_capacity": 1}, {"stateful_capacity": 1}),
        ({"max_pending": 7}, {"max_pending": 7}),
        ({"log": "json"}, {"log": "json"}),
        ({"log": None}, {"log": "off"}),
        ({"log": "off"}, {"log": "off"}),
        ({"level": "debug"}, {"level": "debug"}),
        ({"log_data": False}, {"log_data": False}),
        ({"redact": repr}, {"redact": repr}),
        ({"redact": None}, {"redact": None}),
        ({"logger": None}, {"logger": None}),
    ],
)
def test_what_is_given_is_set_and_nothing_else(given_, expected):
    """Each setting by itself; the others stay as they are."""
    before = current()
    configure(**given_)
    assert {**before, **expected} == current()


@pytest.mark.parametrize(
    ("logger", "log"),
    [
        (logging.getLogger("app"), "stdlib"),
        (logging.LoggerAdapter(logging.getLogger("app"), {}), "stdlib"),
        (structlog.get_logger("app"), "structlog"),
    ],
)
def test_a_logger_implies_where_lines_go(logger, log):
    """A stdlib logger or a structlog one says it, unless `log` is given too, until it is taken back."""
    configure(log="json")
    configure(logger=logger)
    assert (logger, log) == (settings.logger, output())
    configure(logger=None)
    assert (None, "stderr") == (settings.logger, output())
    configure(logger=logger, log="json")
    assert "json" == output()


@pytest.mark.parametrize(
    ("given_", "error", "text"),
    [
        ({"strict": 1}, TypeError, "`strict` must be True or False, not 1"),
        ({"log_data": None}, TypeError, "`log_data` must be True or False, not None"),
        ({"slow_handler": "2"}, TypeError, "`slow_handler` must be a number of seconds, not '2'"),
        ({"slow_handler": True}, TypeError, "`slow_handler` must be a number of seconds, not True"),
        ({"slow_handler": 0}, ValueError, "`slow_handler` must be more than 0 seconds, not 0"),
        ({"lock_timeout": None}, TypeError, "`lock_timeout` must be a number of seconds, not None"),
        ({"lock_timeout": -1.5}, ValueError, "`lock_timeout` must be more than 0 seconds, not -1.5"),
        ({"lock_timeout": float("nan")}, ValueError, "`lock_timeout` must be more than 0 seconds, not nan"),
        ({"stateful_capacity": 0}, ValueError, "`stateful_capacity` must be at least 1, not 0"),
        ({"stateful_capacity": 1.0}, TypeError, "`stateful_capacity` must be an int, not 1.0"),
        ({"max_pending": True}, TypeError, "`max_pending` must be an int, not True"),
        ({"max_pending": None}, TypeError, "`max_pending` must be an int, not None"),
        (
            {"log": "stdout"},
            ValueError,
            "`log` must be one of stderr, json, stdlib, structlog, off or None, not 'stdout'",
        ),
        ({"log": []}, ValueError, r"`log` must be one of .* not \[\]"),
        ({"logger": "app"}, TypeError, "`logger` must be a stdlib or structlog logger, not 'app'"),
        ({"level": "loud"}, ValueError, "`level` must be one of debug, info, warning, error, not 'loud'"),
        ({"level": 10}, ValueError, "`level` must be one of .* not 10"),
        ({"redact": "all"}, TypeError, r"`redact` must be a function of \(path, value\) or None, not 'all'"),
        ({"nonsense": 1}, TypeError, "nonsense"),
    ],
)
def test_what_has_no_meaning_is_refused(given_, error, text):
    """The error names the setting, the value and what it must be; nothing is set, not even what was right."""
    before = current()
    with pytest.raises(error, match=text):
        configure(**{"strict": True, "max_pending": 3, **given_})
    assert before == current()


def test_listeners_hear_what_was_set():
    """Whoever asked is told the names, once per call, after all are set."""
    heard = []

    def listener(names):
        heard.append((names, settings.max_pending))

    module.on_change(listener)
    try:
        configure(max_pending=9, strict=True)
        configure()
    finally:
        module._listeners.remove(listener)
    assert [(frozenset({"max_pending", "strict"}), 9), (frozenset(), 9)] == heard


@given(
    seconds=st.floats(min_value=0, exclude_min=True, allow_nan=False)
    | st.integers(min_value=1, max_value=10**9)
)
def test_any_positive_number_of_seconds(seconds):
    """What is more than nothing is taken, as a float."""
    before = settings.lock_timeout
    configure(lock_timeout=seconds)
    assert float(seconds) == settings.lock_timeout
    assert float is type(settings.lock_timeout)
    settings.lock_timeout = before
