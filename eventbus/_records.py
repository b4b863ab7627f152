"""
Recorded runs: read one by one from JSON lines, each either understood as a whole or reported with its reason.

Nothing here emits. A record says what the model was sent and what it and the tools answered, so that the same
record can be told as events, or played again with the recorded answers.
"""

from __future__ import annotations

import gzip
import io
import json
import zlib
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NoReturn, TypeVar, cast

import attrs

from ._errors import EventbusError
from ._plain import CUT
from .values import Message, ModelResponse, ToolCall, ToolResult

T = TypeVar("T")

MAX_LINE: Final = 64 * 2**20
"""Bytes of the longest line that is loaded."""

ERROR: Final = "Error"
"""How the answer of a tool that failed begins."""

UNANSWERED: Final = "the record ends before the tool's answer"

_SHOWN: Final = 60
_GZIP: Final = b"\x1f\x8b"
_BOM: Final = b"\xef\xbb\xbf"
_ROLES: Final = ("system", "developer", "user", "assistant", "tool")
_OWN_KEYS: Final = frozenset({"id", "agent", "model", "messages"})
# Aliases that tell type checkers what a bare `list` leaves unknown.
_LIST: Final[type[list[Any]]] = list
_DICT: Final[type[dict[str, Any]]] = dict
_KINDS: Final[Mapping[type, str]] = {
    str: "a string",
    list: "a list",
    dict: "an object",
    bool: "true or false",
    int: "a number",
    float: "a number",
    type(None): "null",
}


class RecordError(EventbusError, ValueError):
    """
    A record cannot be replayed; the text names the place in it and what is wrong there.
    """


class ToolError(EventbusError, RuntimeError):
    """
    A recorded call of a tool failed; the text is what the tool answered.
    """


@attrs.frozen
class Call:
    """
    One call of a tool, and what came of it.

    Attributes:
        tool_call: What the model asked for. Arguments that are no JSON object stand under `arguments`, as
            the text that was recorded.
        result: What the tool answered: the value, if the text is JSON, else the text. Its `error` is a
            `ToolError` if the text begins with `Error`, or if the record ends before the answer.
    """

    tool_call: ToolCall
    result: ToolResult


@attrs.frozen
class Turn:
    """
    One answer of the model, and the calls it led to.

    Attributes:
        number: Its place in the record, from 1.
        sent: How many of the record's messages the model was sent.
        response: What the model answered.
        calls: The calls that the response asks for, in its order.
    """

    number: int
    sent: int
    response: ModelResponse
    calls: Sequence[Call]


@attrs.frozen
class Record:
    """
    One recorded run.

    Attributes:
        id: The run's id, which becomes its correlation id.
        agent: The agent's name.
        model: The model's name.
        message: The first message of the user; None if there is none.
        messages: All messages, as recorded.
        turns: One for each message of the assistant.
        metadata: What else the record says, such as a reward.
    """

    id: str
    agent: str
    model: str
    message: Message | None
    messages: Sequence[Mapping[str, Any]]
    turns: Sequence[Turn]
    metadata: Mapping[str, Any]

    def request(self, turn: Turn) -> Sequence[Mapping[str, Any]]:
        """
        Return the messages that the model was sent in a turn.
        """
        return self.messages[: turn.sent]

    @property
    def result(self) -> ModelResponse | None:
        """
        The model's last answer; None if it asks for tools, whose answers it did not get to see.
        """
        return self.turns[-1].response if self.turns and not self.turns[-1].calls else None


@attrs.frozen
class Problem:
    """
    A line that could not be replayed.

    Attributes:
        line: Its number, from 1.
        reason: What is wrong with it.
    """

    line: int
    reason: str


def read_records(stream: io.BufferedReader, *, max_line: int = MAX_LINE) -> Iterator[Record | Problem]:
    """
    Read records one by one, from JSON lines that may be gzipped.

    Blank lines are passed over. A file that ends too early, or is damaged, gives what comes before the damage
    and then one problem. No more than one line is in memory at any time.

    Args:
        stream: Where to read; it is not closed.
        max_line: Bytes of the longest line to load; a longer one is a problem.

    Yields:
        A record, or the problem with a line, in the order of the lines.
    """
    lines = _lines(stream, max_line)
    number = 0
    while True:
        number += 1
        try:
            line = next(lines, None)
        except (EOFError, OSError, zlib.error) as error:
            yield Problem(number, f"the file cannot be read on: {error}")
            return
        if line is None:
            return
        if len(line) > max_line:
            yield Problem(number, f"longer than {max_line:,} bytes")
        elif not line.isspace():
            try:
                record = parse_record(line.removeprefix(_BOM) if number == 1 else line)
            except RecordError as error:
                yield Problem(number, str(error))
            else:
                yield record


