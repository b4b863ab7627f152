"""ModelRetryHook: what is retried, how often, how long the run waits first, and what it says of it."""

from __future__ import annotations

import asyncio
import functools
import random
import threading
from concurrent.futures import CancelledError
from email.utils import formatdate
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eventbus import (
    AfterModelCallEvent,
    AsyncRun,
    BeforeModelCallEvent,
    EventLogger,
    GateDecisionEvent,
    HandlerFailedEvent,
    Hook,
    ModelCallStartedEvent,
    ModelResponse,
    Priority,
    Run,
    ToolCall,
    _clock,
    hooks,
    on,
)
from eventbus._retrying import is_blank, retry_after
from eventbus.policies import ModelRetryHook, is_transient
from eventbus.testing import capture

CALLS = (ToolCall("call_0", "lookup_order"),)
GOOD = ModelResponse("12 euros")
EMPTY = ModelResponse("")


class StatusError(Exception):
    """What providers' clients raise: a status, and perhaps a response."""

    def __init__(self, status: Any = None, **more: Any) -> None:
        super().__init__(f"status {status}")
        if status is not None:
            self.status_code = status
        vars(self).update(more)


@pytest.fixture
def retry():
    """Return a live hook that never waits."""

    class Retry(ModelRetryHook):
        initial_delay = 0

    return Retry


@pytest.fixture
def waits(monkeypatch):
    """Return the seconds that runs have waited, without waiting."""
    seconds: list[float] = []
    monkeypatch.setattr(_clock, "sleep", seconds.append)
    return seconds


