"""
Recorded runs are read one by one, and each is understood as a whole or reported with its line and reason.
"""

from __future__ import annotations

import copy
import gzip
import inspect
import io
import json
import os
import tracemalloc
import zlib
from itertools import zip_longest

import pytest
import recordings
import strategies
from hypothesis import given, settings
from hypothesis import strategies as st
from recordings import assistant, call, lines, read, record, tool, user

from eventbus._records import (
    UNANSWERED,
    Problem,
    Record,
    RecordError,
    ToolError,
    parse_record,
    read_records,
)
from eventbus.values import Message, ModelResponse, ToolCall, ToolResult

GOOD = record(user("Where is it?"), assistant(call()), tool(), assistant(content="Here."))


def parse(*messages, **more):
    return parse_record(json.dumps(record(*messages, **more)).encode())


def answered(text):
    try:
        return ToolResult(text if text == "NaN" else json.loads(text))
    except ValueError:
        return ToolResult(text)


def paths(value, path=()):
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield from paths(inner, (*path, key))


class TestRecord:
    """What a record says."""

    def test_its_keys_are_read(self):
        """Id, agent, model and messages stand for themselves; whatever else there is becomes metadata."""
        found = parse(user(), reward=1.0, tags=["a"])
        assert ("run-1", "sundae", "m-1") == (found.id, found.agent, found.model)
        assert [user()] == found.messages
        assert {"reward": 1.0, "tags": ["a"]} == found.metadata

    def test_its_message_is_the_first_one_of_the_user(self):
        """What the system said before, and the user after, is not the run's message."""
        found = parse(
            {"role": "system", "content": "Be nice."}, user("One"), assistant(content="Yes?"), user("Two")
        )
        assert Message("One") == found.message

    def test_without_a_user_it_has_no_message(self):
        """A run that nobody asked for has no message."""
        assert parse(assistant(content="Hello?")).message is None

    def test_a_message_in_parts_is_its_texts(self):
        """Parts without a text, such as images, are passed over."""
        parts = [{"type": "text", "text": "Look: "}, {"type": "image_url"}, {"type": "text", "text": "a cat"}]
        assert Message("Look: a cat") == parse(user(parts)).message

    def test_a_record_without_messages_has_no_turns(self):
        """An empty conversation fits."""
        found = parse()
        assert () == found.turns
        assert found.result is None

    def test_a_message_of_the_assistant_is_a_turn(self):
        """Turns count from 1, and know how many messages the model was sent."""
        found = parse(user(), assistant(call()), tool(), assistant(content="Done."))
        assert [(1, 1), (2, 3)] == [(turn.number, turn.sent) for turn in found.turns]
        assert [user()] == found.request(found.turns[0])
        assert found.messages[:3] == found.request(found.turns[1])

    def test_the_response_is_the_message(self):
        """Content, calls, usage and reason to stop are as recorded, and the message itself is `raw`."""
        message = assistant(
            call("look", '{"n": 1}', "c7"), content="Hm", usage={"in": 3}, finish_reason="tool_calls"
        )
        expected = ModelResponse(
            "Hm", [ToolCall("c7", "look", {"n": 1})], "m-1", {"in": 3}, "tool_calls", message
        )
        assert expected == parse(message, tool(call_id="c7")).turns[0].response

    def test_the_result_is_the_last_answer_of_the_model(self):
        """What the user said to it does not matter."""
        found = parse(user(), assistant(content="Done."), user("Thanks"))
        assert found.turns[-1].response == found.result

    def test_a_record_that_ends_on_a_tool_has_no_result(self):
        """The model did not get to see the answer."""
        assert parse(user(), assistant(call()), tool()).result is None

    @pytest.mark.parametrize(
        ("arguments", "expected"),
        [
            ('{"n": [1]}', {"n": [1]}),
            ({"n": 1}, {"n": 1}),
            ("", {}),
            (None, {}),
            ("{}", {}),
            ("[1]", {"arguments": "[1]"}),
            ('{"n": 1', {"arguments": '{"n": 1'}),
            ("[" * 100_000, {"arguments": "[" * 100_000}),
        ],
        ids=["json", "object", "empty", "null", "no arguments", "list", "broken", "deep"],
    )
    def test_arguments_are_parsed(self, arguments, expected):
        """The JSON of an object is that object; any other string is kept as it is, under `arguments`."""
        found = parse(assistant(call(arguments=arguments)), tool())
        assert expected == found.turns[0].calls[0].tool_call.input

    def test_a_call_may_lack_arguments(self):
        """A call that needs none may leave them out."""
        bare = {"id": "c", "function": {"name": "now"}}
        assert ToolCall("c", "now") == parse(assistant(bare), tool(call_id="c")).turns[0].calls[0].tool_call

    @pytest.mark.parametrize(
        ("content", "data"),
        [
            ('{"total": 12}', {"total": 12}),
            ("[1, 2]", [1, 2]),
            ("23.0", 23.0),
            ("null", None),
            ("Transfer successful", "Transfer successful"),
            ("", ""),
            ("NaN", "NaN"),
            ("9" * 5000, "9" * 5000),
            ("[" * 100_000, "[" * 100_000),
            ("error: none", "error: none"),
            ([{"type": "text", "text": "[1]"}], [1]),
        ],
        ids=[
            "object",
            "list",
            "number",
            "null",
            "text",
            "empty",
            "nan",
            "digits",
            "deep",
            "lower case",
            "parts",
        ],
    )
    def test_results_are_parsed(self, content, data):
        """An answer that is JSON is its value; any other is its text."""
        assert ToolResult(data) == parse(assistant(call()), tool(content)).turns[0].calls[0].result

    @pytest.mark.parametrize("content", ["Error", "Error: no such order", "Errors were made"])
    def test_an_answer_that_begins_with_error_is_a_failure(self, content):
        """The failure's text is the answer."""
        error = parse(assistant(call()), tool(content)).turns[0].calls[0].result.error
        assert isinstance(error, ToolError)
        assert isinstance(error, RuntimeError)
        assert content == str(error)

    def test_a_call_that_the_record_leaves_unanswered_has_failed(self):
        """Every start is to have its end: the last calls of a record fail if their answers are missing."""
        calls = parse(assistant(call("a"), call("b")), tool()).turns[0].calls
        assert [None, UNANSWERED] == [one.result.error and str(one.result.error) for one in calls]

    def test_calls_that_share_an_id_are_answered_in_order(self):
        """The first answer belongs to the first call."""
        calls = parse(assistant(call("a"), call("b")), tool("1"), tool("2")).turns[0].calls
        assert [("a", 1), ("b", 2)] == [(one.tool_call.name, one.result.data) for one in calls]

    def test_answers_may_come_in_another_order_than_the_calls(self):
        """Parallel calls end when they end; ids tell which is which."""
        found = parse(
            assistant(call("a", call_id="x"), call("b", call_id="y"), call("c", call_id="x")),
            tool("2", "y"),
            tool("1", "x"),
            tool("3", "x"),
        )
        assert [1, 2, 3] == [one.result.data for one in found.turns[0].calls]

    def test_an_answer_without_an_id_belongs_to_the_first_open_call(self):
        """Order alone will do."""
        bare = {"role": "tool", "content": "2"}
        found = parse(assistant(call("a", call_id="x"), call("b", call_id="y")), tool("1", "x"), bare)
        assert [1, 2] == [one.result.data for one in found.turns[0].calls]

    @given(said=recordings.records())
    @settings(max_examples=60)
    def test_any_conversation_that_fits_is_understood(self, said):
        """Each message of the assistant is a turn; each answer is found with the call at its place."""
        found = parse_record(json.dumps(said).encode())
        asked = [one for one in said["messages"] if one["role"] == "assistant"]
        answers = [one["content"] for one in said["messages"] if one["role"] == "tool"]
        calls = [one for turn in found.turns for one in turn.calls]
        assert [len(one["tool_calls"] or ()) for one in asked] == [len(turn.calls) for turn in found.turns]
        for answer, one in zip_longest(answers, calls):
            error = one.result.error
            assert (UNANSWERED if answer is None else answer) == str(error) or answered(answer) == one.result


