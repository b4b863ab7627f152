"""
What has become of the hooks since a test or a fixture began, and how it is undone.
"""

from __future__ import annotations

import sys
from collections.abc import Container, Mapping
from typing import TypeAlias

from ._hook import _KEY, Hook, HookInfo, hooks

States: TypeAlias = dict[type[Hook], bool | None]
"""Whether each hook is to be live, though a subclass may have retired it; None if it is not there."""


class Registered:
    """
    Which hooks are registered at one moment, to be compared with later ones.
    """

    def __init__(self) -> None:
        self._states = _states()
        self._modules = set(sys.modules)

    def changes(self) -> States:
        """
        Return what each hook has become that is not as it was.
        """
        now = _states()
        return {cls: now.get(cls) for cls in {**self._states, **now} if now.get(cls) != self._states.get(cls)}

    def accept(self, changes: Mapping[type[Hook], bool | None]) -> None:
        """
        Take changes for what was there: somebody else answers for them.
        """
        self._states.update(changes)

    def put_back(self, who: str, fix: str, *, only: Container[type[Hook]] | None = None) -> list[str]:
        """
        Undo what has changed.

        The hooks of a module are its own, also if it was imported or reloaded since. A hook that is there no
        more was on a bus that is gone, or was defined again.

        Args:
            who: Who has changed it, as a sentence begins.
            fix: What to do about it, as a sentence begins that ends in "unregister them".
            only: Whose changes; those of any hook by default.

        Returns:
            A sentence for each kind of change; none if there was none.
        """
        changed = {cls: state for cls, state in self.changes().items() if only is None or cls in only}
        behind = [cls for cls, state in changed.items() if state and not self._is_of_a_module(cls)]
        missing = [cls for cls, state in changed.items() if state is False and self._states.get(cls)]
        places = {info.cls: _place(info) for info in hooks()}
        # What has taken the place of another, which is there no more.
        keys = {cls.__dict__[_KEY] for cls in behind}
        replaced = [
            cls
            for cls, state in changed.items()
            if state is None and self._states.get(cls) and cls.__dict__[_KEY] in keys
        ]
        for cls in behind:
            cls.unregister()
        stays: list[str] = []
        for cls in (*missing, *replaced):
            try:
                cls.register()
            except TypeError as error:
                # A subclass that is live now would be retired, or would retire it, against its guards.
                stays.append(f"{cls.__qualname__} stays so: {error}")
        sentences = [
            f"{who} left hooks {how}: {', '.join(places[cls] for cls in found)}. {fix} {undo} them."
            for how, found, undo in (
                ("behind", behind, "unregister"),
                ("unregistered", missing, "register"),
            )
            if found
        ]
        return sentences + stays

    def _is_of_a_module(self, cls: type[Hook]) -> bool:
        if self._states.get(cls) is not None:
            return False
        held: object = sys.modules.get(cls.__module__)
        if held is not None and cls.__module__ not in self._modules:
            return True
        for name in cls.__qualname__.split("."):
            held = getattr(held, "__dict__", {}).get(name)
        return held is cls


def _states() -> States:
    return {info.cls: info.state in {"live", "retired"} for info in hooks()}


def _place(info: HookInfo) -> str:
    return info.name if info.file is None else f"{info.name} ({info.file}:{info.line})"