class Script:
    """A model that answers what it is given, in order, and the last of it for ever."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.asked = 0

    def __call__(self, messages: Any, **settings: Any) -> Any:
        answer = self.answers[min(self.asked, len(self.answers) - 1)]
        self.asked += 1
        if isinstance(answer, BaseException):
            raise answer
        return answer


def ask(*answers: Any, **settings: Any) -> Script:
    """Ask a model once in a run of its own, and return the model; what it raises at last is dropped."""
    model = Script(*answers)
    with Run(agent="sundae", **settings) as run:
        try:
            run.call_model(model, ["hello"])
        except (StatusError, TimeoutError, ValueError):
            pass
    return model


def decided(recorder: Any) -> list[tuple[Any, ...]]:
    """Return what the gates have decided."""
    return [(event.action, event.reason, event.applied) for event in recorder.events if event.gate]


class TestEmptyAnswers:
    @pytest.mark.parametrize(
        "content",
        [
            None,
            "",
            " ",
            "\n\t\u2003",
            [],
            [""],
            [{"type": "text", "text": " "}],
            [SimpleNamespace(text="")],
            [None],
        ],
        ids=repr,
    )
    def test_nothing_and_whitespace_are_empty(self, retry, content):
        """With content of parts, every part must be."""
        assert 2 == ask(ModelResponse(content), GOOD).asked

    @pytest.mark.parametrize(
        "content",
        ["a", "0", [{"type": "image"}], [" ", {"text": "a"}], 0, {"answer": 1}, [SimpleNamespace(text=None)]],
        ids=repr,
    )
    def test_what_says_something_is_not(self, retry, content):
        """A part without text says something else."""
        assert 1 == ask(ModelResponse(content), GOOD).asked

    def test_tool_calls_are_an_answer(self, retry):
        """Text is not needed then."""
        assert 1 == ask(ModelResponse("", CALLS), GOOD).asked

    def test_none_is_no_answer(self, retry):
        """A model that returns None has said nothing."""
        assert 2 == ask(None, GOOD).asked

    @pytest.mark.parametrize(
        ("answer", "asked"),
        [("hello", 1), (" ", 2), ({"content": "hello"}, 1), (SimpleNamespace(choices=["hello"]), 1)],
    )
    def test_an_answer_in_another_form(self, retry, answer, asked):
        """A text is what it says itself; what cannot be read is not taken for empty, and paid for again."""
        assert asked == ask(answer, GOOD).asked

    def test_an_object_with_the_attributes_of_a_response(self, retry):
        """Any object will do, also one that cannot be read."""

        class Sealed:
            @property
            def content(self):
                raise RuntimeError

        assert 2 == ask(SimpleNamespace(content=" ", tool_calls=None), GOOD).asked
        assert 2 == ask(Sealed(), GOOD).asked

    def test_it_can_be_switched_off(self):
        """`retry_on_empty = False` accepts an empty answer."""

        class Retry(ModelRetryHook):
            retry_on_empty = False

        assert 1 == ask(EMPTY, GOOD).asked

    @given(st.recursive(st.sampled_from(["", " ", "\n", None]), lambda inner: st.lists(inner, max_size=3)))
    def test_blank_parts_make_a_blank_whole(self, content):
        """However they are nested, and one word among them changes it."""
        assert is_blank(content)
        assert not is_blank([content, "word"])


class TestTransientErrors:
    @pytest.mark.parametrize(
        "error",
        [
            TimeoutError(),
            ConnectionError(),
            ConnectionResetError(),
            StatusError(408),
            StatusError(409),
            StatusError(429),
            StatusError(500),
            StatusError(529),
            StatusError(response=SimpleNamespace(status_code=503)),
            StatusError(status=502),
            StatusError(code=429),
            type("APITimeoutError", (type("APIConnectionError", (Exception,), {}),), {})(),
            type("ReadTimeout", (type("TimeoutException", (Exception,), {}),), {})(),
            type("ConnectionError", (OSError,), {})(),
        ],
        ids=lambda error: f"{type(error).__name__} {error}",
    )
    def test_those_that_go_away(self, error):
        """Time, connections, and the statuses that clients retry themselves."""
        assert is_transient(error)

    @pytest.mark.parametrize(
        "error",
        [
            ValueError(),
            OSError(),
            StatusError(400),
            StatusError(401),
            StatusError(404),
            StatusError(422),
            StatusError(code="rate_limit_exceeded"),
            StatusError(code=lambda: 429),
            StatusError(600),
            type("APIConnectionError", (Exception,), {"status_code": 400})(),
            CancelledError(),
            asyncio.CancelledError(),
            KeyboardInterrupt(),
            type("Timeout", (BaseException,), {})(),
        ],
        ids=lambda error: f"{type(error).__name__} {error}",
    )
    def test_those_that_do_not(self, error):
        """A request that is wrong stays wrong, and an interrupt is obeyed."""
        assert not is_transient(error)

    def test_one_that_cannot_be_looked_at(self):
        """Its own failure is not the gate's."""

        class Rude(Exception):
            def __getattr__(self, name):
                raise RuntimeError

        assert not is_transient(Rude())
        assert None is retry_after(Rude())

    def test_they_are_retried(self, retry):
        """The call returns what the model says at last."""
        assert 3 == ask(TimeoutError(), StatusError(429), GOOD).asked

    def test_others_are_raised_at_once(self, retry):
        """A retry would come to the same."""
        assert 1 == ask(StatusError(400), GOOD).asked

    def test_types_of_ones_own(self):
        """They take the place of the default."""

        class Retry(ModelRetryHook):
            initial_delay = 0
            transient = (ValueError,)

        assert 2 == ask(ValueError(), GOOD).asked
        assert 1 == ask(TimeoutError(), GOOD).asked

    def test_one_type(self):
        """A single type needs no tuple."""

        class Retry(ModelRetryHook):
            initial_delay = 0
            transient = ValueError

        assert 2 == ask(ValueError(), GOOD).asked

    def test_a_function(self):
        """It is asked, and may ask the default."""

        class Retry(ModelRetryHook):
            initial_delay = 0
            transient = lambda error: is_transient(error) or "status 400" in str(error)  # noqa: E731

        assert 2 == ask(StatusError(400), GOOD).asked
        assert 2 == ask(StatusError(429), GOOD).asked
        assert 1 == ask(StatusError(404), GOOD).asked

    def test_a_method(self):
        """It is called with self."""

        class Retry(ModelRetryHook):
            initial_delay = 0
            _known = ("status 400",)

            def transient(self, error):
                return str(error) in self._known

        assert 2 == ask(StatusError(400), GOOD).asked

    def test_an_async_function_cannot_answer_here(self):
        """It would always say yes; it is an error that names the hook."""

        class Retry(ModelRetryHook):
            async def transient(self, error):
                return True

        with (
            capture(HandlerFailedEvent) as failures,
            pytest.raises(TypeError, match=r"Retry\.transient must not be"),
        ):
            with Run(agent="sundae") as run:
                run.call_model(Script(StatusError(400)), [])

        assert 1 == len(failures.events)

    def test_a_predicate_that_raises_ends_the_run(self):
        """It is a gate that has failed; the model's error is told all the same."""

        class Retry(ModelRetryHook):
            def transient(self, error):
                raise LookupError("no such error")

        with pytest.raises(LookupError, match="no such error"), Run(agent="sundae") as run:
            run.call_model(Script(StatusError(429)), [])

    @pytest.mark.parametrize(
        ("value", "error"),
        [
            ("TimeoutError", TypeError),
            ((TimeoutError, "x"), TypeError),
            ((int,), TypeError),
            (3, TypeError),
            (BaseException, ValueError),
            ((asyncio.CancelledError,), ValueError),
            ((TimeoutError, KeyboardInterrupt), ValueError),
        ],
    )
    def test_what_is_no_error_to_retry(self, value, error):
        """It is refused when the class is created."""
        with pytest.raises(error, match=r"Retry\.transient must be exception types"):
            type(ModelRetryHook)("Retry", (ModelRetryHook,), {"transient": value})

    def test_none_at_all(self):
        """An empty tuple retries no error."""

        class Retry(ModelRetryHook):
            initial_delay = 0
            transient = ()

        assert 1 == ask(TimeoutError(), GOOD).asked

    @pytest.mark.parametrize("error", [KeyboardInterrupt, asyncio.CancelledError, GeneratorExit])
    def test_an_interrupt_goes_through(self, error):
        """No gate is asked about it."""

        class Retry(ModelRetryHook):
            transient = lambda error: True  # noqa: E731

        model = Script(error(), GOOD)
        with pytest.raises(error), Run(agent="sundae") as run:
            run.call_model(model, [])

        assert 1 == model.asked

    def test_an_interrupt_that_somebody_puts_into_the_gate(self):
        """It is not retried either."""

        class Retry(ModelRetryHook):
            transient = lambda error: True  # noqa: E731

        assert not AfterModelCallEvent.emit(error=KeyboardInterrupt()).retry


