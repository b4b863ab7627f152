"""SteeringHook: what a judge is asked, what its answers do, and what becomes of a judge that fails."""

from __future__ import annotations

import asyncio
import contextlib
import enum
import functools
import gc
import threading
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eventbus import (
    AfterModelCallEvent,
    ApproveToolCallEvent,
    AsyncGateError,
    AsyncRun,
    BeforeToolCallEvent,
    EventLogger,
    GateDecisionEvent,
    HandlerFailedEvent,
    Hook,
    InferenceGeneratedEvent,
    InferenceStartedEvent,
    ModelResponse,
    Priority,
    Run,
    ToolCall,
    ToolCallDeniedEvent,
    ToolCallStartedEvent,
    _steering,
    current_correlation_id,
    on,
)
from eventbus._steering import RecentCalls, verdict_of
from eventbus.policies import ModelRetryHook, SteeringDecision, SteeringHook, SteeringRequest
from eventbus.testing import capture

PATIENCE = 10
APPROVAL = "REQUIRES APPROVAL: "
CALL = ToolCall("call_0", "delete_order", {"order_id": "A1"})


def steering(judge: Any = None, **settings: Any) -> type[SteeringHook]:
    """Define a live hook."""
    stated = {} if judge is None else {"judge": judge}
    return type(SteeringHook)("Steering", (SteeringHook,), {**stated, **settings})


class Tools:
    """Tools of any name, which note what they were called with."""

    def __init__(self) -> None:
        self.called: list[tuple[str, Any]] = []

    def __call__(self, call: Any) -> str:
        self.called.append((call.name, call.input))
        return "done"


def call_in(run: Run, *calls: ToolCall, tools: Any = None) -> list[Any]:
    return [result.error or result.data for _, result in run.call_tools(calls or [CALL], tools or Tools())]


def call(*calls: ToolCall, **settings: Any) -> Any:
    """Have tools called in a run of its own, and return what they or the gates have answered."""
    with Run(agent="sundae", **settings) as run:
        answers = call_in(run, *calls)
    return answers[0] if len(answers) == 1 else answers


def say(*responses: Any, **settings: Any) -> Any:
    """Ask a model in a run of its own, and return what comes out."""
    waiting = list(responses)
    with Run(agent="sundae", **settings) as run:
        return run.call_model(lambda messages: waiting.pop(0) if len(waiting) > 1 else waiting[0], ["hello"])


def actions(hook: type[SteeringHook]) -> list[str]:
    return [decision.action for decision in hook.decisions()]


def told(recorder: Any) -> list[tuple[Any, ...]]:
    return [(event.action, event.field, event.reason, event.applied) for event in recorder.events]


class TestVerdicts:
    def test_proceed(self):
        """The tool is called."""
        hook = steering(lambda request: "proceed")

        assert "done" == call()
        assert ["proceed"] == actions(hook)

    def test_guide(self):
        """The words are the tool's answer, and say what to do instead; the tool is not called."""
        steering(lambda request: ("guide", "Look the order up first."))
        tools = Tools()
        with Run(agent="sundae") as run:
            assert ["Look the order up first."] == call_in(run, tools=tools)

        assert [] == tools.called

    def test_interrupt(self):
        """A refusal says that approval is needed."""
        steering(lambda request: ("interrupt", "a deletion is final"))

        assert f"{APPROVAL}a deletion is final" == call()

    def test_interrupt_without_a_reason(self):
        """It names the tool."""
        steering(lambda request: "interrupt")

        assert f"{APPROVAL}delete_order needs a person's approval" == call()

    @pytest.mark.parametrize(
        ("answer", "verdict"),
        [
            ("proceed", ("proceed", None)),
            (" Proceed\n", ("proceed", None)),
            (("proceed", "it is harmless"), ("proceed", "it is harmless")),
            (["guide", "do b"], ("guide", "do b")),
            (("GUIDE", " do b "), ("guide", " do b ")),
            (("interrupt",), ("interrupt", None)),
            (("interrupt", " "), ("interrupt", None)),
        ],
    )
    def test_how_it_may_answer(self, answer, verdict):
        """A word, or a word and more of them, which are kept as they are."""
        assert verdict == verdict_of(answer)

    @pytest.mark.parametrize(
        "answer",
        [
            None,
            True,
            False,
            "",
            "yes",
            "proceed, but carefully",
            "guide",
            ("guide",),
            ("guide", ""),
            ("guide", " \n"),
            ("guide", 3),
            ("guide", b"x"),
            (),
            ("proceed", "a", "b"),
            {"action": "proceed"},
            {"proceed"},
            0,
            object(),
        ],
        ids=repr,
    )
    def test_anything_else_denies(self, answer):
        """An answer that means nothing is a judge that has failed."""
        hook = steering(lambda request: answer)

        assert "delete_order is held back: the judge failed (TypeError)" == call()
        assert ["deny"] == actions(hook)
        assert "it must answer" in hook.decisions()[0].error

    @given(
        st.recursive(st.one_of(st.none(), st.booleans(), st.integers(), st.text()), st.lists, max_leaves=4)
    )
    def test_only_one_word_lets_a_call_pass(self, answer):
        """Whatever a judge answers."""
        try:
            verdict = verdict_of(answer)
        except TypeError:
            return
        word = answer if isinstance(answer, str) else answer[0]
        assert verdict.action == word.strip().lower() in ("proceed", "guide", "interrupt")

    def test_an_answer_that_cannot_be_shown(self):
        """A raising repr is no way around it."""

        class Rude:
            def __repr__(self):
                raise RuntimeError

        hook = steering(lambda request: Rude())

        assert "delete_order is held back: the judge failed (TypeError)" == call()
        assert "the judge answered a Rude" in hook.decisions()[0].error


