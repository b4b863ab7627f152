"""
The values that events carry: frozen, compared by value, copied and pickled like any.
"""

from __future__ import annotations

import copy
import json
import pickle

import attrs
import pytest
import strategies
from hypothesis import given
from hypothesis import strategies as st

from eventbus import values
from eventbus._readonly import ReadOnlyDict, ReadOnlyList
from eventbus.values import Agent, Message, ModelResponse, RunInfo, ToolCall, ToolResult

CLASSES = [Message, ModelResponse, RunInfo, ToolCall, ToolResult]
EXAMPLES = [
    Agent("sundae"),
    Message("Where is it?", "ada@example.org", "Order", {"id": 7}),
    ModelResponse("Hi", [ToolCall("call_0", "lookup", {"id": [1]})], "m-1", {"in": 3}, "stop", {"raw": {}}),
    RunInfo("b" * 32, None, Agent("sundae"), Message("Hi"), {"user": {"id": 1}}),
    ToolCall("call_0", "lookup", {"id": 1, "filters": {"x": [1]}}),
    ToolResult({"total": 12, "rows": [{"n": 1}]}),
]
each_example = pytest.mark.parametrize("value", EXAMPLES, ids=lambda value: type(value).__name__)


class TestAgent:
    """A string with a name."""

    @given(text=strategies.text())
    def test_it_is_its_name(self, text):
        """An agent equals, hashes and encodes as its name, which is a plain string."""
        agent = Agent(text)
        assert text == agent == agent.name
        assert hash(text) == hash(agent)
        assert json.dumps(text) == json.dumps(agent)
        assert str is type(agent.name)

    def test_it_takes_no_attributes(self):
        """There is nothing to set on an agent, its name included."""
        with pytest.raises(AttributeError):
            Agent("sundae").name = "other"
        with pytest.raises(AttributeError):
            Agent("sundae").other = 1


class TestFields:
    """What each value is made of."""

    def test_a_tool_call_is_made_by_position(self):
        """Id, name and input come in this order; the input may be left out."""
        call = ToolCall("call_0", "lookup_order", {"id": 1})
        assert ("call_0", "lookup_order", {"id": 1}) == (call.id, call.name, call.input)
        assert {} == ToolCall("call_0", "now").input

    def test_a_tool_result_succeeded_without_an_error(self):
        """`success` says whether there is no error, whatever the data."""
        assert ToolResult().success
        assert ToolResult(data={"total": 12}).success
        assert not ToolResult(error="").success
        assert not ToolResult({"partial": 1}, ValueError("boom")).success

    def test_a_model_response_has_no_calls_unless_told(self):
        """`tool_calls` is false and can be looped over if there are none; everything else is None."""
        response = ModelResponse()
        assert not response.tool_calls
        assert [] == list(response.tool_calls)
        assert ModelResponse(tool_calls=[]) == response
        assert (None,) * 5 == (
            response.content,
            response.model,
            response.usage,
            response.finish_reason,
            response.raw,
        )

    def test_a_message_needs_its_text_only(self):
        """Sender, subject and thread are None unless given."""
        message = Message("Hi")
        assert ("Hi", None, None, None) == (message.text, message.sender, message.subject, message.thread)

    def test_a_run_needs_its_id_only(self):
        """Metadata is an empty mapping unless given, the rest None."""
        run = RunInfo("b" * 32)
        assert ("b" * 32, None, None, None, {}) == (
            run.id,
            run.parent_id,
            run.agent,
            run.message,
            run.metadata,
        )

    def test_a_missing_field_is_a_type_error_that_names_it(self):
        """What is required is said by Python itself."""
        with pytest.raises(TypeError, match="name"):
            ToolCall("call_0")

    def test_values_can_be_matched_by_position(self):
        """A match statement takes a value apart."""
        match ToolCall("call_0", "lookup", {"id": 1}):
            case ToolCall(_, "lookup", {"id": found}):
                assert 1 == found

    def test_the_public_names_are_all_there(self):
        """`__all__` is sorted and names what the module has."""
        assert sorted(values.__all__) == values.__all__
        assert all(hasattr(values, name) for name in values.__all__)


