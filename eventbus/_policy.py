"""
The settings of the shipped policies: declared once, and checked wherever a subclass states them.
"""

from __future__ import annotations

import difflib
import inspect
import os
import threading
import weakref
from abc import ABCMeta
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import pairwise
from math import isfinite
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, NoReturn, TypeAlias, TypeVar, cast

from ._gate import ProtectedEvent
from ._hook import _OWN, Hook, _undo, marks_of
from ._report import report_failure
from ._verdict import shown
from .catalog import GateDecisionEvent

T = TypeVar("T")

Check: TypeAlias = Callable[[str, Any], Any]
"""Takes what errors call the setting, and its value; returns the value to keep, or raises by `misfit`."""

_LIKE: Final = 0.7
"""From which ratio of difflib on a method's name is taken for a misspelt setting."""

_MISSING: Final = object()
# To type checkers without what they wrap, which they do not know.
_WRAPPED: Final[Any] = (staticmethod, classmethod)


class Setting:
    """
    One setting of a policy, as the policy's body declares it.

    Attributes:
        default: Its value where no subclass states one; checked like any other.
        check: What its values must be. It must accept what it has returned.
        arguments: The names of what a function given as the value is called with; None if it takes none.
    """

    __slots__ = ("arguments", "check", "default")

    def __init__(self, default: Any, check: Check, arguments: Sequence[str] | None) -> None:
        self.default = default
        self.check = check
        self.arguments = arguments

    def accept(self, where: str, place: str, module: str, value: Any) -> Any:
        """
        Return what a class keeps of a value.

        Args:
            where: What errors call the setting.
            place: The qualified name that a method has which is this setting.
            module: The module of that method.
            value: What the setting was set to.
        """
        if self.arguments is not None and _is_function(value):
            return _as_attribute(where, place, module, value, self.arguments)
        return self.check(where, value)


def setting(default: Any, check: Check, *, arguments: Sequence[str] | None = None) -> Any:
    """
    Declare a setting in the body of a policy, annotated as a class variable.

    Args:
        default: Its value where no subclass states one.
        check: What its values must be.
        arguments: The names of what a function given as the value is called with; None if it takes none.
            `judge = ask` is then called without self, and a `def judge(self, request)` in the body with it.

    Returns:
        What PolicyHook finds in the body; the class has the default in its place.
    """
    return Setting(default, check, arguments)


class PolicyType(ABCMeta):
    """
    The type of policies: a setting that is assigned to the class later is checked as in its body.

    It is an ABCMeta so that a policy may be an abstract base class as well.
    """

    def _assign(cls, name: str, value: Any) -> None:
        super().__setattr__(name, value if name.startswith("_") else _accept(cls, name, value))

    if not TYPE_CHECKING:  # pragma: no branch - a checker that sees it lets any name be assigned
        __setattr__ = _assign


class PolicyHook(Hook, metaclass=PolicyType):
    """
    A hook that decides, and ships abstract: a subclass with its settings as class attributes goes live.

    Beside settings, a subclass may have settings of every hook, handlers, methods and private names. Any
    other attribute is a TypeError that names the nearest setting, and so is a method named almost like one.
    A plain mixin's settings count.
    """

    abstract = True

    _settings: ClassVar[dict[str, Setting]] = {}

    def __init_subclass__(cls, **kwargs: Any) -> None:
        try:
            _check_settings(cls)
        except (TypeError, ValueError):
            first: type[Hook] | None = vars(cls).get(_OWN)
            if first is not None and first.__name__ == cls.__name__:
                # attrs has made the class anew, and what it was made of is live.
                _undo(first)
            raise
        super().__init_subclass__(**kwargs)

    def _assign(self, name: str, value: Any) -> None:
        if not name.startswith("_") and (near := _near(name, self._settings, _LIKE)):
            cls = type(self).__qualname__
            msg = (
                f"{cls}.{name} is set on an instance; settings are class attributes, "
                f"so set `{near}` in {cls}."
            )
            raise TypeError(msg)
        super().__setattr__(name, value)

    if not TYPE_CHECKING:  # pragma: no branch - a checker that sees it lets any name be assigned
        __setattr__ = _assign

    @classmethod
    def _settled(cls) -> None:
        """
        Check how the settings go together: called when all are in place, before the class goes live.
        """

    @classmethod
    def __attrs_init_subclass__(cls) -> None:
        fields: Iterable[Any] = getattr(cls, "__attrs_attrs__", ())
        for field in fields:
            if field.name in cls._settings:
                _undo(cls)
                raise TypeError(_not_a_field(cls, field.name))
        super().__attrs_init_subclass__()