class TestWhatAJudgeIsAsked:
    def test_the_call_the_run_and_the_policy(self):
        """All of it in one request."""
        requests: list[SteeringRequest] = []
        steering(lambda request: requests.append(request) or "proceed", policy="Never delete.")
        call(metadata={"user": "mia"}, message="Delete my order", correlation_id="run-1")

        (request,) = requests
        assert CALL == request.tool_call
        assert {"order_id": "A1"} == request.arguments
        assert ("Never delete.", None, ()) == (request.policy, request.response, request.calls)
        assert ("run-1", "sundae", "Delete my order", {"user": "mia"}) == (
            request.run.id,
            request.run.agent,
            request.run.message,
            request.run.metadata,
        )

    def test_the_arguments_are_those_that_will_be_executed(self):
        """A gate has rewritten them by then."""

        class Cap(Hook):
            @on(BeforeToolCallEvent)
            def cap(self, gate):
                gate.arguments = {"order_id": "B2"}

        requests: list[SteeringRequest] = []
        steering(lambda request: requests.append(request) or "proceed")
        tools = Tools()
        with Run(agent="sundae") as run:
            call_in(run, tools=tools)

        assert [("delete_order", {"order_id": "B2"})] == tools.called
        assert {"order_id": "B2"} == requests[0].arguments == requests[0].tool_call.input

    def test_it_cannot_rewrite_them(self):
        """What it was given is read-only; the attempt is a judge that fails."""

        def judge(request):
            request.arguments["order_id"] = "B2"
            return "proceed"

        steering(judge)

        assert "delete_order is held back: the judge failed (TypeError)" == call()

    def test_the_last_calls_of_the_run(self):
        """Up to 20, the oldest first, refused ones too."""
        seen: list[list[str]] = []

        def judge(request):
            seen.append([call.id for call in request.calls])
            return ("guide", "no") if request.tool_call.id == "1" else "proceed"

        steering(judge)
        call(*(ToolCall(str(number), "look") for number in range(30)))

        assert [[], ["0"], ["0", "1"]] == seen[:3]
        assert [str(number) for number in range(9, 29)] == seen[-1]

    def test_calls_that_are_not_judged_are_among_them(self):
        """A judge of one tool sees what else the run has done."""
        seen: list[str] = []
        steering(
            lambda request: seen.extend(call.name for call in request.calls) or "proceed",
            judge_tools={"pay"},
            interrupt_tools={"drop"},
        )
        call(ToolCall("1", "look"), ToolCall("2", "drop"), ToolCall("3", "pay"))

        assert ["look", "drop"] == seen

    def test_outside_of_a_run(self):
        """A gate that somebody else emits is judged alike, and nothing is kept."""
        requests: list[SteeringRequest] = []
        hook = steering(lambda request: requests.append(request) or ("guide", "no"))
        gates = [ApproveToolCallEvent.emit(tool_call=CALL, arguments=CALL.input) for _ in range(2)]

        assert ["no", "no"] == [gate.denied for gate in gates]
        assert [(None, ()), (None, ())] == [(request.run, request.calls) for request in requests]
        assert 0 == len(hook._calls.by_run)

    def test_a_call_of_the_users_own_kind(self):
        """Any object with the attributes of a call will do."""
        requests: list[SteeringRequest] = []
        steering(lambda request: requests.append(request) or "proceed")
        call(SimpleNamespace(id=None, name="look", input=None))

        assert ToolCall("call_1", "look", {}) == requests[0].tool_call

    def test_a_call_that_is_refused_already(self):
        """The judge is not asked about what will not happen."""

        class Guard(Hook):
            priority = Priority.SECURITY - 1

            @on(ApproveToolCallEvent)
            def check(self, gate):
                gate.denied = "no deletions"

        hook = steering(lambda request: "proceed")

        assert "no deletions" == call()
        assert () == hook.decisions()


