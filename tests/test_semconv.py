"""
The names that telemetry uses are those of the conventions, and documented.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from opentelemetry.semconv.attributes import error_attributes, exception_attributes

from eventbus import _semconv as names

DOCUMENT = Path(__file__).parents[1] / "docs" / "telemetry.md"

NEWER = {"gen_ai.usage.cache_write.input_tokens", "gen_ai.token.modality"}
"""Names of the conventions that came, or changed, after those were moved to a repository of their own."""

STRINGS = {key: value for key, value in vars(names).items() if isinstance(value, str) and key.isupper()}
ATTRIBUTES = {value for value in STRINGS.values() if "." in value and not value.endswith(".exception")}
SETTINGS = {attribute for attribute, _ in names.REQUEST_SETTINGS.values()}
INSTRUMENTS = [value for value in vars(names).values() if isinstance(value, names.Instrument)]


def known(module):
    """Return the names that a module of the semantic conventions has."""
    return {value for name, value in vars(module).items() if name.isupper() and isinstance(value, str)}


def test_they_are_the_conventions():
    """Every attribute outside our own namespace is one of OpenTelemetry's."""
    gen_ai_attributes = pytest.importorskip(
        "opentelemetry.semconv._incubating.attributes.gen_ai_attributes",
        reason="this version of the package has no names of these conventions any more",
    )
    if not hasattr(gen_ai_attributes, "GEN_AI_USAGE_REASONING_OUTPUT_TOKENS"):
        pytest.skip("this version of the package does not have all of these conventions")
    theirs = {name for name in ATTRIBUTES | SETTINGS if not name.startswith("eventbus.")}
    convention = known(gen_ai_attributes) | known(error_attributes) | known(exception_attributes)
    assert NEWER == theirs - convention


def test_the_buckets_are_the_conventions():
    """Boundaries are as written there, to the digit."""
    seconds = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92)
    assert seconds == names.INFERENCE_DURATION.boundaries == names.TOOL_DURATION.boundaries
    longer = (0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 51.2, 102.4, 204.8, 409.6)
    assert longer == names.AGENT_DURATION.boundaries
    tokens = (1, 4, 16, 64, 256, 1024, 4096, 16384, 65536, 262144, 1048576, 4194304, 16777216, 67108864)
    assert tokens == names.CALL_INPUT_TOKENS.boundaries == names.CALL_OUTPUT_TOKENS.boundaries
    assert (1, 2, 4, 8, 16, 32, 64, 128) == names.INFERENCE_CALLS.boundaries == names.TOOL_CALLS.boundaries


@pytest.mark.skipif(not DOCUMENT.exists(), reason="there is no checkout beside these tests")
def test_they_are_documented():
    """The page has each attribute, event and metric."""
    events = {value for value in STRINGS.values() if value.endswith(".exception")}
    metrics = {one.name for one in [*INSTRUMENTS, *names.USED.values()]}
    documented = set(re.findall(r"`([\w.]+)`", DOCUMENT.read_text(encoding="utf-8")))
    assert set() == (ATTRIBUTES | SETTINGS | events | metrics) - documented