class TestHowOften:
    @pytest.mark.parametrize(("limit", "asked"), [(0, 1), (1, 2), (3, 4)])
    def test_max_retries_counts_the_retries(self, limit, asked):
        """The first attempt is none."""

        class Retry(ModelRetryHook):
            initial_delay = 0
            max_retries = limit

        assert asked == ask(EMPTY).asked
        assert asked == ask(TimeoutError()).asked

    def test_three_by_default(self, retry):
        """As in the original."""
        assert 4 == ask(EMPTY).asked

    def test_each_call_counts_anew(self, retry):
        """What one call has used is not missing for the next."""
        model = Script(EMPTY, EMPTY, GOOD, EMPTY, EMPTY, EMPTY, GOOD)
        with Run(agent="sundae") as run:
            answers = [run.call_model(model, []), run.call_model(model, [])]

        assert [GOOD, GOOD] == answers
        assert 7 == model.asked

    def test_the_lower_of_two_limits_counts(self):
        """Run limits the retries of a call, whoever asks for them."""

        class Retry(ModelRetryHook):
            initial_delay = 0
            max_retries = 10

        with capture(GateDecisionEvent) as recorder:
            assert 3 == ask(EMPTY, max_retries=2).asked

        assert [("retry", "empty answer", True)] * 2 + [("retry", "empty answer", False)] == decided(recorder)

    def test_after_the_last_an_empty_answer_is_accepted(self, retry):
        """The run goes on with it."""
        with Run(agent="sundae") as run:
            assert EMPTY == run.call_model(Script(EMPTY), [])

    def test_after_the_last_an_error_is_raised(self, retry):
        """It is the model's own."""
        with pytest.raises(StatusError, match="status 429"), Run(agent="sundae") as run:
            run.call_model(Script(StatusError(429)), [])