class TestWhatIsJudged:
    def test_judge_tools_can_be_off(self):
        """Then no tool call is judged."""
        hook = steering(lambda request: ("guide", "no"), judge_tools=False)

        assert "done" == call()
        assert () == hook.decisions()

    def test_judge_tools_can_be_names(self):
        """Then those are judged."""
        steering(lambda request: ("guide", "no"), judge_tools={"delete_order"})

        assert ["no", "done"] == call(CALL, ToolCall("call_1", "look"))

    @pytest.mark.parametrize("value", ["delete_order", None, 3, [1]])
    def test_what_judge_tools_cannot_be(self, value):
        """The error names the setting."""
        with pytest.raises(TypeError, match=r"Steering\.judge_tools must be "):
            steering(lambda request: "proceed", judge_tools=value)

    def test_interrupt_tools_never_ask(self):
        """It is a set of names, which nobody can argue with."""
        asked: list[str] = []
        hook = steering(
            lambda request: asked.append(request.tool_call.name) or "proceed", interrupt_tools={"drop"}
        )

        assert [f"{APPROVAL}drop needs a person's approval", "done"] == call(ToolCall("", "drop"), CALL)
        assert ["delete_order"] == asked
        assert ["interrupt", "proceed"] == actions(hook)

    @pytest.mark.parametrize(
        "settings",
        [
            {"judge_tools": False},
            {"fail_open": True},
            {"judge_tools": {"other"}},
            {"judge": lambda request: 1 / 0, "fail_open": True},
        ],
        ids=["judging off", "fail open", "other tools", "a judge that fails"],
    )
    def test_interrupt_tools_hold(self, settings):
        """Whatever else is set."""
        steering(**{"judge": lambda request: "proceed", **settings}, interrupt_tools={"drop"})

        assert f"{APPROVAL}drop needs a person's approval" == call(ToolCall("", "drop"))

    def test_interrupt_tools_hold_for_a_name_in_an_enum(self):
        """A name that finds the tool is a name that needs approval, whatever `str` makes of it."""

        class ToolName(str, enum.Enum):  # noqa: UP042 - a StrEnum is its own name, and this is not
            DROP = "drop"

        hook = steering(interrupt_tools={"drop"})

        assert f"{APPROVAL}drop needs a person's approval" == call(ToolCall("", ToolName.DROP))
        assert ["drop"] == [decision.tool for decision in hook.decisions()]

    def test_interrupt_tools_need_no_judge(self):
        """Other calls are then let through, and are no decisions."""
        hook = steering(interrupt_tools=["drop"])

        assert [f"{APPROVAL}drop needs a person's approval", "done"] == call(ToolCall("", "drop"), CALL)
        assert ["interrupt"] == actions(hook)

    def test_interrupt_tools_hold_on_a_loop(self):
        """Nothing is awaited for them, so a plain Run will do there."""

        async def judge(request):
            return "proceed"

        steering(judge, interrupt_tools={"drop"})

        async def main():
            return call(ToolCall("", "drop"))

        assert f"{APPROVAL}drop needs a person's approval" == asyncio.run(main())

    @pytest.mark.parametrize(
        ("settings", "text"),
        [
            ({}, "has neither a `judge` nor `interrupt_tools`"),
            ({"policy": "Never delete."}, r"Steering\.policy needs a `judge`"),
            ({"policy": "Never delete.", "interrupt_tools": {"drop"}}, r"Steering\.policy needs a `judge`"),
            (
                {"judge_responses": True, "interrupt_tools": {"drop"}},
                r"Steering\.judge_responses needs a `judge`",
            ),
        ],
    )
    def test_one_that_would_steer_nothing(self, settings, text):
        """It is refused when the class is created."""
        with pytest.raises(TypeError, match=text):
            steering(**settings)

    def test_an_abstract_one_may_leave_the_judge_to_its_subclasses(self):
        """The policy is stated once, for several judges."""

        class House(SteeringHook):
            abstract = True
            policy = "Never delete."

        class Mine(House):
            judge = lambda request: ("guide", request.policy)  # noqa: E731

        assert "Never delete." == call()

    def test_as_a_shadow_it_only_watches(self):
        """What it would have refused is recorded, and executed."""
        hook = steering(lambda request: ("guide", "no"), shadow=True)
        with capture(GateDecisionEvent) as recorder:
            assert "done" == call()

        assert [("deny", "denied", "no", False)] == told(recorder)
        assert ["guide"] == actions(hook)

    def test_its_place_in_the_order(self):
        """Among the guards."""
        assert Priority.SECURITY == SteeringHook.priority


