"""
A model and tools that answer by a script.
"""

from __future__ import annotations

import asyncio
import re
import threading
from types import SimpleNamespace

import pytest

from eventbus import (
    AfterToolCallEvent,
    AsyncRun,
    ModelCallFailedEvent,
    ModelResponse,
    Run,
    ToolCall,
    ToolCallFailedEvent,
)
from eventbus.testing import InTurn, ModelRequest, ScriptedModel, ScriptedTools, capture

LOOKUP = ToolCall("call_1", "lookup", {"order": "A1"})
PAY = ToolCall("call_2", "pay", {"order": "A1", "amount": 5})


class TestModel:
    """`ScriptedModel`."""

    @pytest.mark.parametrize(
        ("answer", "expected"),
        [
            ("Hello.", ModelResponse("Hello.")),
            ("", ModelResponse("")),
            (LOOKUP, ModelResponse(tool_calls=[LOOKUP])),
            ([LOOKUP, PAY], ModelResponse(tool_calls=[LOOKUP, PAY])),
            ((LOOKUP,), ModelResponse(tool_calls=[LOOKUP])),
            (ModelResponse("Hello.", usage=3), ModelResponse("Hello.", usage=3)),
            (lambda messages, **settings: messages[0] + settings["end"], ModelResponse("Hi!")),
            (lambda messages, **settings: [LOOKUP], ModelResponse(tool_calls=[LOOKUP])),
        ],
    )
    def test_an_answer_is_a_response(self, answer, expected):
        """A text, calls, a response, or what a function makes of the request."""
        assert expected == ScriptedModel(answer)(["Hi"], end="!")

    def test_any_object_with_a_response_s_attributes(self):
        """It is the answer itself; so are calls that are like a ToolCall."""
        response = SimpleNamespace(content="Hello.", tool_calls=None)
        call = SimpleNamespace(id="call_1", name="lookup", input={})
        assert response is ScriptedModel(response)([])
        assert [call] == ScriptedModel(call)([]).tool_calls

    def test_answers_come_in_turn(self):
        """One for each request, whoever asks."""
        model = ScriptedModel("one", "two", "three")
        assert "<ScriptedModel with 3 of 3 answers left>" == repr(model)
        with Run() as run:
            assert ["one", "two"] == [run.call_model(model, []).content for _ in range(2)]

        async def main():
            async with AsyncRun() as run:
                return await run.call_model(model, [])

        assert "three" == asyncio.run(main()).content
        model.assert_used_up()

    @pytest.mark.parametrize("error", [TimeoutError("busy"), KeyboardInterrupt(), ZeroDivisionError])
    def test_an_exception_is_raised(self, error):
        """An instance or a class, in place of an answer; the run tells of it."""
        kind = error if isinstance(error, type) else type(error)
        with capture(ModelCallFailedEvent) as recorder, pytest.raises(kind), Run() as run:
            run.call_model(ScriptedModel(error), [])
        assert [kind] == [type(event.error) for event in recorder]

    def test_it_records_the_requests(self):
        """As they were then, though the caller's list grows; those without an answer too."""
        model = ScriptedModel("Hello.")
        messages = [{"role": "user", "content": "Hi"}]
        with Run() as run:
            run.call_model(model, messages, model="m-1", temperature=0)
            messages[0]["content"] = "changed"
            messages.append({})
            with pytest.raises(AssertionError):
                run.call_model(model, [])
        first = ModelRequest([{"role": "user", "content": "Hi"}], {"model": "m-1", "temperature": 0})
        assert [first, ModelRequest([], {})] == model.requests

    def test_an_async_function_is_awaited(self):
        """What it returns is an answer like any; so a test holds a model open."""
        asked, go_on = asyncio.Event(), asyncio.Event()

        async def slow(messages):
            asked.set()
            await go_on.wait()
            return "at last"

        async def main():
            async with AsyncRun() as run:
                task = asyncio.create_task(run.call_model(ScriptedModel(slow), []))
                await asked.wait()
                assert not task.done()
                go_on.set()
                return await task

        assert ModelResponse("at last") == asyncio.run(main())

    def test_a_plain_run_refuses_an_async_function(self):
        """With the run's own error, and no warning."""

        async def slow(messages):
            raise NotImplementedError

        with pytest.raises(TypeError, match="A plain Run cannot await"), Run() as run:
            run.call_model(ScriptedModel(slow), [])

    @pytest.mark.parametrize("answer", [None, 3, [], [LOOKUP, "text"], {"role": "assistant"}])
    def test_what_is_no_answer(self, answer):
        """A TypeError that shows it: at once, or when a function returns it."""
        with pytest.raises(TypeError, match=re.escape(f"{answer!r} is no answer of a model: give a ModelRe")):
            ScriptedModel("one", answer)
        with pytest.raises(TypeError, match=re.escape(f"{answer!r} is no answer of a model: give a ModelRe")):
            ScriptedModel(lambda messages: answer)([])

    def test_a_script_that_is_used_up(self):
        """An error that tells how long it was, and what was asked; again at the end, if nobody heard it."""
        model = ScriptedModel("one", "two")
        for _ in range(2):
            model([])
        text = "The script of the model is used up (it had 2); request 3 was: ['more']"
        with pytest.raises(AssertionError) as caught:
            model(["more"])
        assert text == str(caught.value)
        with pytest.raises(AssertionError, match=re.escape(text)):
            model.assert_used_up()

    def test_a_script_that_is_left_over(self):
        """The end of the block, or `assert_used_up`, names the answers that nobody asked for."""
        with pytest.raises(AssertionError) as caught, ScriptedModel("one", "two", KeyError) as model:
            model([])
        text = "Answers of the model that were not asked for (2 of 3):\n  "
        assert (
            text + "ModelResponse(content='two', tool_calls=[], model=None, usage=None, finish_reason=None,"
            == (str(caught.value).rpartition(" raw")[0])
        )
        assert str(caught.value).endswith("raw=None)\n  <class 'KeyError'>")

    def test_an_error_of_the_block_goes_first(self):
        """What is left over because of it is not told."""
        with pytest.raises(ZeroDivisionError), ScriptedModel("one"):
            raise ZeroDivisionError

    def test_an_empty_script(self):
        """A model that must not be asked."""
        with ScriptedModel() as model:
            assert [] == model.requests