class TestHowLong:
    @pytest.mark.parametrize("seed", range(5))
    def test_full_jitter(self, waits, seed):
        """A random time between 0 and the ceiling, which grows up to the cap."""

        class Retry(ModelRetryHook):
            max_retries = 5
            initial_delay = 2
            backoff_factor = 3
            max_delay = 40
            random = random.Random(seed)

        ask(EMPTY)

        same = random.Random(seed)
        assert [same.uniform(0, ceiling) for ceiling in (2, 6, 18, 40, 40)] == waits

    def test_the_defaults(self, waits):
        """1 second, doubled, and 30 at most."""

        class Top(random.Random):
            def uniform(self, a, b):
                return b

        class Retry(ModelRetryHook):
            max_retries = 7
            random = Top()

        ask(EMPTY, max_retries=7)

        assert [1, 2, 4, 8, 16, 30, 30] == waits

    def test_the_default_source_needs_no_seed(self):
        """Processes forked from one another do not wait in step."""
        assert isinstance(ModelRetryHook.random, random.SystemRandom)

    def test_the_source_must_be_one(self):
        """A seed is none."""
        with pytest.raises(TypeError, match=r"Retry\.random must be a random\.Random"):

            class Retry(ModelRetryHook):
                random = 7

    def test_a_factor_must_not_shrink(self):
        """Each ceiling is at least the one before."""
        with pytest.raises(ValueError, match=r"Retry\.backoff_factor must be a number of at least 1"):

            class Retry(ModelRetryHook):
                backoff_factor = 0.5

    def test_no_delay_is_a_retry_all_the_same(self, retry, waits):
        """0 seconds would otherwise read as no retry."""
        assert 2 == ask(EMPTY, GOOD).asked
        assert [0] == waits

    def test_a_ceiling_beyond_all_numbers(self):
        """The cap holds."""

        class Retry(ModelRetryHook):
            max_retries = 10_000
            max_delay = 3

        for attempt in (5_000, 9_999):
            assert 0 < AfterModelCallEvent.emit(response=EMPTY, attempt=attempt).retry <= 3
        Retry.initial_delay = 0
        assert AfterModelCallEvent.emit(response=EMPTY, attempt=5_000).retry is True

    @given(st.integers(1, 50), st.floats(0, 1e6), st.floats(0, 1e6), st.floats(1, 1e6))
    def test_no_wait_is_longer_than_the_cap(self, attempt, initial, cap, factor):
        """Whatever the settings."""
        settings = {"initial_delay": initial, "max_delay": cap, "backoff_factor": factor, "abstract": True}
        hook = type(ModelRetryHook)("Retry", (ModelRetryHook,), {**settings, "max_retries": 100})()
        event = AfterModelCallEvent(response=EMPTY, attempt=attempt)
        hook.again(event)

        assert event.retry is True or 0 < event.retry <= cap

    def test_an_async_run_waits_on_its_loop(self, retry):
        """The loop goes on meanwhile."""

        class Slow(retry):
            replaces = True
            initial_delay = 0.001

        model = Script(EMPTY, GOOD)

        async def main():
            async with AsyncRun(agent="sundae") as run:
                return await run.call_model(model, [])

        assert GOOD == asyncio.run(main())
        assert 2 == model.asked


def in_seconds(seconds: float) -> str:
    return formatdate(1_000_000_000 + seconds, usegmt=True)