class TestAFailingJudge:
    def test_one_that_raises_denies(self):
        """The tool's answer names the kind of error, and not its text, which the model need not see."""
        hook = steering(lambda request: {}["secret"])

        assert "delete_order is held back: the judge failed (KeyError)" == call()
        (decision,) = hook.decisions()
        assert ("deny", "KeyError: 'secret'") == (decision.action, decision.error)

    def test_the_failure_is_reported_like_any_handlers(self, capfd):
        """With the error and where it was raised."""
        EventLogger.register()
        steering(lambda request: {}["secret"])
        with capture(HandlerFailedEvent) as recorder:
            call()

        (event,) = recorder.events
        assert ("Steering", "Steering.steer", KeyError) == (event.hook, event.handler, type(event.error))
        assert (
            "HOOK FAIL Steering.steer on=ApproveToolCallEvent KeyError: 'secret' (" in capfd.readouterr().err
        )

    def test_fail_open_lets_it_pass_and_says_so(self):
        """As a decision, as an event, and as a failure."""
        hook = steering(lambda request: {}["secret"], fail_open=True)
        with capture(GateDecisionEvent, HandlerFailedEvent) as recorder:
            assert "done" == call()

        (decision,) = hook.decisions()
        failed, warned = recorder.events
        assert ("proceed", "the judge failed (KeyError)", "KeyError: 'secret'") == (
            decision.action,
            decision.reason,
            decision.error,
        )
        assert isinstance(failed, HandlerFailedEvent)
        assert (
            "warn",
            "the judge failed (KeyError), and fail_open lets it pass",
            "Steering.steer",
            CALL,
        ) == (
            warned.action,
            warned.reason,
            warned.by,
            warned.tool_call,
        )

    def test_an_interrupt_goes_through(self):
        """Whoever wants to end the process is not a judge that fails."""
        for timeout in (None, 30):
            steering(
                lambda request: (_ for _ in ()).throw(KeyboardInterrupt),
                judge_timeout=timeout,
                fail_open=True,
            )
            with pytest.raises(KeyboardInterrupt):
                call()

    def test_a_long_error_is_cut(self):
        """In what is kept of it."""

        def judge(request):
            raise ValueError("x" * 100_000)

        hook = steering(judge)
        call()

        assert 1000 == len(hook.decisions()[0].error)

    def test_an_error_without_a_text(self):
        """A raising `str` is no way around it."""

        class RudeError(Exception):
            def __str__(self):
                raise RuntimeError

        def judge(request):
            raise RudeError

        hook = steering(judge)

        assert "delete_order is held back: the judge failed (RudeError)" == call()
        assert "RudeError: RudeError" == hook.decisions()[0].error