class TestTools:
    """`ScriptedTools`."""

    def results(self, tools, *calls):
        """Return what a run's tools answer."""
        with Run() as run:
            return [result for _, result in run.call_tools(calls, tools)]

    @pytest.mark.parametrize("answer", [{"total": 12}, None, [1, 2], "text", 0])
    def test_a_result_answers_every_call(self, answer):
        """Whatever it is, lists included."""
        with ScriptedTools({"lookup": answer}) as tools:
            assert [answer, answer] == [result.data for result in self.results(tools, LOOKUP, LOOKUP)]

    @pytest.mark.parametrize("error", [RuntimeError("down"), RuntimeError])
    def test_an_exception_is_raised_at_every_call(self, error):
        """It is the tool's failure, as ever."""
        with capture(ToolCallFailedEvent) as recorder, ScriptedTools({"lookup": error}) as tools:
            results = self.results(tools, LOOKUP, LOOKUP)
        assert [False, False] == [result.success for result in results]
        assert [RuntimeError] * 2 == [type(event.error) for event in recorder]

    def test_a_function_is_called_with_the_arguments(self):
        """As a real tool, whatever its arguments are called."""
        with ScriptedTools({"lookup": lambda *, order, answer=0: order.lower()}) as tools:
            odd = ToolCall("call_3", "lookup", {"order": "B2", "answer": 1})
            assert ["a1", "b2"] == [result.data for result in self.results(tools, LOOKUP, odd)]

    def test_an_async_function_is_awaited(self):
        """By an AsyncRun, among plain results."""

        async def pay(order, amount):
            await asyncio.sleep(0)
            return amount

        async def main():
            async with AsyncRun() as run:
                return await run.call_tools(
                    [LOOKUP, PAY], ScriptedTools({"lookup": 1, "pay": pay}), parallel=2
                )

        assert [1, 5] == [result.data for _, result in asyncio.run(main())]

    def test_in_turn_gives_one_after_another(self):
        """Results, errors and functions; a call that is retried is answered again."""
        busy = InTurn(TimeoutError("busy"), {"paid": True}, lambda **arguments: arguments["amount"])
        assert "InTurn(TimeoutError('busy'), {'paid': True}, <function" == repr(busy).partition(" TestT")[0]
        AfterToolCallEvent.subscribe(lambda event: setattr(event, "retry", event.error is not None))
        for _ in range(2):
            # The answers of another script are its own.
            with ScriptedTools({"pay": busy}) as tools:
                assert [{"paid": True}, 5] == [result.data for result in self.results(tools, PAY, PAY)]
            assert [PAY] * 3 == tools.calls

    def test_it_records_the_calls(self):
        """As they were executed, in order, unknown ones too."""
        tools = ScriptedTools({"pay": None})
        assert "<ScriptedTools: pay>" == repr(tools)
        self.results(tools, PAY, LOOKUP)
        assert [PAY, LOOKUP] == tools.calls

    @pytest.mark.parametrize(("known", "told"), [({"a": 1, "b": 2}, "a, b"), ({}, "none")])
    def test_an_unknown_tool(self, known, told):
        """An error that names those there are; what a run makes a tool's answer is raised at the end."""
        text = f"The script has no tool 'lookup'; it has: {told}."
        with pytest.raises(AssertionError) as caught, ScriptedTools(known) as tools:
            assert [text] == [str(result.error) for result in self.results(tools, LOOKUP)]
        assert text == str(caught.value)

    def test_a_tool_that_is_used_up(self):
        """So is one call too many."""
        with pytest.raises(AssertionError) as caught, ScriptedTools({"lookup": InTurn(1)}) as tools:
            self.results(tools, LOOKUP, LOOKUP)
        assert "The script of the tool 'lookup' is used up; asked for: {'order': 'A1'}" == str(caught.value)

    def test_answers_that_are_left_over(self):
        """They are named with their tool."""
        script = {"lookup": InTurn(1, 2, KeyError), "pay": InTurn("paid"), "other": 3}
        with pytest.raises(AssertionError) as caught, ScriptedTools(script) as tools:
            self.results(tools, LOOKUP, PAY)
        assert "Answers of the tool 'lookup' that were not asked for: 2, <class 'KeyError'>" == str(
            caught.value
        )

    def test_pairs(self):
        """What `dict` takes is a script as well."""
        with ScriptedTools([("lookup", InTurn(1))]) as tools:
            assert [1] == [result.data for result in self.results(tools, LOOKUP)]

    def test_from_several_threads(self):
        """Each answer is given once."""
        tools = ScriptedTools({"lookup": InTurn(*range(1000))})
        got = []
        threads = [
            threading.Thread(target=lambda: got.extend(tools(LOOKUP) for _ in range(250))) for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert list(range(1000)) == sorted(got)
        tools.assert_used_up()
