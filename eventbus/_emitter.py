"""
The compiled `emit` of an event class: a function with the event's fields as its keyword parameters.

Python itself then checks what is missing, at no cost and in its own words, and an emit that nobody listens to
is over after one look at the plan.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import attrs

from . import _clock, _dispatch
from ._context import correlation_id_var
from ._readonly import FREEZERS, freeze
from ._stateful import end_run

if TYPE_CHECKING:
    from ._registry import Topic

Field: TypeAlias = Any
"""An `attrs.Attribute` that is done: attrs types what it fills in as missing, or as of unknown type."""

OWN_FIELDS: Final = ("correlation_id", "timestamp")

BUILD: Final = "_build"
"""The function that builds an event as `emit` does, and leaves it at that."""

_OF_RUN: Final = " _eb_cid = _eb_current() if correlation_id is None else correlation_id"

SCALARS: Final = frozenset({"str", "int", "float", "bool", "bytes", "complex", "None", "NoneType"})


def is_scalar(annotation: object) -> bool:
    """
    Tell whether values of a field annotated like this need no protection against writing.
    """
    text = annotation.__name__ if isinstance(annotation, type) else str(annotation)
    return all(part.strip() in SCALARS for part in text.split("|"))


def all_fields(cls: type) -> tuple[Field, ...]:
    """
    Return the fields of an event class.
    """
    fields: tuple[Field, ...] = attrs.fields(cls)
    return fields


def payload_fields(cls: type) -> tuple[Field, ...]:
    """
    Return the fields of an event class that are its payload.
    """
    return tuple(field for field in all_fields(cls) if field.name not in OWN_FIELDS)


def is_plain(cls: type, fields: tuple[Field, ...]) -> bool:
    """
    Tell whether an event can be built by storing its fields: nothing validates or computes them.
    """
    if any(hasattr(cls, name) for name in ("__attrs_pre_init__", "__attrs_post_init__")):
        return False
    return all(
        field.init
        and not isinstance(field.converter, attrs.Converter)
        and field.validator is None
        and not (is_factory(field.default) and field.default.takes_self)
        # Slots, and whatever else does not look into the instance's dict.
        and not hasattr(inspect.getattr_static(cls, field.name, None), "__set__")
        for field in fields
    )


def needs_freezing(field: Field) -> bool:
    """
    Tell whether the values of a field may be dicts or lists, as far as it is annotated.
    """
    return field.converter is not None or not is_scalar(field.type)


def is_factory(default: Any) -> bool:
    """
    Tell whether a field's default is made anew for each event.
    """
    return isinstance(default, attrs.Factory)  # type: ignore[arg-type]  # typed as a function, is a class


def compile_emit(
    topic: Topic, name: str, *, always: bool, ends_run: bool, custom: bool
) -> Callable[..., Any]:
    """
    Compile `emit`, its awaiting twin `aemit`, or the `_build` of gates, for one event class.

    Args:
        topic: The event class's; its namespace becomes the globals of the function.
        name: "emit", "aemit" or "_build".
        always: Whether the event is built even for nobody, and returned.
        ends_run: Whether the event ends its run.
        custom: Whether the class is built in a way of its own, which must not be gone around.

    Returns:
        A function with the payload's fields, `correlation_id` and `timestamp` as keyword parameters. Keys
        that are no field are kept as raw payload.
    """
    cls = topic.cls
    prefix = "a" if name == "aemit" else ""
    fields = payload_fields(cls)
    namespace = topic.namespace
    namespace.update(
        _eb_cls=cls,
        _eb_new=object.__new__,
        _eb_topic=topic,
        _eb_current=correlation_id_var.get,
        _eb_clock=_clock,
        _eb_freeze=freeze,
        _eb_FREEZERS=FREEZERS,
        _eb_type=type,
        _eb_nothing=attrs.NOTHING,
        _eb_end=end_run,
        _eb_deliver=_dispatch.deliver,
        _eb_deliver_within=_dispatch.deliver_within,
        _eb_adeliver=_dispatch.adeliver,
        _eb_adeliver_within=_dispatch.adeliver_within,
    )
    given = tuple(field for field in fields if field.init)
    for field in given:
        if field.converter is not None:
            namespace[f"_eb_converter_{field.alias}"] = field.converter
        if field.default is not attrs.NOTHING:
            made = is_factory(field.default)
            namespace[f"_eb_default_{field.alias}"] = attrs.NOTHING if made else field.default
            if made:
                namespace[f"_eb_factory_{field.alias}"] = field.default.factory

    lines = [f"{'async ' if prefix else ''}def {name}({_parameters(given)}):"]
    lines += [_OF_RUN] if name == BUILD else _planned(always=always, ends_run=ends_run)
    hidden = {field.name: field.alias for field in fields if not field.init or field.alias != field.name}
    if hidden:
        namespace["_eb_check"] = functools.partial(check_raw, cls.__qualname__, hidden)
        lines += [" if _eb_extra:", "  _eb_check(_eb_extra)"]
    lines += _stored(fields) if is_plain(cls, fields) and not custom else _constructed(given)
    lines += [
        " if _eb_extra:",
        '  _eb_event.__dict__["_extra"] = {k: _eb_freeze(v) for k, v in _eb_extra.items()}',
        " _eb_topic.built += 1",
    ]
    if name != BUILD:
        lines += _delivered(f"{'await ' if prefix else ''}_eb_{prefix}deliver", ends_run=ends_run)
    if always:
        lines += [' _eb_event.__dict__.pop("_author", None)', " return _eb_event"]
    code = compile("\n".join(lines), f"<eventbus {name} of {cls.__qualname__}>", "exec", dont_inherit=True)
    exec(code, namespace)  # noqa: S102 - the text above, with names that Python took as identifiers
    function: Callable[..., Any] = namespace.pop(name)
    function.__qualname__ = f"{cls.__qualname__}.{name}"
    function.__module__ = cls.__module__
    return function


def _planned(*, always: bool, ends_run: bool) -> list[str]:
    lines = [" _eb_plan = _eb_PLAN"]
    if always:
        lines += [" if _eb_plan is None:", "  _eb_plan = _eb_topic.renew()"]
    else:
        lines += [
            " if not _eb_plan:",
            "  if _eb_plan is None:",
            "   _eb_plan = _eb_topic.renew()",
            "  if not _eb_plan and not _eb_KEYED:",
        ]
        if ends_run:
            lines += ["   return _eb_end(_eb_current() if correlation_id is None else correlation_id)"]
        else:
            lines += ["   return None"]
    lines += [
        _OF_RUN,
        # Read once: another thread may take the index away.
        " _eb_keyed = _eb_KEYED",
        " if _eb_keyed:",
        "  _eb_plan = _eb_keyed.plan_for(_eb_cid, _eb_plan)",
    ]
    if not always:
        lines += ["  if not _eb_plan:", "   return " + ("_eb_end(_eb_cid)" if ends_run else "None")]
    return lines


def _delivered(call: str, *, ends_run: bool) -> list[str]:
    lines = [
        " try:" if ends_run else " if True:",
        "  if correlation_id is None or correlation_id == _eb_current():",
        f"   {call}(_eb_plan, _eb_event)",
        "  else:",
        f"   {call}_within(_eb_plan, _eb_event)",
    ]
    if ends_run:
        lines += [" finally:", "  _eb_end(_eb_cid)"]
    return lines


def check_raw(name: str, hidden: dict[str, str], extra: dict[str, Any]) -> None:
    """
    Refuse a raw key that is the name of a field which emit does not take by that name.

    Args:
        name: The event class's.
        hidden: The alias of each such field.
        extra: The raw payload.

    Raises:
        TypeError: If there is one; two values of one name would be told apart by nobody.
    """
    for key in hidden.keys() & extra.keys():
        fix = "is not to be given" if hidden[key] == key else f"is given as `{hidden[key]}`"
        msg = f"{name}.emit() got `{key}`, a field that {fix}."
        raise TypeError(msg)


def _parameters(fields: tuple[Field, ...]) -> str:
    names = [
        field.alias if field.default is attrs.NOTHING else f"{field.alias}=_eb_default_{field.alias}"
        for field in fields
    ]
    return ", ".join(["*", *names, "correlation_id=None", "timestamp=None", "**_eb_extra"])


def _stored(fields: tuple[Field, ...]) -> list[str]:
    lines = [
        " _eb_event = _eb_new(_eb_cls)",
        " _eb_dict = _eb_event.__dict__",
        ' _eb_dict["correlation_id"] = _eb_cid',
        ' _eb_dict["timestamp"] = _eb_clock.time() if timestamp is None else timestamp',
    ]
    for field in fields:
        value = field.alias
        if is_factory(field.default):
            lines.append(f" if {value} is _eb_nothing: {value} = _eb_factory_{value}()")
        if field.converter is not None:
            lines.append(f" {value} = _eb_converter_{value}({value})")
        if needs_freezing(field):
            # As `freeze` does, without its call.
            lines.append(f" if _eb_type({value}) in _eb_FREEZERS: {value} = _eb_freeze({value})")
        lines.append(f' _eb_dict["{field.name}"] = {value}')
    return lines


def _constructed(fields: tuple[Field, ...]) -> list[str]:
    arguments = [f"{field.alias}={field.alias}" for field in fields]
    arguments += ["correlation_id=_eb_cid", "timestamp=_eb_clock.time() if timestamp is None else timestamp"]
    return [f" _eb_event = _eb_cls({', '.join(arguments)})"]