class TestFrozen:
    """Nothing in a value can be changed."""

    @pytest.mark.parametrize("cls", CLASSES)
    def test_no_field_can_be_set_or_deleted(self, cls):
        """Setting or deleting a field, or setting an unknown one, is an AttributeError."""
        value = cls(**{field.name: "x" for field in attrs.fields(cls)})
        for name in (*attrs.fields_dict(cls), "unknown"):
            with pytest.raises(AttributeError):
                setattr(value, name, 1)
            with pytest.raises(AttributeError):
                delattr(value, name)

    @pytest.mark.parametrize("cls", CLASSES)
    def test_dicts_and_lists_become_read_only_in_every_field(self, cls):
        """Whichever field a dict or list is given to, readers get a read-only copy."""
        for kind, source in ((ReadOnlyDict, {"a": [1]}), (ReadOnlyList, [{"a": 1}])):
            value = cls(**{field.name: source for field in attrs.fields(cls)})
            assert {kind} == {type(getattr(value, field.name)) for field in attrs.fields(cls)}

    def test_a_write_to_the_input_leaves_the_runs_dict_alone(self):
        """An observer that writes to a call's input gets a TypeError, and the run's dict is unchanged."""
        source = {"filters": {"x": 0}}
        call = ToolCall("call_0", "lookup", source)
        with pytest.raises(TypeError, match="read-only"):
            call.input["y"] = 1
        with pytest.raises(TypeError, match="read-only"):
            call.input["filters"]["x"] = 1
        with pytest.raises(TypeError, match="read-only"):
            call.input.pop("filters")
        assert {"filters": {"x": 0}} == source == call.input


class TestByValue:
    """Values are told apart by what they hold."""

    @given(source=strategies.json_objects(), other=strategies.json_objects())
    def test_equal_fields_make_equal_values(self, source, other):
        """Two values are equal if their fields are."""
        assert ToolResult(source) == ToolResult(copy.deepcopy(source))
        assert (source == other) == (ToolResult(source) == ToolResult(other))

    def test_values_of_different_classes_differ(self):
        """Equal fields do not make equal values of two classes."""
        assert Message("x") != RunInfo("x")
        assert ToolResult() != None  # noqa: E711, the operator is what is tested

    def test_values_of_hashable_fields_can_be_keys(self):
        """Equal values hash alike; one with a dict in it is as unhashable as the dict."""
        assert {Message("Hi", "ada")} == {Message("Hi", "ada"), Message("Hi", "ada")}
        with pytest.raises(TypeError, match="unhashable"):
            hash(ToolCall("call_0", "lookup"))

    def test_repr_is_the_call_that_makes_it(self):
        """A value prints its class and its fields by name."""
        assert "ToolCall(id='call_0', name='lookup', input={'id': 1})" == repr(
            ToolCall("call_0", "lookup", {"id": 1})
        )

    @each_example
    @pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
    def test_a_pickle_comes_back_equal(self, protocol, value):
        """Every protocol of pickle gives an equal value of the same class."""
        again = pickle.loads(pickle.dumps(value, protocol))
        assert value == again
        assert type(value) is type(again)

    @each_example
    @pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy])
    def test_a_copy_is_equal(self, duplicate, value):
        """A copy, shallow or deep, is an equal value of the same class."""
        again = duplicate(value)
        assert value == again
        assert type(value) is type(again)

    @given(source=st.dictionaries(strategies.text(), strategies.containers(), max_size=3))
    def test_a_deep_copy_is_read_only_again(self, source):
        """What a deep copy holds is its own, and as read-only as the original's."""
        call = copy.deepcopy(ToolCall("call_0", "lookup", source))
        assert source == call.input
        assert ReadOnlyDict is type(call.input)

    def test_a_deep_copy_copies_a_shared_object_once(self):
        """What two values share inside one structure, their deep copies share."""
        shared = {1}
        first, second = copy.deepcopy([ToolResult(shared), ToolResult(shared)])
        assert shared is not first.data
        assert first.data is second.data

    def test_a_field_can_be_replaced_in_a_copy(self):
        """`attrs.evolve` gives a changed copy, read-only like the first."""
        call = attrs.evolve(ToolCall("call_0", "lookup"), input={"id": 1})
        assert ReadOnlyDict is type(call.input)
        assert ToolCall("call_0", "lookup", {"id": 1}) == call
