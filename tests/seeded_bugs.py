"""
Bugs for the bus, each applied while a context is open, with the invariant that must catch it.
"""

from __future__ import annotations

import contextlib
import contextvars
import copy
import inspect
import threading
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

from eventbus import (
    Hook,
    _dispatch,
    _emitter,
    _event,
    _gate,
    _hook,
    _registry,
    _scheduler,
    _settings,
    _shared,
    _stateful,
    _subscribe,
)

Bug = Callable[[], contextlib.AbstractContextManager[Any]]

BUGS: dict[str, tuple[Bug, str]] = {}
"""Each bug by its name, with the invariant that catches it."""


def bug(caught_by: str) -> Callable[[Bug], Bug]:
    def add(made: Bug) -> Bug:
        BUGS[made.__name__] = (made, caught_by)
        return made

    return add


def put(place: Any, name: str, value: Any) -> contextlib.AbstractContextManager[Any]:
    """Put a bug in the place of something, for a while."""
    return mock.patch.object(place, name, value)


def nothing(*_: Any, **__: Any) -> None:
    """Do nothing."""


# --- who receives, and in which order ---


@bug("handlers_run_in_order")
def priorities_count_for_nothing():
    return put(_registry.Receiver, "place", property(lambda self: (0, self.order)))


@bug("handlers_run_in_order")
def the_latest_comes_first():
    return put(_registry.Receiver, "place", property(lambda r: (r.priority, (-r.order[0], r.order[1]))))


@bug("handlers_run_in_order")
def the_handlers_of_a_hook_run_backwards():
    return put(_registry.Receiver, "place", property(lambda r: (r.priority, (r.order[0], -r.order[1]))))


@bug("handlers_run_in_order")
def after_gates_run_in_the_same_order():
    real = _registry.compile_plan

    def compile_plan(topic, receivers):
        plan = real(topic, receivers)
        return _registry.Plan(reversed([*plan.in_order()])) if topic.reverse else plan

    return put(_registry, "compile_plan", compile_plan)


@bug("handlers_run_in_order")
def a_redefined_hook_goes_to_the_end():
    real = _hook._put

    def _put(cls, handlers, changes):
        entry = _registry.state.hooks.get(cls.__dict__[_hook._KEY])
        if entry is not None:
            entry.order = _hook.next_order()
        real(cls, handlers, changes)

    return put(_hook, "_put", _put)


@bug("nobody_is_reached_twice")
def two_subscriptions_are_two_deliveries():
    def target_of(fn):
        return object()

    return _both(put(_subscribe, "target_of", target_of), put(_registry, "target_of", target_of))


@contextlib.contextmanager
def _both(*bugs: contextlib.AbstractContextManager[Any]) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        for one in bugs:
            stack.enter_context(one)
        yield


@bug("nobody_is_reached_twice")
def a_handler_of_two_classes_is_reached_for_each():
    real = _registry.compile_plan

    def compile_plan(topic, receivers):
        plan = real(topic, receivers)
        steps = plan.in_order()
        doubled = [step for step in steps if step[2].hook is not None]
        return _registry.Plan([*steps, *doubled]) if len(plan) > 2 else plan

    return put(_registry, "compile_plan", compile_plan)


@bug("nobody_is_reached_who_does_not_listen")
def a_subscription_to_a_run_hears_all():
    def plan_for(self, cid, common):
        signals = [_registry.state.signals[c] for c in self.topic.cls.__mro__ if c in _registry.state.signals]
        extra = [r for signal in signals for ours in signal.keyed.values() for r in ours.values()]
        return _registry.compile_plan(self.topic, [*(r for s in signals for r in s.everyone()), *extra])

    return put(_registry.Keyed, "plan_for", plan_for)


@bug("nobody_is_reached_who_does_not_listen")
def a_cancelled_run_subscription_stays_in_the_plan():
    return put(_registry, "rekey", nothing)


@bug("nobody_is_reached_who_does_not_listen")
def predicates_are_not_asked():
    real = _registry.compile_plan

    def compile_plan(topic, receivers):
        steps = real(topic, receivers).in_order()
        return _registry.Plan((None, call, one) for _, call, one in steps)

    return put(_registry, "compile_plan", compile_plan)


@bug("nobody_is_left_out")
def a_change_is_seen_by_its_own_class_only():
    def invalidate(cls):
        _registry.topic_of(cls).namespace[_registry.PLAN] = None

    return _both(put(_registry, "invalidate", invalidate), put(_hook, "invalidate", invalidate))