class TestASyncJudge:
    def test_it_runs_on_a_thread_of_its_own_with_the_callers_context(self):
        """So that its time can be limited."""
        found: list[Any] = []

        def judge(request):
            found.extend((threading.current_thread(), current_correlation_id()))
            return "proceed"

        steering(judge)
        call(correlation_id="run-1")

        assert threading.current_thread() is not found[0]
        assert found[0].daemon
        assert "run-1" == found[1]

    def test_without_a_limit_it_runs_on_the_callers(self):
        """`judge_timeout = None`."""
        found: list[Any] = []
        steering(lambda request: found.append(threading.current_thread()) or "proceed", judge_timeout=None)
        call()

        assert [threading.current_thread()] == found

    def test_one_that_takes_too_long_denies(self):
        """The call does not wait for it."""
        release = threading.Event()
        hook = steering(lambda request: release.wait(PATIENCE) and "proceed", judge_timeout=0.01)
        try:
            assert "delete_order is held back: the judge failed (TimeoutError)" == call()
        finally:
            release.set()
        assert "TimeoutError: the judge took longer than 0.01 s" == hook.decisions()[0].error

    def test_what_it_says_too_late_is_ignored(self):
        """The decision is made."""
        release, over = threading.Event(), threading.Event()

        def judge(request):
            release.wait(PATIENCE)
            over.set()
            return "proceed"

        hook = steering(judge, judge_timeout=0.01)
        call()
        release.set()
        assert over.wait(PATIENCE)

        assert ["deny"] == actions(hook)

    def test_eight_are_left_to_themselves(self):
        """Then no more are begun, until some return."""
        release = threading.Event()
        begun: list[int] = []

        def judge(request):
            begun.append(1)
            release.wait(PATIENCE)
            return "proceed"

        hook = steering(judge, judge_timeout=0.001)
        try:
            for _ in range(12):
                assert "delete_order is held back: the judge failed (TimeoutError)" == call()
            assert 8 == len(begun)
            assert "have not returned yet" in hook.decisions()[-1].error
        finally:
            release.set()
        for thread in threading.enumerate():
            if thread.name == "eventbus-judge":
                thread.join(PATIENCE)
        hook.judge_timeout = 30
        assert "done" == call()

    def test_many_at_once_are_not_too_many(self):
        """Only those whose time is up are counted."""
        barrier = threading.Barrier(20)
        steering(lambda request: (barrier.wait(PATIENCE), "proceed")[1])
        with Run(agent="sundae") as run:
            results = run.call_tools([ToolCall(str(n), "look") for n in range(20)], Tools(), parallel=20)

        assert ["done"] * 20 == [result.data for _, result in results]

    def test_a_shared_hook_keeps_a_client(self):
        """One instance serves all runs, and its judge finds what `__init__` has made."""

        class Steering(SteeringHook):
            shared = True

            def __init__(self):
                self.client = []

            def judge(self, request):
                self.client.append(request.run.id)
                return ("guide", str(len(self.client)))

        assert ["1", "2", "3"] == [call() for _ in range(3)]

    def test_on_a_loop_a_plain_run_may_ask_it(self):
        """There is nothing to await."""
        steering(lambda request: ("guide", "no"))

        async def main():
            return call()

        assert "no" == asyncio.run(main())

    def test_under_an_async_run(self):
        """The loop waits meanwhile."""
        steering(lambda request: ("guide", "no"))

        assert "no" == asyncio.run(acall())

    @pytest.mark.parametrize("timeout", [None, 30])
    def test_it_may_return_an_awaitable(self, timeout):
        """A function that returns a coroutine is async as well."""

        async def later():
            return ("guide", "no")

        steering(lambda request: later(), judge_timeout=timeout)

        assert "no" == call()
        assert "no" == asyncio.run(acall())


async def acall(*calls: ToolCall) -> Any:
    async with AsyncRun(agent="sundae") as run:
        (_, result), *_ = await run.call_tools(calls or [CALL], Tools())
    return result.error or result.data


class Asker:
    async def __call__(self, request):
        return ("guide", request.tool_call.name)


async def ask(word, request):
    await asyncio.sleep(0)
    return (word, request.tool_call.name)


