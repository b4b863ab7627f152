"""
A model and tools that answer by a script.
"""

from __future__ import annotations

import asyncio
import dataclasses
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

    @pytest.mark.parametrize("answer", [None, 3, [], [LOOKUP, 3], {"role": "assistant"}])
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
        """What is left over is told in a note on it."""
        with pytest.raises(ZeroDivisionError) as caught, ScriptedModel(KeyError):
            raise ZeroDivisionError
        assert [
            "Answers of the model that were not asked for (1 of 1):\n  <class 'KeyError'>"
        ] == caught.value.__notes__

    def test_an_error_that_takes_no_note(self):
        """Goes first all the same."""

        class Closed(Exception):
            def add_note(self, note):
                raise TypeError

        with pytest.raises(Closed), ScriptedModel("one"):
            raise Closed

    def test_the_script_beside_it_is_not_lost(self):
        """Of two scripts in one `with`, what the other complains of is a note."""
        with (
            pytest.raises(AssertionError) as caught,
            ScriptedModel(KeyError),
            ScriptedTools({"pay": InTurn("paid")}),
        ):
            pass
        assert "Answers of the tool 'pay' that were not asked for: 'paid'" == str(caught.value)
        assert [
            "Answers of the model that were not asked for (1 of 1):\n  <class 'KeyError'>"
        ] == caught.value.__notes__

    def test_its_own_error_is_not_told_twice(self):
        """What was asked for in vain stands in the error itself."""
        with pytest.raises(AssertionError, match="used up") as caught, ScriptedModel() as model:
            model([])
        assert not hasattr(caught.value, "__notes__")

    @pytest.mark.parametrize("error", [KeyError("a"), KeyError])
    def test_an_exception_that_a_function_returns(self, error):
        """It is raised, as one that the function raises; from an async one too."""

        async def later(messages):
            return error

        with pytest.raises(KeyError):
            ScriptedModel(lambda messages: error)([])
        with pytest.raises(KeyError):
            asyncio.run(ScriptedModel(later)([]).run())

    @pytest.mark.parametrize(
        ("answer", "fix"),
        [
            (InTurn("a", LOOKUP), f"ScriptedModel('a', {LOOKUP!r})"),
            (InTurn(LOOKUP), f"ScriptedModel({LOOKUP!r})"),
            (["a", "b"], "ScriptedModel('a', 'b')"),
            ([LOOKUP, "a"], f"ScriptedModel({LOOKUP!r}, 'a')"),
            ([ModelResponse("a")], f"ScriptedModel({ModelResponse('a')!r})"),
        ],
    )
    def test_answers_in_one(self, answer, fix):
        """A TypeError that says how they are given: one after another."""
        with pytest.raises(TypeError) as caught:
            ScriptedModel(answer)
        head = f"{answer!r} is no answer of a model, which gives its answers one after another anyway: "
        assert f"{head}write {fix}." == str(caught.value)

    def test_a_failed_assertion_in_a_function(self):
        """It is raised, and again at the end, if the caller has gone on in spite of it."""

        def check(messages):
            assert not messages, "no system prompt"

        with pytest.raises(AssertionError) as caught, ScriptedModel(check, "b") as model:
            with pytest.raises(AssertionError, match="no system prompt"):
                model(["Hi"])
            model([])
        assert str(caught.value).startswith(
            "The function of the model has failed an assertion: no system prompt"
        )

    def test_messages_that_are_objects(self):
        """As they were then, if they equal their copy; others are what they are, and can be compared."""

        @dataclasses.dataclass
        class Message:
            text: str
            extra: object = None

        class Ambiguous:
            def __eq__(self, other):
                raise ValueError

            __hash__ = None

        thing, lock, ambiguous = object(), Message("b", threading.Lock()), Ambiguous()
        messages = [Message("a"), {"inner": (Message("c"),)}, thing, lock, ambiguous]
        model = ScriptedModel("one")
        model(messages, tools=[thing])
        messages[0].text = messages[1]["inner"][0].text = "changed"
        assert [Message("a"), {"inner": (Message("c"),)}] == model.requests[0].messages[:2]
        assert [True] * 3 == [
            one is other
            for one, other in zip(model.requests[0].messages[2:], [thing, lock, ambiguous], strict=True)
        ]
        assert {"tools": [thing]} == model.requests[0].settings

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

    @pytest.mark.parametrize("kind", ["sync", "async"])
    def test_a_failed_assertion_in_a_function(self, kind):
        """A run makes a tool's answer of it, so that the end of the block raises it again."""

        def check(**arguments):
            assert "B2" == arguments["order"], "a wrong order"

        async def check_later(**arguments):
            check(**arguments)

        async def main():
            async with AsyncRun() as run:
                await run.call_tools([LOOKUP], tools)

        with (
            pytest.raises(AssertionError) as caught,
            ScriptedTools({"lookup": check if kind == "sync" else check_later}) as tools,
        ):
            asyncio.run(main())
        assert str(caught.value).startswith(
            "The function of the tool 'lookup' has failed an assertion: a wrong order"
        )
        assert str(caught.value.__cause__).startswith("a wrong order")

    @pytest.mark.parametrize("kind", ["sync", "async"])
    def test_an_exception_that_a_function_returns(self, kind):
        """It is raised, in a run the tool's failure."""

        async def later(**arguments):
            return TimeoutError("busy")

        async def main():
            async with AsyncRun() as run:
                return await run.call_tools([LOOKUP], ScriptedTools({"lookup": answers[kind]}))

        answers = {"sync": lambda **arguments: TimeoutError("busy"), "async": later}
        assert ["busy"] == [result.error for _, result in asyncio.run(main())]

    @pytest.mark.parametrize(
        ("arguments", "told"),
        [
            ("a=1", "must be a mapping, not 'a=1'."),
            ([1], "must be a mapping, not [1]."),
            ({1: 2}, "must have names for keys, not {1: 2}."),
        ],
    )
    @pytest.mark.parametrize("answer", [InTurn(1), InTurn(dict)])
    def test_arguments_that_no_tool_could_have(self, answer, arguments, told):
        """The error of a run with plain functions, and the answer is not used up."""
        tools = ScriptedTools({"lookup": answer})
        results = self.results(tools, ToolCall("call_1", "lookup", arguments))
        assert [f"The arguments of 'lookup' {told}"] == [result.error for result in results]
        with pytest.raises(AssertionError, match="Answers of the tool 'lookup' that were not asked for"):
            tools.assert_used_up()

    @pytest.mark.parametrize("answers", [["refund"], ["ab"], None, 3, {1: "done"}, [("a", 1, 2)], "text"])
    def test_what_is_no_script(self, answers):
        """A TypeError that shows it, and how one is written."""
        with pytest.raises(TypeError) as caught:
            ScriptedTools(answers)
        assert (
            "ScriptedTools needs the answer of each tool by its name, as in "
            f"ScriptedTools({{'refund': 'done'}}), not {answers!r}." == str(caught.value)
        )

    def test_an_in_turn_in_another(self):
        """A TypeError, where it would be an answer itself."""
        with pytest.raises(
            TypeError, match=r"^An InTurn cannot hold another: write its answers out in place of InT"
        ):
            InTurn(1, InTurn(2))

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