class TestMisfits:
    """What cannot be replayed is refused with its reason."""

    @pytest.mark.parametrize(
        ("value", "reason"),
        [
            (["no", "object"], "the record must be an object, not a list"),
            (3, "the record must be an object, not a number"),
            (record(messages="none"), "the record: `messages` must be a list, not a string"),
            (record(id=None), "the record: `id` must be a string, not null"),
            (record(id=""), "the record: `id` is empty"),
            (record(agent={}), "the record: `agent` must be a string, not an object"),
            (record(model=True), "the record: `model` must be a string, not true or false"),
            (record("Hi"), "message 1 must be an object, not a string"),
            (record({"content": "Hi"}), "message 1 lacks `role`"),
            (record({"role": 1}), "message 1: `role` must be a string, not a number"),
            (
                record({"role": "function"}),
                "message 1: unknown role 'function'; known are system, developer, user, assistant, tool",
            ),
            (record({"role": "user"}), "message 1 (user) lacks `content`"),
            (
                record(user(None)),
                "message 1 (user): `content` must be a string or a list of parts, not null",
            ),
            (record(user(["Hi"])), "message 1 (user), part 1 must be an object, not a string"),
            (
                record({"role": "system", "content": 1.5}),
                "message 1 (system): `content` must be a string or a list of parts, not a number",
            ),
            (
                record(assistant(content=False)),
                "message 1 (assistant): `content` must be a string or a list of parts, not true or false",
            ),
            (
                record({"role": "assistant", "tool_calls": {}}),
                "message 1 (assistant): `tool_calls` must be a list, not an object",
            ),
            (
                record(assistant(content="", finish_reason=1)),
                "message 1 (assistant): `finish_reason` must be a string, not a number",
            ),
            (record(assistant("look")), "message 1 (assistant), call 1 must be an object, not a string"),
            (record(assistant({"id": "c"})), "message 1 (assistant), call 1 lacks `function`"),
            (
                record(assistant({"id": "c", "function": "f"})),
                "message 1 (assistant), call 1: `function` must be an object, not a string",
            ),
            (
                record(assistant({"function": {"name": "f"}})),
                "message 1 (assistant), call 1 lacks `id`",
            ),
            (record(assistant({"id": "c", "function": {}})), "message 1 (assistant), call 1 lacks `name`"),
            (
                record(assistant(call(arguments=[1]))),
                "message 1 (assistant), call 1: `arguments` must be an object or its JSON as a string, "
                "not a list",
            ),
            (record(tool()), "message 1 (tool): answers no call; every call before it has its answer"),
            (
                record(assistant(call()), tool(), tool()),
                "message 3 (tool): answers no call; every call before it has its answer",
            ),
            (
                record(assistant(call("look")), tool(call_id="x")),
                "message 2 (tool): answers id 'x', but the next open call is of 'look', id 'call_0'",
            ),
            (
                record(assistant(call()), tool(call_id=1)),
                "message 2 (tool): `tool_call_id` must be a string, not a number",
            ),
            (
                record(assistant(call("look")), user()),
                "message 2 (user): comes before the answer to the call of 'look', id 'call_0'",
            ),
        ],
    )
    def test_what_does_not_fit_is_named(self, value, reason):
        """The text says where in the record, what was expected, and what is there."""
        with pytest.raises(RecordError) as caught:
            parse_record(json.dumps(value).encode())
        assert reason == str(caught.value)
        assert isinstance(caught.value, ValueError)

    @pytest.mark.parametrize("key", ["id", "agent", "model", "messages"])
    def test_a_missing_key_is_named(self, key):
        """All four keys are needed."""
        with pytest.raises(RecordError, match=f"the record lacks `{key}`"):
            parse_record(json.dumps({name: value for name, value in GOOD.items() if name != key}).encode())

    @pytest.mark.parametrize(
        ("text", "reason"),
        [
            (b"{", "no JSON: Expecting property name enclosed in double quotes at column 2"),
            (b"[" * 100_000, "no JSON: nested too deeply"),
            (b'{"id": "\xff"}', "not UTF-8: byte 0xff at 9"),
            (b"9" * 5000, "no JSON: Exceeds the limit (4300 digits) for integer string conversion"),
        ],
        ids=["broken", "deep", "latin", "digits"],
    )
    def test_what_is_no_json_is_refused(self, text, reason):
        """The text says where the JSON breaks off."""
        with pytest.raises(RecordError) as caught:
            parse_record(text)
        assert str(caught.value).startswith(reason)

    def test_a_reason_does_not_quote_without_end(self):
        """A megabyte where a role should be is cut."""
        with pytest.raises(RecordError) as caught:
            parse({"role": "x" * 1_000_000})
        assert 300 > len(str(caught.value))

    @given(value=strategies.json_values())
    def test_any_other_json_is_refused(self, value):
        """Whatever the JSON, there is no other error."""
        with pytest.raises(RecordError):
            parse_record(json.dumps(value).encode())

    @given(data=st.data())
    @settings(max_examples=60)
    def test_a_record_with_anything_in_a_wrong_place_is_understood_or_refused(self, data):
        """Replacing any part of a good record by anything leads to no other error."""
        damaged = {"root": copy.deepcopy(GOOD)}
        path = data.draw(st.sampled_from([("root", *path) for path in paths(GOOD)]))
        inner = damaged
        for key in path[:-1]:
            inner = inner[key]
        inner[path[-1]] = data.draw(strategies.json_values(max_leaves=5))
        try:
            parse_record(json.dumps(damaged["root"]).encode())
        except RecordError as error:
            assert "" != str(error)

    @given(text=st.binary(max_size=40))
    def test_any_bytes_are_refused(self, text):
        """Whatever the bytes, there is no other error."""
        with pytest.raises(RecordError):
            parse_record(text)