@bug("nobody_is_left_out")
def a_base_class_does_not_hear_its_subclasses():
    real = _registry.Topic.renew

    def renew(self):
        signals = _registry.state.signals
        hidden = {c: signals.pop(c) for c in self.cls.__mro__[2:] if c in signals}
        try:
            return real(self)
        finally:
            signals.update(hidden)

    return put(_registry.Topic, "renew", renew)


@bug("nobody_is_left_out")
def a_failing_handler_stops_the_others():
    real = _event.Event._failed

    def _failed(self, receiver, error, errors):
        real(self, receiver, error, errors)
        raise Stop

    return _both(
        put(_event.Event, "_failed", _failed), put(_dispatch, "deliver", _stopping(_dispatch.deliver))
    )


class Stop(BaseException):
    """Stops a delivery, and goes no further."""


def _stopping(real: Any) -> Any:
    def deliver(plan, event):
        with contextlib.suppress(Stop):
            real(plan, event)

    return deliver


@bug("nobody_is_left_out")
def a_change_counts_in_the_middle_of_a_delivery():
    real = _dispatch.deliver

    def deliver(plan, event):
        if not event._fails_open:
            real(plan, event)
            return
        seen = set()
        while True:
            now = _registry.topic_of(type(event)).plan_for(event.correlation_id)
            following = [step for step in now.in_order() if step[2].target not in seen]
            if not following:
                return
            seen.add(following[0][2].target)
            real(_registry.Plan(following[:1]), event)

    return put(_dispatch, "deliver", deliver)


# --- hooks ---


@bug("hooks_shows_what_is_registered")
def a_specialised_hook_stays_live():
    return put(_hook, "_entries", lambda keys: [])


@bug("hooks_shows_what_is_registered")
def a_redefined_hook_is_another():
    real = Hook.__init_subclass__.__func__

    def __init_subclass__(cls, **kwargs):
        cls.__qualname__ += ".<locals>"
        real(cls, **kwargs)

    return put(Hook, "__init_subclass__", classmethod(__init_subclass__))


@bug("nobody_is_reached_who_does_not_listen")
def a_retired_hook_stays_connected():
    real = _hook.HookEntry.disconnect

    def disconnect(self, changes):
        receivers = list(self.receivers)
        real(self, changes)
        changes.wiring = [one for one in changes.wiring if one[1] not in receivers]

    return put(_hook.HookEntry, "disconnect", disconnect)


@bug("nobody_is_reached_who_does_not_listen")
def a_dropped_handler_still_runs():
    real = _hook._handlers_of

    def _handlers_of(cls):
        marked = {handler.name for handler in real(cls)}
        dropped = []
        for base in cls.__mro__[1:]:
            for name, value in vars(base).items():
                if _hook.marks_of(value) and name not in marked:
                    marked.add(name)
                    setattr(cls, name, value)
                    dropped += [_hook.Handler(name, mark) for mark in _hook.marks_of(value)]
        return [*real(cls), *dropped]

    return put(_hook, "_handlers_of", _handlers_of)


@bug("the_latest_definition_is_found")
def the_first_definition_is_found():
    real = _event._install

    def _install(cls, topic):
        channels = _registry.state.channels
        before = channels.get(topic.channel, cls)
        real(cls, topic)
        channels[topic.channel] = before

    return put(_event, "_install", _install)


@bug("has_receivers_tells_whether_anybody_listens")
def somebody_always_listens():
    return put(_registry.Topic, "has_receivers", lambda self: True)


@bug("no_guard_is_switched_off_by_accident")
def a_guard_is_retired_without_a_word():
    return put(_hook, "_check_replaces", nothing)


# --- instances ---


@bug("one_instance_per_run")
def an_ended_run_is_not_evicted():
    return _both(put(_emitter, "end_run", nothing), put(_event, "end_run", nothing))


@bug("nothing_is_kept_of_an_ended_run")
def the_lock_of_an_ended_run_is_kept():
    def end_run(cid):
        for table in _registry.state.tables.values():
            table.by_run.pop(cid, None)

    return _both(put(_emitter, "end_run", end_run), put(_event, "end_run", end_run))


@bug("one_instance_per_run")
def a_run_with_nobody_listening_is_not_evicted():
    real = _emitter.compile_emit

    def compile_emit(topic, name, *, ends_run, **rest):
        return real(topic, name, ends_run=False, **rest)

    return put(_event, "compile_emit", compile_emit)


