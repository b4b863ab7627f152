"""
Driving scripts, on a thread and on a loop, and calling tools and models as they ask.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import attrs
import pytest

from eventbus import Event, Run, ToolCall
from eventbus._drive import (
    Done,
    aadvance,
    adrive,
    advance,
    drive,
    model_performer,
    newest,
    nothing_to_perform,
    raise_together,
    refuse_awaitables,
    scheduled_since,
    together,
    tool_performer,
)
from eventbus._steps import Perform, Quiet, Raised, Tell, Wait

CALL = ToolCall("call_1", "lookup", {"rows": [{"n": 1}]})


class Counted(Event):
    """Something to tell."""

    number: int


class Steps:
    """A script that does the steps it is given and keeps what came of each."""

    def __init__(self, *steps: Any) -> None:
        self.steps = steps
        self.came: list[Any] = []

    def script(self):
        for step in self.steps:
            self.came.append((yield step))
        return "done"


def plain(script, perform=nothing_to_perform):
    """Drive a script on this thread."""
    return drive(script, perform)


def on_a_loop(script, perform=nothing_to_perform):
    """Drive a script on a loop."""
    return asyncio.run(adrive(script, perform))


both = pytest.mark.parametrize("go", [plain, on_a_loop])


class TestDriving:
    """Plain and on a loop alike."""

    @both
    def test_to_the_end(self, go):
        """A script is driven to its end, each step's outcome sent back."""
        seen = []
        Counted.subscribe(lambda event: seen.append(event.number))
        run = Run()
        steps = Steps(Tell(run, Counted, {"number": 1}), Quiet(run), Wait(0), Perform("subject", {}))
        assert "done" == go(steps.script(), lambda step: f"did {step.subject}")
        assert [1] == seen
        assert [None, None, None, "did subject"] == steps.came

    @both
    @pytest.mark.parametrize("kind", [ValueError, StopIteration, KeyboardInterrupt, GeneratorExit])
    def test_what_is_raised_is_sent(self, go, kind):
        """What performing raises is sent back, whatever it is."""
        error = kind("boom")

        def perform(step):
            raise error

        steps = Steps(Perform(None, {}))
        assert "done" == go(steps.script(), perform)
        assert [Raised(error)] == steps.came

    @both
    def test_what_telling_raises_is_sent(self, go):
        """So is what an observer raises that nobody may swallow."""
        error = KeyboardInterrupt()

        def observe(event):
            raise error

        Counted.subscribe(observe)
        steps = Steps(Tell(Run(), Counted, {"number": 1}))
        assert "done" == go(steps.script())
        assert [Raised(error)] == steps.came

    def test_advance_stops_at_a_perform(self):
        """Advancing stops at a Perform, or at the end."""
        script = Steps(Wait(0), Perform(1, {})).script()
        assert Perform(1, {}) == advance(script, None)
        assert Done("done") == advance(script, lambda: script.send(None))

    def test_aadvance_stops_at_a_perform(self):
        """So it does on a loop."""

        async def main():
            script = Steps(Wait(0), Perform(1, {})).script()
            assert Perform(1, {}) == await aadvance(script, None)
            assert Done("done") == await aadvance(script, lambda: script.send(None))

        asyncio.run(main())

    def test_awaitables_are_awaited(self):
        """On a loop, what performing returns is awaited if it can be."""

        async def perform(step):
            await asyncio.sleep(0)
            return step.subject

        steps = Steps(Perform(1, {}), Perform(2, {}))
        assert "done" == asyncio.run(adrive(steps.script(), perform))
        assert [1, 2] == steps.came

    def test_closed_while_performing(self):
        """A coroutine that is closed goes on without waiting, what is left told on the spot."""
        seen = []
        Counted.subscribe(lambda event: seen.append(event.number))

        async def perform(step):
            await asyncio.Event().wait()

        async def main():
            steps = Steps(Perform(1, {}), Tell(Run(), Counted, {"number": 1}))
            coroutine = adrive(steps.script(), perform)
            coroutine.send(None)
            with contextlib.suppress(StopIteration):
                coroutine.close()
            assert isinstance(steps.came[0].error, GeneratorExit)

        asyncio.run(main())
        assert [1] == seen

    def test_nothing_to_perform(self):
        """A script that performs where nothing can be is a mistake of ours."""
        steps = Steps(Perform(1, {}))
        drive(steps.script())
        assert isinstance(steps.came[0].error, NotImplementedError)