class TestReading:
    """A file is read line by line, to its end or to where it is damaged."""

    def test_lines_are_numbered_from_one(self):
        """A problem has the number of its line, and the records around it are read."""
        first, problem, second = read(lines(GOOD) + b"oops\n" + lines(GOOD))
        assert Problem(2, "no JSON: Expecting value at column 1") == problem
        assert "run-1" == first.id == second.id

    def test_blank_lines_are_passed_over_and_counted(self):
        """A blank line, as at the end of many files, is no problem; the numbers go on."""
        assert [3] == [found.line for found in read(b"\n \t\r\nx\n\n")]

    def test_the_last_line_need_not_end(self):
        """A file without a newline at its end is whole."""
        assert 2 == len(read(lines(GOOD, GOOD).rstrip(b"\n")))

    def test_lines_may_end_as_on_windows(self):
        """Carriage returns and a byte order mark do not matter."""
        data = b"\xef\xbb\xbf" + lines(GOOD, GOOD).replace(b"\n", b"\r\n")
        assert ["run-1", "run-1"] == [found.id for found in read(data)]

    def test_an_empty_file_has_nothing(self):
        """Nothing is read of nothing, gzipped or not."""
        assert [] == read(b"")
        assert [] == read(gzip.compress(b""))

    def test_a_line_that_is_not_utf8_is_a_problem(self):
        """The others are read."""
        found = read(lines(GOOD) + b'{"id": "\xe9"}\n' + lines(GOOD))
        assert Problem(2, "not UTF-8: byte 0xe9 at 9") == found[1]
        assert isinstance(found[2], Record)

    def test_how_long_a_line_may_be(self):
        """64 MiB, unless somebody says otherwise."""
        assert 64 * 2**20 == inspect.signature(read_records).parameters["max_line"].default

    def test_a_line_that_is_too_long_is_a_problem(self):
        """The lines after it are read; one of just the greatest length is loaded."""
        size = len(lines(GOOD))
        long = b"x" * (3 * size) + b"\n"
        found = read(lines(GOOD) + long + lines(GOOD) + long.rstrip(b"\n"), max_line=size)
        assert [Record, Problem, Record, Problem] == [type(one) for one in found]
        assert Problem(2, f"longer than {size} bytes") == found[1]

    @given(extra=st.integers(1, 30))
    def test_a_line_is_too_long_from_the_first_byte_too_many(self, extra):
        """Wherever the line ends beyond the limit, the next one is whole."""
        size = len(lines(GOOD))
        found = read(b" " * (size + extra - 1) + b"\n" + lines(GOOD), max_line=size)
        assert [Problem, Record] == [type(one) for one in found]

    def test_a_line_that_is_too_long_is_not_loaded(self):
        """Thirty megabytes in one line take no more memory than the line's beginning."""
        packed = gzip.compress(b"x" * 30_000_000)
        tracemalloc.start()
        try:
            found = read(packed, max_line=100_000)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert [Problem(1, "longer than 100,000 bytes")] == found
        assert 5_000_000 > peak

    def test_reading_is_streamed(self):
        """A record is there as soon as its line is, whatever is still to come."""
        reading, writing = os.pipe()
        with open(reading, "rb") as stream, open(writing, "wb", buffering=0) as out:
            records = read_records(stream)
            out.write(lines(GOOD))
            assert "run-1" == next(records).id
            out.write(lines({**GOOD, "id": "run-2"}))
            assert "run-2" == next(records).id

    def test_the_stream_stays_open(self):
        """Whoever opened it closes it."""
        for data in (lines(GOOD), gzip.compress(lines(GOOD))):
            stream = io.BufferedReader(io.BytesIO(data))
            list(read_records(stream))
            assert not stream.closed