class TestRetryAfter:
    @pytest.mark.parametrize(
        ("error", "seconds"),
        [
            (StatusError(429, retry_after=7), 7),
            (StatusError(429, retry_after="7.5"), 7.5),
            (StatusError(429, response=SimpleNamespace(headers={"retry-after": "7"})), 7),
            (StatusError(429, response=SimpleNamespace(headers={"Retry-After": "7"})), 7),
            (StatusError(429, headers={"Retry-After": "7"}), 7),
            (StatusError(429, retry_after=2, headers={"Retry-After": "7"}), 2),
            (StatusError(429, headers={"Retry-After": in_seconds(9)}), 9),
            (StatusError(429, headers={"Retry-After": in_seconds(-9)}), 0),
            (StatusError(429, headers={"Retry-After": in_seconds(9).replace("GMT", "-0000")}), 9),
            (StatusError(429, retry_after=0), 0),
        ],
        ids=range(10),
    )
    def test_seconds_and_dates(self, monkeypatch, error, seconds):
        """From the error, from its response, or from its own headers."""
        monkeypatch.setattr(_clock, "time", lambda: 1_000_000_000.0)

        assert seconds == retry_after(error)

    @pytest.mark.parametrize(
        "value",
        [
            None,
            True,
            -1,
            float("nan"),
            float("inf"),
            10**400,
            "soon",
            "-3",
            "nan",
            "",
            b"7",
            [7],
            "Mon, 99 Foo",
            "x" * 9999,
        ],
        ids=range(14),
    )
    def test_what_makes_no_sense_is_as_if_it_were_not_there(self, value):
        """Then the jitter counts."""
        assert None is retry_after(StatusError(429, retry_after=value))
        assert None is retry_after(StatusError(429, headers={"retry-after": value}))

    def test_headers_that_are_none(self):
        """Neither a mapping nor what resembles one."""
        assert None is retry_after(StatusError(429, headers=3, response=SimpleNamespace(headers="x")))

    @given(st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(), st.binary()))
    def test_any_value_is_a_time_to_wait_or_none(self, value):
        """A header comes from outside."""
        seconds = retry_after(StatusError(429, retry_after=value))

        assert seconds is None or 0 <= seconds < float("inf")

    def test_the_run_waits_that_long(self, retry, waits):
        """Neither more nor less."""
        ask(StatusError(429, retry_after=7), StatusError(429, retry_after=0.5), GOOD)

        assert [7, 0.5] == waits

    def test_and_the_cap_at_most(self, waits):
        """No wait is longer than `max_delay`."""

        class Retry(ModelRetryHook):
            max_delay = 4

        ask(StatusError(429, retry_after=86_400), GOOD)

        assert [4] == waits

    def test_no_cap_that_counts(self, waits):
        """A wait that no lock can wait for is cut to one that it can, and does not fail the run."""

        class Retry(ModelRetryHook):
            max_delay = 1e300

        ask(StatusError(429, retry_after=1e299), GOOD)

        assert [threading.TIMEOUT_MAX] == waits

    def test_the_next_retry_is_jittered_again(self, waits):
        """Only the error that asks is obeyed."""

        class Retry(ModelRetryHook):
            random = random.Random(3)

        ask(StatusError(429, retry_after=7), StatusError(500), GOOD)

        assert [7, random.Random(3).uniform(0, 2)] == waits


class TestWhatIsTold:
    def test_each_retry_is_a_decision_with_its_reason(self, retry):
        """The reason is what was wrong; the error's own text is in ModelCallFailed."""
        with capture(GateDecisionEvent) as recorder:
            ask(EMPTY, TimeoutError("secret"), StatusError(429), GOOD)

        assert [
            ("retry", "empty answer", True),
            ("retry", "TimeoutError", True),
            ("retry", "StatusError 429", True),
        ] == decided(recorder)
        assert {("AfterModelCallEvent", "Retry.again")} == {(e.gate, e.by) for e in recorder.events}

    def test_giving_up_is_told(self, retry):
        """As a warning of the gate, with the run."""
        with capture(GateDecisionEvent) as recorder:
            ask(EMPTY, correlation_id="run-1")

        last = recorder.events[-1]
        assert ("warn", "empty answer, after 3 retries", True) == decided(recorder)[-1]
        assert ("run-1", "run-1", "Retry.again") == (last.correlation_id, last.run.id, last.by)

    def test_without_retries_nothing_is_told(self):
        """Who allows none is not told that there were none."""

        class Retry(ModelRetryHook):
            max_retries = 0

        with capture(GateDecisionEvent) as recorder:
            ask(EMPTY)

        assert [] == recorder.events

    def test_the_line(self, retry, capfd):
        """As the contract has it."""
        EventLogger.register()
        ask(EMPTY, GOOD, correlation_id="run-1")

        assert 'run-1 GATE RETRY model by=Retry.again reason="empty answer"\n' in capfd.readouterr().err

    def test_in_pieces_it_is_recorded_and_not_applied(self, retry):
        """Who makes the call himself cannot be had to make it again."""
        with capture(GateDecisionEvent) as recorder, Run(agent="sundae") as run:
            with run.model_call(["hello"]) as piece:
                piece.set(EMPTY)

        assert [("retry", "empty answer", False)] == decided(recorder)

    def test_an_answer_of_a_gate_is_not_asked_for_again(self, retry):
        """There is nobody to ask."""
        BeforeModelCallEvent.subscribe(lambda gate: setattr(gate, "response", EMPTY))
        with capture(GateDecisionEvent) as recorder:
            assert 0 == ask(GOOD).asked

        assert ("retry", "empty answer", False) == decided(recorder)[-1]

    def test_as_a_shadow_it_only_watches(self):
        """What it would have done is recorded, and not done."""

        class Retry(ModelRetryHook):
            shadow = True

        with capture(GateDecisionEvent) as recorder:
            assert 1 == ask(EMPTY, GOOD).asked

        assert [("retry", "empty answer", False)] == decided(recorder)

    def test_every_attempt_has_its_own_start(self, retry):
        """They are counted from 1."""
        with capture(ModelCallStartedEvent) as recorder:
            ask(EMPTY, EMPTY, GOOD)

        assert [1, 2, 3] == [event.attempt for event in recorder.events]