class TestAnAsyncJudge:
    @pytest.mark.parametrize("judge", [Asker(), functools.partial(ask, "guide")], ids=["object", "partial"])
    def test_it_is_awaited(self, judge):
        """Under AsyncRun on its loop, under a plain Run on the background loop."""
        steering(judge)

        assert "delete_order" == asyncio.run(acall())
        assert "delete_order" == call()

    def test_a_method(self):
        """It is called with self."""

        class Steering(SteeringHook):
            async def judge(self, request):
                return ("guide", type(self).__name__)

        assert "Steering" == asyncio.run(acall())

    @pytest.mark.parametrize("fail_open", [False, True])
    def test_on_a_loop_a_plain_run_cannot_wait_for_it(self, fail_open):
        """The error names aemit, and nothing is executed."""
        steering(functools.partial(ask, "proceed"), fail_open=fail_open)
        tools = Tools()

        async def main():
            with Run(agent="sundae") as run:
                call_in(run, tools=tools)

        with pytest.raises(AsyncGateError, match="aemit"):
            asyncio.run(main())
        gc.collect()

        assert [] == tools.called

    def test_one_that_takes_too_long_denies(self):
        """It is cancelled, and not waited for."""
        cancelled: list[bool] = []

        async def judge(request):
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                cancelled.append(True)
                raise

        steering(judge, judge_timeout=0.01)

        assert "delete_order is held back: the judge failed (TimeoutError)" == asyncio.run(acall())
        assert [True] == cancelled

    def test_one_that_will_not_be_cancelled(self):
        """It goes on by itself; what it raises then says nothing."""
        release = asyncio.Event()

        async def judge(request):
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.Event().wait()
            await release.wait()
            raise LookupError

        steering(judge, judge_timeout=0.01)

        async def main():
            answer = await acall()
            release.set()
            await asyncio.sleep(0.01)
            return answer

        assert "delete_order is held back: the judge failed (TimeoutError)" == asyncio.run(main())

    @pytest.mark.parametrize("timeout", [None, 30])
    def test_one_that_raises_denies(self, timeout):
        """Whether or not its time is limited."""

        async def judge(request):
            raise LookupError

        hook = steering(judge, judge_timeout=timeout)

        assert "delete_order is held back: the judge failed (LookupError)" == asyncio.run(acall())
        assert ["deny"] == actions(hook)

    def test_one_that_is_cancelled_itself_denies(self):
        """The run is not cancelled with it."""

        async def judge(request):
            raise asyncio.CancelledError

        hook = steering(judge)

        assert "delete_order is held back: the judge failed (RuntimeError)" == asyncio.run(acall())
        assert "RuntimeError: the judge was cancelled" == hook.decisions()[0].error

    def test_a_cancelled_run_cancels_it(self):
        """And goes on being cancelled."""
        states: list[str] = []

        async def main():
            begun = asyncio.Event()

            async def judge(request):
                begun.set()
                try:
                    await asyncio.Event().wait()
                except asyncio.CancelledError:
                    states.append("cancelled")
                    raise

            hook = steering(judge)
            task = asyncio.ensure_future(acall())
            await begun.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await asyncio.sleep(0)
            return hook

        assert () == asyncio.run(main()).decisions()
        assert ["cancelled"] == states

    def test_a_run_that_is_closed_after_its_loop(self):
        """Nothing is executed, and it is no failure of the judge."""

        async def judge(request):
            await asyncio.Event().wait()

        hook = steering(judge)
        loop = asyncio.new_event_loop()
        tools = Tools()

        async def main():
            async with AsyncRun(agent="sundae") as run:
                await run.call_tools([CALL], tools)

        waiting = main()
        task = loop.create_task(waiting)
        loop.call_later(0.01, loop.stop)
        loop.run_forever()
        for one in asyncio.all_tasks(loop):
            one._log_destroy_pending = False
        loop.close()
        waiting.close()

        assert [] == tools.called
        assert () == hook.decisions()
        assert not task.done()

    def test_calls_at_once_are_judged_at_once(self):
        """No lock is held meanwhile."""
        waiting: list[str] = []

        async def main():
            everybody = asyncio.Event()

            async def judge(request):
                waiting.append(request.tool_call.id)
                if len(waiting) == 10:
                    everybody.set()
                await everybody.wait()
                return "proceed"

            steering(judge)
            async with AsyncRun(agent="sundae") as run:
                calls = [ToolCall(str(number), "look") for number in range(10)]
                return await run.call_tools(calls, Tools(), parallel=10)

        results = asyncio.run(asyncio.wait_for(main(), PATIENCE))
        assert ["done"] * 10 == [result.data for _, result in results]


class TestAJudgeThatIsAnAgent:
    def test_its_own_calls_are_not_judged_by_itself(self):
        """They would be without end, and are refused; the text says why."""
        answers: list[Any] = []

        def judge(request):
            if not answers:
                answers.append(None)
                answers[0] = call(ToolCall("inner", "look"))
            return "proceed"

        hook = steering(judge)

        assert "done" == call()
        assert ["look is held back: the judge failed (RuntimeError)"] == answers
        assert "Steering cannot judge what its own judge does." in hook.decisions()[0].error

    def test_nor_those_of_an_async_one(self):
        """The same holds for the tasks of a judge."""
        answers: list[Any] = []

        async def judge(request):
            answers.append(await acall(ToolCall("inner", "look")))
            return "proceed"

        steering(judge)

        assert "done" == asyncio.run(acall())
        assert ["look is held back: the judge failed (RuntimeError)"] == answers

    def test_another_hook_judges_them(self):
        """Each hook knows its own judge."""
        order: list[str] = []

        class Outer(SteeringHook):
            judge_tools = {"delete_order"}

            def judge(self, request):
                order.append("outer")
                order.append(call(ToolCall("inner", "look")))
                return "proceed"

        class Inner(SteeringHook):
            judge_tools = {"look"}

            def judge(self, request):
                order.append("inner")
                return ("guide", "not you")

        assert "done" == call()
        assert ["outer", "inner", "not you"] == order