@bug("one_instance_per_run")
def the_capacity_is_not_kept():
    return put(_stateful.Instances, "_make_room", nothing)


@bug("one_instance_per_run")
def the_most_recently_used_goes_first():
    real = _stateful.Instances._make_room

    def _make_room(self):
        real(self)
        if len(self.by_run) > 1:
            self.by_run.popitem(last=False)

    return put(_stateful.Instances, "_make_room", _make_room)


@bug("one_instance_per_run")
def all_runs_share_an_instance():
    real = _stateful.Instances.bind

    def bind(self, method, name):
        shared = []

        def of_all(_, event):
            if not shared:
                shared.append(self._hook())
            return method(shared[0], event)

        return real(self, of_all, name)

    return put(_stateful.Instances, "bind", bind)


@bug("one_instance_per_event")
def each_handler_has_an_instance_of_its_own():
    return put(_registry, "_shared_instance", lambda receiver, when, *, ends: _guarded(receiver, when, ends))


def _guarded(receiver: Any, when: Any, ends: bool) -> Any:
    return lambda event: receiver.call(event) if not ends or when is None or when(event) else None


@bug("one_instance_per_process")
def a_shared_hook_is_made_for_each_event():
    def bind(self, method, name):
        return lambda event: method(self._hook(), event)

    return put(_shared.Shared, "bind", bind)


@bug("stateful_handlers_of_a_run_take_turns")
def runs_have_no_lock():
    def _locked(self, cid, name, event):
        self._state.locks.setdefault(cid, _stateful.RunLock())
        run = _stateful.RunLock()
        run.lock.acquire()
        return run

    return put(_stateful.Instances, "_locked", _locked)


# --- failures, and what the emitter sees ---


@bug("the_emitter_sees_no_failure")
def a_failure_reaches_the_emitter():
    def _report(self, hook, handler, error, errors, key=None):
        _event.report_failure(hook=hook, handler=handler, event=self, error=error, key=key)
        return [*(errors or ()), error]

    return put(_event.Event, "_report", _report)


@bug("each_failure_is_told_once")
def a_failure_is_not_told():
    return put(_event, "report_failure", nothing)


@bug("each_failure_is_told_once")
def a_failure_is_told_twice():
    real = _event.report_failure

    def report_failure(**rest):
        real(**rest)
        real(**rest)

    return put(_event, "report_failure", report_failure)


@bug("strict_raises_what_would_be_reported")
def strict_raises_the_first_only():
    def raise_all(errors):
        raise errors[0]

    return put(_dispatch, "raise_all", raise_all)


@bug("interrupts_propagate_at_once")
def an_interrupt_is_swallowed():
    real = _dispatch.deliver

    def deliver(plan, event):
        with contextlib.suppress(KeyboardInterrupt):
            real(plan, event)

    return put(_dispatch, "deliver", deliver)


@bug("handlers_run_on_the_emitting_thread")
def handlers_run_on_a_thread_of_their_own():
    real = _dispatch.deliver

    def deliver(plan, event):
        if not event._fails_open:
            real(plan, event)
            return
        raised = []

        def work():
            try:
                real(plan, event)
            except BaseException as error:
                raised.append(error)

        thread = threading.Thread(target=contextvars.copy_context().run, args=(work,), daemon=True)
        thread.start()
        thread.join()
        if raised:
            raise raised[0]

    # The thread waits in vain for the lock of a run that its emitter holds.
    return _both(put(_dispatch, "deliver", deliver), put(_settings.settings, "lock_timeout", 0.01))


@bug("all_receive_the_event_that_fired")
def each_handler_gets_a_copy():
    real = _dispatch.deliver

    def deliver(plan, event):
        if event._fails_open:
            for step in plan.in_order():
                real(_registry.Plan([step]), copy.copy(event))
        else:
            real(plan, event)

    return put(_dispatch, "deliver", deliver)


# --- context ---


@bug("handlers_see_the_emitters_context")
def an_explicit_id_is_not_the_handlers():
    return put(_dispatch, "deliver_within", lambda plan, event: _dispatch.deliver(plan, event))


@bug("handlers_see_the_emitters_context")
def scheduled_handlers_have_a_context_of_their_own():
    real = _scheduler.Delivery.__init__

    def __init__(self, *args):
        real(self, *args)
        self.context = contextvars.Context()

    return put(_scheduler.Delivery, "__init__", __init__)