def _lines(stream: io.BufferedReader, max_line: int) -> Iterator[bytes]:
    # Of a line that is too long, only so much that its length shows.
    source = cast("io.BufferedReader", gzip.GzipFile(fileobj=stream)) if _is_gzip(stream) else stream
    while line := source.readline(max_line + 1):
        rest = line
        while rest and len(line) > max_line and not rest.endswith(b"\n"):
            rest = source.readline(max_line)
        yield line


def _is_gzip(stream: io.BufferedReader) -> bool:
    return stream.peek(len(_GZIP)).startswith(_GZIP)


def parse_record(text: bytes) -> Record:
    """
    Understand one record, as a whole.

    Args:
        text: A JSON object with `id`, `agent`, `model` and `messages` in OpenAI's chat format, as UTF-8.

    Returns:
        The record. An answer of a tool belongs to the first open call of its turn with the same id, for
        models repeat ids; without an id, to the first open call.

    Raises:
        RecordError: If it is no JSON, lacks a key, or its messages do not fit together.
    """
    data = _object(_decode(text), "the record")
    messages = [
        _object(message, f"message {number}")
        for number, message in enumerate(_field(data, "messages", _LIST, "the record"), 1)
    ]
    run_id = _field(data, "id", str, "the record")
    if not run_id:
        _refuse("the record: `id` is empty")
    model = _field(data, "model", str, "the record")
    reader = _Conversation(model)
    for number, message in enumerate(messages, 1):
        reader.read(number, message)
    return Record(
        id=run_id,
        agent=_field(data, "agent", str, "the record"),
        model=model,
        message=reader.message,
        messages=messages,
        turns=reader.finish(),
        metadata={key: value for key, value in data.items() if key not in _OWN_KEYS},
    )


class _Conversation:
    """
    What is known of a record after some of its messages.
    """

    def __init__(self, model: str) -> None:
        self.message: Message | None = None
        self._model = model
        self._turns: list[Turn] = []
        self._open = _OpenTurn(0, ModelResponse())

    def read(self, number: int, message: dict[str, Any]) -> None:
        """
        Take in the next message.
        """
        role = _field(message, "role", str, f"message {number}")
        if role not in _ROLES:
            _refuse(f"message {number}: unknown role {_shown(role)}; known are {', '.join(_ROLES)}")
        where = f"message {number} ({role})"
        if role == "tool":
            self._open.answer(message, where)
            return
        missing = self._open.first_unanswered()
        if missing is not None:
            _refuse(f"{where}: comes before the answer to the call of {_named(missing)}")
        if role == "assistant":
            self._close()
            self._open = _OpenTurn(number, _response(message, self._model, where))
        else:
            text = _content(message, where)
            if role == "user" and self.message is None:
                self.message = Message(text)

    def finish(self) -> Sequence[Turn]:
        """
        Return the turns, after the last message.
        """
        self._close()
        return tuple(self._turns)

    def _close(self) -> None:
        if self._open.number:
            self._turns.append(self._open.turn(len(self._turns) + 1))


class _OpenTurn:
    """
    A message of the assistant, and those answers to its calls that have come so far.
    """

    def __init__(self, number: int, response: ModelResponse) -> None:
        self.number = number
        self._response = response
        self._calls = cast("Sequence[ToolCall]", response.tool_calls)
        self._results: list[ToolResult | None] = [None] * len(self._calls)
        self._next = 0
        self._by_id: dict[str, deque[int]] = {}
        for index, call in enumerate(self._calls):
            self._by_id.setdefault(call.id, deque()).append(index)

    def first_unanswered(self) -> ToolCall | None:
        """
        Return the first call that has no answer yet, if there is one.
        """
        while self._next < len(self._results) and self._results[self._next] is not None:
            self._next += 1
        return self._calls[self._next] if self._next < len(self._results) else None

    def answer(self, message: dict[str, Any], where: str) -> None:
        """
        Take the answer to one of the calls.
        """
        text = _content(message, where)
        first = self.first_unanswered()
        if first is None:
            _refuse(f"{where}: answers no call; every call before it has its answer")
        call_id = _optional(message, "tool_call_id", str, where)
        indexes = self._by_id.get(first.id if call_id is None else call_id)
        if not indexes:
            _refuse(f"{where}: answers id {_shown(call_id)}, but the next open call is of {_named(first)}")
        self._results[indexes.popleft()] = _result(text)

    def turn(self, number: int) -> Turn:
        """
        Return the turn as it stands; a call without an answer has failed.
        """
        calls = tuple(
            Call(call, result or ToolResult(error=ToolError(UNANSWERED)))
            for call, result in zip(self._calls, self._results, strict=True)
        )
        return Turn(number, self.number - 1, self._response, calls)