class TestResponses:
    def judged(self, judge: Any, **settings: Any) -> type[SteeringHook]:
        return steering(judge, judge_responses=True, judge_tools=False, **settings)

    def test_they_are_not_judged_by_default(self):
        """As in the original."""
        steering(lambda request: ("guide", "no"))

        assert "hello" == say(ModelResponse("hello")).content

    def test_the_request(self):
        """It has the response in the place of a call."""
        requests: list[SteeringRequest] = []
        self.judged(lambda request: requests.append(request) or "proceed", policy="Be kind.")
        response = ModelResponse("hello", [CALL], usage={"tokens": 3})

        assert response == say(response, correlation_id="run-1")
        (request,) = requests
        assert (response, None, {}, "Be kind.", "run-1") == (
            request.response,
            request.tool_call,
            request.arguments,
            request.policy,
            request.run.id,
        )

    @pytest.mark.parametrize("response", [ModelResponse(" "), ModelResponse("", [CALL]), None])
    def test_one_that_says_nothing_is_not_judged(self, response):
        """Its tool calls are judged when they come."""
        hook = self.judged(lambda request: ("guide", "no"))
        say(response)

        assert () == hook.decisions()

    def test_guide_asks_again(self):
        """The words are the reason of the retry, and what was said does not get out."""
        self.judged(lambda request: ("guide", "no names") if "mia" in request.response.content else "proceed")
        with capture(GateDecisionEvent, InferenceGeneratedEvent) as recorder:
            assert "hello" == say(ModelResponse("mia"), ModelResponse("hello")).content

        decisions = [event for event in recorder.events if isinstance(event, GateDecisionEvent)]
        generated = [event for event in recorder.events if isinstance(event, InferenceGeneratedEvent)]
        assert [("edit", "response"), ("retry", "retry")] == [
            (event.action, event.field) for event in decisions
        ]
        assert "no names" == decisions[1].reason
        assert ["no names", "hello"] == [event.response.content for event in generated]

    def test_guide_without_end(self):
        """After the last retry the words stand in the place of what was said."""
        hook = self.judged(lambda request: ("guide", "no names"))
        response = ModelResponse("mia", [CALL], model="m-1", usage={"tokens": 3}, raw=object())

        assert ModelResponse("no names", model="m-1", usage={"tokens": 3}) == say(response, max_retries=2)
        assert ["guide"] * 3 == actions(hook)

    def test_in_pieces_the_words_stand_at_once(self):
        """A retry is not granted there."""
        self.judged(lambda request: ("guide", "no names"))
        with Run(agent="sundae") as run, run.model_call(["hello"]) as piece:
            piece.set(ModelResponse("mia"))

        assert "no names" == piece.response.content

    def test_interrupt_withholds_it(self):
        """The model is not asked again."""
        hook = self.judged(lambda request: ("interrupt", "a promise"))

        assert f"{APPROVAL}a promise" == say(ModelResponse("you get it all back")).content
        assert [("interrupt", None, None)] == [(d.action, d.tool, d.call_id) for d in hook.decisions()]

    def test_a_judge_that_fails_withholds_it(self):
        """Unless it fails open."""
        self.judged(lambda request: None)

        assert "this response is held back: the judge failed (TypeError)" == say(ModelResponse("hi")).content

    def test_unless_it_fails_open(self):
        """Then what was said gets out, and the decision says so."""
        hook = self.judged(lambda request: None, fail_open=True)
        with capture(GateDecisionEvent) as recorder:
            assert "hi" == say(ModelResponse("hi")).content

        assert ["proceed"] == actions(hook)
        assert "Steering.steer_response" == recorder.events[0].by

    def test_the_delay_of_another_gate_stands(self):
        """A retry that is asked for already is not made sooner."""

        class Later(Hook):
            @on(AfterModelCallEvent)
            def wait(self, event):
                event.retry = 7

        self.judged(lambda request: ("guide", "no"))

        assert 7 == AfterModelCallEvent.emit(response=ModelResponse("hi")).retry

    def test_async(self):
        """An async judge is awaited here, too."""
        self.judged(functools.partial(self.later))

        async def main():
            async with AsyncRun(agent="sundae") as run:
                return await run.call_model(lambda messages: ModelResponse("hi"), [])

        assert "later" == asyncio.run(main()).content

    @staticmethod
    async def later(request):
        return ("guide", "later")

    def test_with_the_retry_hook(self):
        """Empty answers are the one's business, and what is said the other's."""

        class Retry(ModelRetryHook):
            initial_delay = 0

        hook = self.judged(lambda request: "proceed")

        assert "hello" == say(ModelResponse(""), ModelResponse("hello")).content
        assert ["proceed"] == actions(hook)


