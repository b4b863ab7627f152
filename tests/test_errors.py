"""
The exceptions of the package: one tree, each also a built-in.
"""

from __future__ import annotations

import builtins
import pickle

import pytest

from eventbus import EventbusError, RefusedError, _errors

CLASSES = [value for value in vars(_errors).values() if isinstance(value, type)]


@pytest.mark.parametrize("cls", CLASSES)
def test_each_is_also_a_built_in(cls):
    """Code that knows nothing of eventbus can catch what it raises; code that does catches all."""
    assert issubclass(cls, EventbusError)
    assert cls is EventbusError or any(
        base is getattr(builtins, base.__name__, None) for base in cls.__mro__[1:-3]
    )


@pytest.mark.parametrize("cls", [cls for cls in CLASSES if issubclass(cls, RefusedError)])
def test_a_refusal_keeps_its_author(cls):
    """The reason is the text, verbatim; reason and author survive a pickle."""
    error = pickle.loads(pickle.dumps(cls("over limit", "Guard.check")))
    assert ("over limit", "over limit", "Guard.check") == (str(error), error.reason, error.by)
    assert cls("why").by is None


def test_an_ambiguous_id_keeps_its_candidates():
    """They survive a pickle."""
    error = pickle.loads(pickle.dumps(_errors.AmbiguousRunError("two begin so", ["abc", "abd"])))
    assert ("two begin so", ("abc", "abd")) == (str(error), error.candidates)