def _response(message: dict[str, Any], model: str, where: str) -> ModelResponse:
    content = message.get("content")
    if content is not None:
        _content(message, where)
    calls = _optional(message, "tool_calls", _LIST, where) or []
    return ModelResponse(
        content=content,
        tool_calls=[_tool_call(call, f"{where}, call {number}") for number, call in enumerate(calls, 1)],
        model=model,
        usage=message.get("usage"),
        finish_reason=_optional(message, "finish_reason", str, where),
        raw=message,
    )


def _tool_call(value: object, where: str) -> ToolCall:
    call = _object(value, where)
    function = _object(_field(call, "function", _DICT, where), where)
    return ToolCall(
        id=_field(call, "id", str, where),
        name=_field(function, "name", str, where),
        input=_arguments(function.get("arguments"), where),
    )


def _arguments(value: object, where: str) -> dict[str, Any]:
    if isinstance(value, str):
        parsed: object = _json_or_text(value) if value else {}
        return cast("dict[str, Any]", parsed) if isinstance(parsed, dict) else {"arguments": value}
    if value is None:
        return {}
    if not isinstance(value, dict):
        _refuse(f"{where}: `arguments` must be an object or its JSON as a string, not {_kind(value)}")
    return cast("dict[str, Any]", value)


def _result(text: str) -> ToolResult:
    if text.startswith(ERROR):
        return ToolResult(error=ToolError(text))
    return ToolResult(_json_or_text(text))


def _content(message: dict[str, Any], where: str) -> str:
    content = _field(message, "content", object, where)
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        _refuse(f"{where}: `content` must be a string or a list of parts, not {_kind(content)}")
    parts = [
        _object(part, f"{where}, part {number}")
        for number, part in enumerate(cast("list[object]", content), 1)
    ]
    texts = [part.get("text") for part in parts]
    return "".join(text for text in texts if isinstance(text, str))


def _decode(text: bytes) -> object:
    try:
        return json.loads(text.decode())
    except UnicodeDecodeError as error:
        _refuse(f"not UTF-8: byte 0x{text[error.start]:02x} at {error.start + 1}")
    except json.JSONDecodeError as error:
        _refuse(f"no JSON: {error.msg} at column {error.colno}")
    except RecursionError:
        _refuse("no JSON: nested too deeply")
    except ValueError as error:
        # An int of more digits than the interpreter converts.
        _refuse(f"no JSON: {error}")


def _no_constant(name: str) -> NoReturn:
    raise ValueError(name)


def _json_or_text(text: str) -> Any:
    # A tool that answers `NaN` has said a word, not a number.
    try:
        return json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        return text


def _object(value: object, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        _refuse(f"{where} must be an object, not {_kind(value)}")
    return cast("dict[str, Any]", value)


def _field(data: dict[str, Any], key: str, kind: type[T], where: str) -> T:
    if key not in data:
        _refuse(f"{where} lacks `{key}`")
    value = data[key]
    if not isinstance(value, kind):
        _refuse(f"{where}: `{key}` must be {_KINDS[kind]}, not {_kind(value)}")
    return value


def _optional(data: dict[str, Any], key: str, kind: type[T], where: str) -> T | None:
    return None if data.get(key) is None else _field(data, key, kind, where)


def _kind(value: object) -> str:
    return _KINDS[type(value)]


def _named(call: ToolCall) -> str:
    return f"{_shown(call.name)}, id {_shown(call.id)}"


def _shown(text: str | None) -> str:
    return repr(text if text is None or len(text) <= _SHOWN else text[: _SHOWN - 1] + CUT)


def _refuse(reason: str) -> NoReturn:
    raise RecordError(reason)