@bug("nobody_is_reached_who_does_not_listen")
def isolation_leaks_in():
    real = _registry.State.__init__

    def __init__(self):
        real(self)
        self.signals = dict(_registry.state.signals)

    return put(_registry.State, "__init__", __init__)


@bug("nobody_is_left_out")
def isolation_loses_what_was_outside():
    real = _registry.swap

    def swap(new):
        if new.signals:
            new.signals.pop(next(reversed(new.signals)))
        return real(new)

    return put(_registry, "swap", swap)


# --- async handlers ---


@bug("no_async_handler_is_lost")
def an_async_handler_is_lost():
    real = _scheduler.Scheduler.schedule

    def schedule(self, awaitable, event, receiver):
        if self.pending == 2:
            _scheduler.discard(awaitable)
            return
        real(self, awaitable, event, receiver)

    return put(_scheduler.Scheduler, "schedule", schedule)


@bug("scheduled_handlers_of_a_run_follow_one_another")
def scheduled_handlers_overtake_one_another():
    real = _scheduler.Delivery.__init__

    def __init__(self, awaitable, event, receiver, loop, key):
        real(self, awaitable, event, receiver, loop, None)

    return put(_scheduler.Delivery, "__init__", __init__)


@bug("scheduled_handlers_of_a_run_follow_one_another")
def an_awaited_emit_overtakes_what_is_scheduled():
    async def in_turn(self, awaitable, receiver, event):
        await awaitable

    return put(_scheduler.Scheduler, "in_turn", in_turn)


@bug("scheduled_handlers_run_on_the_right_loop")
def all_run_on_the_background_loop():
    real = _scheduler.running_loop
    schedule = _scheduler.Scheduler.schedule.__code__

    def running_loop():
        return None if inspect.currentframe().f_back.f_code is schedule else real()

    return put(_scheduler, "running_loop", running_loop)


@bug("scheduled_handlers_run_on_the_right_loop")
def the_loop_of_the_scope_is_forgotten():
    return put(_scheduler, "scope_loop", nothing)


@bug("aemit_awaits_each_handler")
def aemit_does_not_wait():
    real = _dispatch.adeliver

    async def adeliver(plan, event):
        if event._fails_open:
            _dispatch.deliver(plan, event)
        else:
            await real(plan, event)

    return put(_dispatch, "adeliver", adeliver)


# --- gates ---


@bug("a_refusal_stands")
def a_refusal_comes_undone():
    real = _gate.ProtectedEvent._set

    def _set(self, name, value):
        if name == "cancel" and self.__dict__.get("cancel") and not value:
            self.__dict__["cancel"] = value
        else:
            real(self, name, value)

    return put(_gate.ProtectedEvent, "__setattr__", _set)


@bug("nothing_is_judged_after_a_before_gate_raised")
def a_gate_fails_open():
    real = _gate.ProtectedEvent._failed

    def _failed(self, receiver, error, errors):
        with contextlib.suppress(Exception):
            return real(self, receiver, error, errors)
        return errors

    return put(_gate.ProtectedEvent, "_failed", _failed)


@bug("after_gates_all_run_then_raise")
def an_after_gate_stops_at_the_first():
    real = _gate.ProtectedEvent._failed

    def _failed(self, receiver, error, errors):
        real(self, receiver, error, errors)
        return [*(errors or ()), error][:1]

    return put(_gate.ProtectedEvent, "_failed", _failed)


@bug("a_gate_returns_its_event")
def a_published_gate_returns_nothing():
    return put(_gate.ProtectedEvent, "publish", lambda self: self._deliver())


@bug("edits_tell_who_wrote_what")
def a_shadow_decides():
    return put(_gate, "_is_shadow", lambda author: False)


@bug("edits_tell_who_wrote_what")
def an_edit_has_no_author():
    return put(_gate.ProtectedEvent, "_author_here", nothing)


@bug("each_gate_sees_what_earlier_ones_wrote")
def an_edit_is_recorded_and_not_applied():
    real = _gate.ProtectedEvent._set

    def _set(self, name, value):
        old = self.__dict__.get("value")
        real(self, name, value)
        if name == "value" and old is not None:
            self.__dict__["value"] = old

    return put(_gate.ProtectedEvent, "__setattr__", _set)


@bug("each_subscription_ends_with_its_own_cancel")
def cancel_does_nothing():
    return put(_subscribe.Subscription, "cancel", nothing)