class TestWithOthers:
    def test_a_retry_that_is_asked_for_already_stands(self, retry, waits):
        """The other gate's delay counts."""

        class First(Hook):
            priority = Priority.DEFAULT + 1

            @on(AfterModelCallEvent, when=lambda event: event.attempt == 1)
            def wait(self, event):
                event.retry = 9

        ask(EMPTY, GOOD)

        assert [9] == waits

    def test_a_response_in_the_place_of_an_error(self, retry):
        """A gate that has an answer to a failure is believed."""

        class Fallback(Hook):
            priority = Priority.DEFAULT + 1

            @on(AfterModelCallEvent, when=lambda event: event.error is not None)
            def answer(self, event):
                event.response = GOOD

        assert 1 == ask(TimeoutError()).asked

    def test_an_empty_response_in_the_place_of_an_error(self, waits):
        """It is an empty answer, whatever the error asked for."""

        class Retry(ModelRetryHook):
            initial_delay = 0

        class Fallback(Hook):
            priority = Priority.DEFAULT + 1

            @on(AfterModelCallEvent, when=lambda event: event.error is not None)
            def answer(self, event):
                event.response = EMPTY

        with capture(GateDecisionEvent) as recorder:
            ask(StatusError(429, retry_after=7), GOOD)

        assert ("retry", "empty answer", True) in decided(recorder)
        assert [0] == waits

    def test_its_place_in_the_order(self, retry):
        """DEFAULT: among the first of an After-gate, whose handlers run in the opposite order."""
        assert Priority.DEFAULT == retry.priority


class TestManyRuns:
    def test_concurrent_runs_share_nothing(self, retry):
        """Each call has its own three retries, whatever the others do meanwhile."""
        asked: dict[int, int] = {}
        barrier = threading.Barrier(8)

        def one(number: int) -> None:
            barrier.wait()
            model = Script(*[EMPTY] * (number % 4), GOOD)
            with Run(agent="sundae") as run:
                for _ in range(5):
                    model.asked = 0
                    assert GOOD == run.call_model(model, [])
            asked[number] = model.asked

        threads = [threading.Thread(target=functools.partial(one, number)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

        assert {number: number % 4 + 1 for number in range(8)} == asked

    def test_concurrent_tasks_share_nothing(self, retry):
        """Nor do runs on one loop."""

        async def one(number: int) -> int:
            model = Script(*[EMPTY] * number, GOOD)
            async with AsyncRun(agent="sundae") as run:
                assert GOOD == await run.call_model(model, [])
            return model.asked

        async def main() -> list[int]:
            return await asyncio.gather(*(one(number % 4) for number in range(40)))

        assert [number % 4 + 1 for number in range(40)] == asyncio.run(main())

    def test_it_keeps_nothing(self, retry):
        """There is no state to leave behind: neither on the class nor an instance of it."""
        before = dict(vars(retry))
        for _ in range(50):
            ask(EMPTY, GOOD)

        assert before == dict(vars(retry))
        assert not retry.stateful
        assert not retry.shared

    def test_without_a_run(self, retry):
        """A gate that somebody else emits is judged alike."""
        assert True is AfterModelCallEvent.emit(response=EMPTY).retry


def test_the_hook_itself_does_not_sleep(waits):
    """The time to wait is the run's to spend."""

    class Retry(ModelRetryHook):
        initial_delay = 30

    assert 30 == AfterModelCallEvent.emit(error=StatusError(429, retry_after=30)).retry
    assert [] == waits


def test_the_shipped_class_stays_as_it_is():
    """A live subclass leaves the base abstract, with its defaults."""

    class Retry(ModelRetryHook):
        max_retries = 1

    assert 3 == ModelRetryHook.max_retries
    assert ["Retry"] == [
        info.name for info in hooks() if info.state == "live" and info.cls is not EventLogger
    ]