def misfit(where: str, what: str, value: object, error: type[Exception] = TypeError) -> NoReturn:
    """
    Raise the error of a setting whose value does not fit.

    Args:
        where: What errors call the setting.
        what: What it must be.
        value: What it is.
        error: TypeError, or ValueError if only the value is wrong.
    """
    msg = f"{where} must be {what}, not {shown(value)}."
    raise error(msg)


def flag(where: str, value: Any) -> bool:
    """
    Accept True or False.
    """
    if not isinstance(value, bool):
        misfit(where, "True or False", value)
    return value


def text(where: str, value: Any) -> str:
    """
    Accept a string.
    """
    if not isinstance(value, str):
        misfit(where, "a string", value)
    return value


def whole(least: int) -> Check:
    """
    Accept an int from `least` on.
    """

    def check(where: str, value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int):
            misfit(where, f"an int of at least {least}", value)
        if value < least:
            misfit(where, f"an int of at least {least}", value, ValueError)
        return value

    return check


def number(least: float, unit: str = "") -> Check:
    """
    Accept a finite int or float from `least` on.
    """
    what = f"a number{unit and f' of {unit}'} of at least {least:g}"

    def check(where: str, value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            misfit(where, what, value)
        if not (isfinite(value) and value >= least):
            misfit(where, what, value, ValueError)
        return value

    return check


def listed(value: Any) -> list[Any] | None:
    """
    Return what is in a collection; None if it is none, or a string or a mapping.
    """
    if isinstance(value, (str, bytes, Mapping)) or not isinstance(value, Collection):
        return None
    return list(value)  # pyright: ignore[reportUnknownArgumentType]  # of anything


def names(where: str, value: Any) -> frozenset[str]:
    """
    Accept a collection of names, and keep a set of its own that nobody can change.
    """
    what = 'a collection of names, as in {"shell"}'
    given = listed(value)
    if given is None:
        misfit(where, what, value)
    if not all(isinstance(name, str) for name in given):
        misfit(where, what, given)
    if not all(name and name == name.strip() for name in given):
        misfit(where, f"{what}, none of them empty or with space around it", given, ValueError)
    return frozenset(given)


def optional(check: Check) -> Check:
    """
    Accept None, and what `check` accepts.
    """

    def accept(where: str, value: Any) -> Any:
        return None if value is None else check(where, value)

    return accept


def function(where: str, value: Any) -> NoReturn:
    """
    Accept nothing but the functions that a setting takes anyway.
    """
    misfit(where, "a function, or an object that can be called", value)


def warn(hook: PolicyHook, handler: str, gate: ProtectedEvent, reason: str) -> None:
    """
    Tell as a GateDecisionEvent what a policy has noticed and lets pass.

    Args:
        hook: The policy.
        handler: The name of its handler.
        gate: What it judges.
        reason: What it has noticed.
    """
    GateDecisionEvent.emit(
        correlation_id=gate.correlation_id,
        run=gate.get("run"),
        gate=type(gate).__name__,
        by=f"{type(hook).__name__}.{handler}",
        action="warn",
        reason=reason,
        applied=not hook.shadow,
        tool_call=gate.get("tool_call"),
    )


def report(hook: PolicyHook, handler: str, gate: ProtectedEvent, error: Exception) -> None:
    """
    Report what failed inside a policy's handler, which has an answer to it and does not raise.

    Args:
        hook: The policy.
        handler: The name of its handler.
        gate: What it judges.
        error: What was raised.
    """
    cls = type(hook)
    report_failure(
        hook=cls.__name__,
        handler=f"{cls.__name__}.{handler}",
        event=gate,
        error=error,
        key=(id(cls), handler),
    )


class Locked:
    """
    What a policy keeps, behind a lock of its own.
    """

    __slots__ = ("__weakref__", "_lock")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        _locked.add(self)

    def after_fork(self) -> None:  # pragma: no cover - in a forked child, which ends without a report
        """
        Forget a thread that held the lock in the parent.
        """
        self._lock = threading.Lock()


_locked: weakref.WeakSet[Locked] = weakref.WeakSet()


def _after_fork() -> None:  # pragma: no cover - in a forked child, which ends without a report
    for one in _locked:
        one.after_fork()


os.register_at_fork(after_in_child=_after_fork)


class Recent(Locked, Generic[T]):
    """
    The last values that were added. Every method is safe to call from any thread.
    """

    __slots__ = ("_values",)

    def __init__(self, limit: int) -> None:
        super().__init__()
        self._values: deque[T] = deque(maxlen=limit)

    def add(self, value: T) -> None:
        """
        Add a value; beyond the limit the oldest one goes.
        """
        with self._lock:
            self._values.append(value)

    def all(self) -> tuple[T, ...]:
        """
        Return what is kept, the oldest first.
        """
        with self._lock:
            return tuple(self._values)


def _check_settings(cls: type[PolicyHook]) -> None:
    declared = {name: value for name, value in vars(cls).items() if isinstance(value, Setting)}
    if declared:
        cls._settings = {**cls._settings, **declared}
        for name, value in declared.items():
            setattr(cls, name, value.default)
    _check_bases(cls)
    _check_annotations(cls)
    for name, value in list(vars(cls).items()):
        if not name.startswith("_"):
            setattr(cls, name, value)
    for base in _mixins(cls):
        _take_over(cls, base)
    cls._settled()


def _accept(cls: type, name: str, value: Any) -> Any:
    if name in vars(Hook):
        return value
    policy = cast("type[PolicyHook]", cls)
    where = f"{cls.__qualname__}.{name}"
    _refuse_accident(policy, where, name)
    if marks_of(value):
        return value
    setting = policy._settings.get(name)
    if setting is not None:
        if inspect.ismemberdescriptor(value):
            # By attrs, which has made the class anew with slots.
            raise TypeError(_not_a_field(cls, name))
        return setting.accept(where, where, cls.__module__, value)
    inherited = next((vars(base)[name] for base in cls.__mro__[1:] if name in vars(base)), _MISSING)
    if inherited is not _MISSING:
        # A handler may be dropped with None, and a method replaced.
        if value is None or _is_code(value) or not _is_code(inherited):
            return value
        msg = f"{where} is a method of {_shipped(policy)} and no setting; {_known(policy)}."
        raise TypeError(msg)
    _refuse_unknown(policy, where, name, value)
    return value


def _refuse_accident(policy: type[PolicyHook], where: str, name: str) -> None:
    # A method of one's own that happens to be named like a handler of the policy would switch that one off.
    if vars(policy).get("replaces") is True:
        return
    for base in policy.__mro__[1:]:
        if name in vars(base):
            if "_settings" in vars(base) and marks_of(vars(base)[name]):
                msg = (
                    f"{where} would switch off a handler of {base.__name__}; give it another name, or say "
                    f"`replaces = True` in {policy.__qualname__} if that is what you want."
                )
                raise TypeError(msg)
            return


def _refuse_unknown(policy: type[PolicyHook], where: str, name: str, value: object) -> None:
    is_code = _is_code(value)
    known = list(policy._settings)
    if not is_code:
        known += [name for name in Hook.__annotations__ if not name.startswith("_")]
    near = _near(name, known, _LIKE if is_code else 0.5)
    within = sorted(vars(value).keys() & policy._settings) if isinstance(value, type) else []
    if within:
        owner = policy.__qualname__
        msg = f"{where} has `{within[0]}` in it, which does not count; write it in {owner} itself."
        raise TypeError(msg)
    if is_code and (not near or "_settings" in vars(policy)):
        # A policy's own method may be named like its settings are.
        return
    hint = f"Did you mean `{near}`?" if near else f"{_known(policy).capitalize()}."
    msg = f"{where} is no setting of {_shipped(policy)}. {hint} Names of your own start with an underscore."
    raise TypeError(msg)


def _near(name: str, known: Iterable[str], cutoff: float) -> str | None:
    # In any case of letters: settings are lower case.
    near = difflib.get_close_matches(name.lower(), list(known), n=1, cutoff=cutoff)
    return near[0] if near else None


def _known(policy: type[PolicyHook]) -> str:
    return f"its settings are {', '.join(sorted(policy._settings)) or 'none'}"


def _shipped(policy: type[PolicyHook]) -> str:
    return next(base.__name__ for base in policy.__mro__ if "_settings" in vars(base))


def _is_code(value: object) -> bool:
    return callable(value) or _is_descriptor(value)


def _is_descriptor(value: object) -> bool:
    return hasattr(type(value), "__get__")


def _is_function(value: object) -> bool:
    # A class is a value: a type of error, or a mistake.
    return isinstance(value, _WRAPPED) or (callable(value) and not isinstance(value, type))


def _as_attribute(where: str, place: str, module: str, value: Any, arguments: Sequence[str]) -> Any:
    # A `def` in the body has the name of its place; a lambda, a partial or a function from elsewhere has not,
    # and is kept from becoming a method.
    named = (getattr(value, "__qualname__", None), getattr(value, "__module__", None)) == (place, module)
    is_method = named and _is_descriptor(value) and getattr(value, "__self__", None) is None
    kept: Any = value
    inner: Any = value
    if isinstance(value, _WRAPPED):
        is_method, inner = isinstance(value, classmethod), value.__func__
    elif not is_method:
        kept = staticmethod(value)
    try:
        signature = inspect.signature(inner)
    except (TypeError, ValueError):
        # Some functions of extension modules do not tell.
        pass
    else:
        try:
            signature.bind(*(["self"] if is_method else []), *arguments)
        except TypeError as error:
            taken = ", ".join(["self"] * is_method + list(arguments))
            msg = (
                f"{where} will be called with ({taken}), and cannot be: {error}. "
                "A method in the body takes self first, a function given as the value does not."
            )
            raise TypeError(msg) from None
    return kept


def _check_bases(cls: type[PolicyHook]) -> None:
    # A handler of the one could take the place of one of the other.
    shipped = [base for base in cls.__mro__ if "_settings" in vars(base)]
    for one, other in pairwise(shipped):
        if not issubclass(one, other):
            msg = f"{cls.__qualname__} is both {one.__name__} and {other.__name__}; define a hook for each."
            raise TypeError(msg)


def _check_annotations(cls: type[PolicyHook]) -> None:
    for name in inspect.get_annotations(cls):
        if name in cls._settings and name not in vars(cls):
            msg = f"{cls.__qualname__}.{name} has an annotation and no value; write `{name} = ...`."
            raise TypeError(msg)


def _not_a_field(cls: type, name: str) -> str:
    return (
        f"{cls.__qualname__}.{name} is a field of each instance; settings are class attributes, so write "
        f"`{name} = ...` without an annotation."
    )


def _mixins(cls: type[PolicyHook]) -> list[type]:
    return [
        base for base in cls.__mro__ if not issubclass(base, PolicyHook) and not issubclass(PolicyHook, base)
    ]


def _take_over(cls: type[PolicyHook], mixin: type) -> None:
    # What a mixin says is checked here, because nothing checks it where it stands.
    for name, value in list(vars(mixin).items()):
        setting = cls._settings.get(name)
        where = f"{mixin.__qualname__}.{name}"
        if setting is None:
            if not name.startswith("_") and not _is_code(value):
                near = _near(name, cls._settings, _LIKE)
                if near:
                    msg = f"{where} is no setting of {_shipped(cls)}. Did you mean `{near}`?"
                    raise TypeError(msg)
            continue
        owner = next(base for base in cls.__mro__ if name in vars(base))
        if owner is mixin:
            type.__setattr__(cls, name, setting.accept(where, where, mixin.__module__, value))
        elif name in vars(owner).get("_settings", ()):
            msg = (
                f"{where} would not count: {owner.__name__} has its own `{name}` and comes first; name "
                f"{mixin.__qualname__} before it in the bases of {cls.__qualname__}."
            )
            raise TypeError(msg)