class TestPerformers:
    """Tools and models."""

    def test_a_tool_by_name(self):
        """A tool gets its arguments as keywords, plain and its own."""
        given: list[Any] = []
        perform = tool_performer({"lookup": lambda rows: given.append(rows)})
        perform(Perform(CALL, {}))
        perform(Perform(CALL, {}))
        assert [list, dict] == [type(given[0]), type(given[0][0])]
        assert given[0] == given[1]
        assert given[0][0] is not given[1][0]

    def test_a_callable_of_the_call(self):
        """One callable gets the call, which is no other's."""
        [call] = [tool_performer(lambda call: call)(Perform(CALL, {}))]
        assert CALL == call
        assert CALL is not call
        assert dict is type(call.input)
        with pytest.raises(attrs.exceptions.FrozenInstanceError):
            call.name = "other"

    def test_a_model(self):
        """A model gets the caller's own messages and settings, or plain ones of what a gate wrote."""
        messages, settings = [{"role": "user"}], {"model": "m-1"}
        given = []

        def model(messages, **settings):
            given.append((messages, settings))

        perform = model_performer(model, messages, settings)
        perform(Perform(messages, settings))
        perform(Perform(ToolCall("", "", {"messages": messages}).input["messages"], {"model": "m-2"}))
        assert messages is given[0][0]
        assert (list, dict, {"model": "m-2"}) == (type(given[1][0]), type(given[1][0][0]), given[1][1])

    def test_awaitables_are_refused(self):
        """A plain run refuses what it cannot await, and closes it."""

        async def tool():
            raise AssertionError("never run")

        coroutine = tool()
        with pytest.raises(TypeError, match="use AsyncRun"):
            refuse_awaitables(lambda step: coroutine)(Perform(None, {}))
        assert 1 == refuse_awaitables(lambda step: 1)(Perform(None, {}))
        with pytest.raises(RuntimeError, match="cannot reuse"):
            coroutine.send(None)


class TestTogether:
    """Several calls at once."""

    def test_nothing_to_raise(self):
        """No errors raise nothing."""
        raise_together([])

    def test_one_or_several(self):
        """One is raised as itself, several as a group, an interrupt alone."""
        errors = [ValueError("one"), ValueError("two")]
        with pytest.raises(ValueError, match="one"):
            raise_together(errors[:1])
        with pytest.raises(ExceptionGroup):
            raise_together(errors)
        with pytest.raises(KeyboardInterrupt):
            raise_together([*errors, KeyboardInterrupt()])

    def test_results_in_order(self):
        """Results are in the order of the calls."""

        async def one(call):
            await asyncio.sleep(0)
            return call.id

        calls = [ToolCall(str(n), "t") for n in range(5)]
        assert ["0", "1", "2", "3", "4"] == asyncio.run(together(one, calls, 2))


class TestOwed:
    """What a run emits without waiting, and waits for next."""

    def test_nothing_is_pending(self):
        """Without async handlers there is nothing to look at."""
        assert None is newest()
        assert [] == scheduled_since(None, "run-1")

    def test_since(self):
        """Only the run's own deliveries, scheduled since, count."""

        async def handler(event):
            await asyncio.sleep(0)

        async def main():
            Counted.emit(number=1, correlation_id="run-1")
            last = newest()
            assert None is not last
            Counted.emit(number=2, correlation_id="run-1")
            Counted.emit(number=3, correlation_id="run-2")
            Counted.emit(number=4, correlation_id="run-1")
            assert [2, 4] == [delivery.event.number for delivery in scheduled_since(last, "run-1")]
            assert [1, 2, 4] == [delivery.event.number for delivery in scheduled_since(None, "run-1")]

        Counted.subscribe(handler)
        asyncio.run(main())