class TestGzip:
    """A gzipped file is told by its content."""

    def test_it_is_unpacked(self):
        """Several members, as of files that were put together, are one."""
        data = gzip.compress(lines(GOOD)) + gzip.compress(lines(GOOD))
        assert ["run-1", "run-1"] == [found.id for found in read(data)]

    @given(data=st.data())
    def test_what_comes_before_the_end_of_a_cut_file_is_read(self, data):
        """Wherever it was cut, whole lines are read, and then the cut is reported with its line."""
        packed = gzip.compress(lines(*[{**GOOD, "id": f"run-{n}-{'x' * n * 7}"} for n in range(1, 9)]))
        cut = packed[: data.draw(st.integers(3, len(packed) - 1))]
        whole = zlib.decompressobj(wbits=31).decompress(cut).count(b"\n")
        *records, problem = read(cut)
        assert whole == len(records)
        assert whole + 1 == problem.line
        assert problem.reason.startswith("the file cannot be read on: ")

    @given(data=st.data())
    def test_a_damaged_file_is_reported(self, data):
        """Whichever byte is changed after the header, the checksum shows it; there is no other error."""
        packed = bytearray(gzip.compress(lines(GOOD, GOOD), mtime=0))
        packed[data.draw(st.integers(10, len(packed) - 1))] ^= data.draw(st.integers(1, 255))
        assert any(isinstance(found, Problem) for found in read(bytes(packed)))

    def test_a_stream_that_fails_is_reported(self):
        """A disk that cannot be read is a problem at the line reached."""

        class Failing(io.RawIOBase):
            given = False

            def readable(self):
                return True

            def readinto(self, buffer):
                if self.given:
                    raise OSError(5, "Input/output error")
                self.given = True
                data = lines(GOOD)
                buffer[: len(data)] = data
                return len(data)

        record_, problem = read_records(io.BufferedReader(Failing()))
        assert "run-1" == record_.id
        assert Problem(2, "the file cannot be read on: [Errno 5] Input/output error") == problem
