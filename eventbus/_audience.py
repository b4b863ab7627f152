"""
Whether anybody hears one of some event classes, looked up again only after who listens has changed.
"""

from __future__ import annotations

from . import _registry


class Audience:
    """
    Those who hear any of some event classes, as far as it matters whether there are any.

    Args:
        *classes: The event classes.
    """

    __slots__ = ("_classes", "_empty_at", "_found_at")

    def __init__(self, *classes: type) -> None:
        self._classes = classes
        self._empty_at: object = None
        self._found_at: object = None

    def is_empty(self) -> bool:
        """
        Tell whether nobody would receive any of the events, of whatever run.
        """
        # Read before it is looked: a change meanwhile gives another version, and one more look.
        version = _registry.state.version
        if self._empty_at is version:
            return True
        if self._found_at is version:
            return False
        if any(_registry.topic_of(cls).has_receivers() for cls in self._classes):
            self._found_at = version
            return False
        self._empty_at = version
        return True