class TestWhatIsTold:
    def test_each_decision_is_an_event_with_its_author(self):
        """And the refusal has the words."""
        steering(lambda request: ("guide", "Look first."))
        with capture(GateDecisionEvent, ToolCallDeniedEvent, ToolCallStartedEvent) as recorder:
            call()

        decided, denied = recorder.events
        assert ("deny", "Look first.", "Steering.steer", CALL) == (
            decided.action,
            decided.reason,
            decided.by,
            decided.tool_call,
        )
        assert ("Look first.", "Steering.steer") == (denied.reason, denied.by)

    def test_decisions(self):
        """Each has what it was about, why, and the run."""
        hook = steering(lambda request: ("proceed", "harmless"), interrupt_tools={"drop"})
        call(CALL, ToolCall("call_1", "drop"), correlation_id="run-1")

        needs = f"{APPROVAL}drop needs a person's approval"
        assert (
            SteeringDecision("proceed", "harmless", "delete_order", "call_0", "run-1"),
            SteeringDecision("interrupt", needs, "drop", "call_1", "run-1"),
        ) == hook.decisions()

    def test_each_hook_has_its_own(self):
        """A subclass begins anew."""

        class One(SteeringHook):
            interrupt_tools = {"drop"}

        call(ToolCall("", "drop"))

        class Two(One):
            replaces = True

        assert 1 == len(One.decisions())
        assert () == Two.decisions()

    def test_they_are_bounded(self):
        """The oldest go."""
        hook = steering(interrupt_tools={"drop"})
        for number in range(1_100):
            ApproveToolCallEvent.emit(tool_call=ToolCall(str(number), "drop"))

        assert 1000 == len(hook.decisions())
        assert ("100", "1099") == (hook.decisions()[0].call_id, hook.decisions()[-1].call_id)


class TestWhatIsKept:
    def test_nothing_of_a_run_that_has_ended(self):
        """However it ended."""
        hook = steering(lambda request: "proceed", judge_timeout=None)
        EventLogger.unregister()
        for _ in range(200):
            call()
        with contextlib.suppress(LookupError), Run(agent="sundae") as run:
            call_in(run)
            raise LookupError
        with Run(agent="sundae") as run:
            for _ in run.turns(limit=1):
                call_in(run)

        assert 0 == len(hook._calls.by_run)

    def test_ten_thousand_runs(self):
        """Only the bounded list is left, of those without an end as well."""
        hook = steering(interrupt_tools={"drop"})
        for number in range(10_100):
            ApproveToolCallEvent.emit(tool_call=ToolCall("", "look"), correlation_id=str(number))

        assert 10_000 == len(hook._calls.by_run)
        assert "100" == next(iter(hook._calls.by_run))

    def test_two_runs_share_nothing(self):
        """Each has its own last calls."""
        seen: list[tuple[str, list[str]]] = []

        def judge(request):
            seen.append((request.run.id, [call.id for call in request.calls]))
            return "proceed"

        steering(judge)
        with Run(agent="a", correlation_id="one") as one, Run(agent="b", correlation_id="two") as two:
            for number in range(2):
                call_in(one, ToolCall(f"one-{number}", "look"))
                call_in(two, ToolCall(f"two-{number}", "look"))

        assert [("one", []), ("two", []), ("one", ["one-0"]), ("two", ["two-0"])] == seen

    def test_it_is_no_receiver_of_what_ends_no_run(self):
        """What costs nothing without listeners still costs nothing."""
        EventLogger.unregister()
        steering(interrupt_tools={"drop"})

        assert not InferenceStartedEvent.has_receivers()
        assert not InferenceGeneratedEvent.has_receivers()

    def test_recent_calls_by_themselves(self):
        """The run that called least recently goes first; what belongs to no run is not kept."""
        calls = RecentCalls()

        assert () == calls.get(None) == calls.add(None, CALL) == calls.get("a")
        assert () == calls.add("a", CALL)
        assert (CALL,) == calls.add("a", CALL)
        assert (CALL, CALL) == calls.get("a")
        calls.forget("a")
        calls.forget(None)
        assert () == calls.get("a")

    def test_a_thread_leaves_nothing_behind(self):
        """Neither the request nor the error stays alive with the thread."""
        hook = steering(lambda request: "proceed")
        call()

        assert [] == hook._threads._overdue
        assert () == _steering.asking.get()
