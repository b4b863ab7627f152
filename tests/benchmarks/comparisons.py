"""
The comparisons: what is measured, against whom, and what is aimed at.
"""

from __future__ import annotations

import asyncio
import functools
import json
import logging
import os
import shutil
import subprocess
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Callable, Generator, Iterable
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from eventbus import (
    Event,
    EventLogger,
    Hook,
    InferenceCompletedEvent,
    InferenceStartedEvent,
    ProtectedEvent,
    Run,
    ToolCall,
    ToolCallCompletedEvent,
    ToolResult,
    configure,
    correlation,
    on,
    stats,
    trace,
)
from eventbus._schema import COLUMNS, open_to_write
from eventbus.testing import isolated

from .contenders import Bubus, Placed, functions, peers, plain
from .measuring import AsyncTimed, Contender, Effort, Sample, Timed, median_of, slope

ROOT: Final = Path(__file__).parents[2]

Prepared = AbstractContextManager[list[Contender]]
Prepare = Callable[[Effort, dict[str, str]], Prepared]


@dataclass
class Comparison:
    """
    One row of the table.

    Attributes:
        key: What `--only` takes.
        what: What is measured, in words.
        target: What is aimed at; None for a row that is there to be seen.
        prepare: Makes the contenders, ours first.
        unit: What one ratio is of: a cost ("x"), a rate ("rate"), or bytes of ours alone ("bytes").
        clock: How it was measured.
        against: The reference in words; by default the cheapest peer.
    """

    key: str
    what: str
    target: float | None
    prepare: Prepare
    unit: str = "x"
    clock: str = "thread"
    against: str = "the fastest peer"


COMPARISONS: Final[list[Comparison]] = []


def comparison(
    key: str,
    what: str,
    target: float | None,
    *,
    unit: str = "x",
    clock: str = "thread",
    against: str = "the fastest peer",
) -> Callable[[Callable[..., Iterable[list[Contender]]]], None]:
    """
    Add a row; what is decorated yields the contenders once, and clears up afterwards.
    """

    def add(prepare: Callable[..., Any]) -> None:
        within = contextmanager(prepare)

        @contextmanager
        def prepared(effort: Effort, without: dict[str, str]) -> Generator[list[Contender]]:
            with isolated(), within(effort, without) as contenders:
                yield contenders

        COMPARISONS.append(Comparison(key, what, target, prepared, unit, clock, against))

    return add


def emit() -> None:
    """
    Emit the event.
    """
    Placed.emit(order="A1", items=3, total=9.5)


def subclass() -> Any:
    """
    Return another class of the same event, so that two sizes can be measured in turns.
    """

    class Other(Event):
        order: str
        items: int
        total: float

    return Other


def emitting(event_class: Any) -> Callable[[], None]:
    """
    Return a function that emits an event of a class.
    """
    return lambda: event_class.emit(order="A1", items=3, total=9.5)


# Emitting.


@comparison("nobody", "emit with nobody listening", 0.8, against="blinker's `send` with the same keywords")
def nobody(effort: Effort, without: dict[str, str]) -> Iterable[list[Contender]]:
    yield [
        Contender("eventbus", Timed(emit, effort)),
        *(() if "blinker" in without else (silent_blinker(effort),)),
    ]


def silent_blinker(effort: Effort) -> Contender:
    """
    Return blinker without receivers.
    """
    import blinker

    signal = blinker.Signal()
    return Contender("blinker", Timed(lambda: signal.send(None, order="A1", items=3, total=9.5), effort))


def observed(number: int) -> Callable[[Effort, dict[str, str]], Iterable[list[Contender]]]:
    """
    Return a comparison of one emit to so many observers.
    """

    def prepare(effort: Effort, without: dict[str, str]) -> Iterable[list[Contender]]:
        for one in functions(number):
            Placed.subscribe(one)
        with ExitStack() as stack:
            others = peers(number, effort, without)
            if "bubus" not in without:
                bubus = Bubus(stack.enter_context(new_loop()), number, effort)
                stack.callback(bubus.close)
                others.append(bubus.contender)
            yield [Contender("eventbus", Timed(emit, effort)), *others]

    return prepare


for count, word in ((1, "1 observer"), (10, "10 observers"), (100, "100 observers")):
    comparison(f"observers-{count}", f"emit to {word}, event included", 0.45)(observed(count))


# One more handler.

FEW, MANY = 10, 1_000


def bare(fs: list[Callable[[Any], Any]]) -> Callable[[], None]:
    """
    Return the loop that anybody would write.
    """

    def loop() -> None:
        e = plain()
        for f in fs:
            try:
                f(e)
            except Exception:
                pass

    return loop


def bare_when(fs: list[Callable[[Any], Any]], when: Callable[[Any], Any]) -> Callable[[], None]:
    """
    Return that loop with a predicate in it.
    """
    pairs = [(when, f) for f in fs]

    def loop() -> None:
        e = plain()
        for w, f in pairs:
            try:
                if w(e):
                    f(e)
            except Exception:
                pass

    return loop


def more(effort: Effort, fill: Callable[[Any, int], object], few: int = FEW, many: int = MANY) -> Sample:
    """
    Return samples of what one more of something costs an emit.
    """
    timed = []
    for number in (few, many):
        event_class = subclass()
        fill(event_class, number)
        timed.append(Timed(emitting(event_class), effort))
    return slope(*timed, many - few)


def observe(event_class: Any, number: int) -> None:
    """
    Subscribe functions.
    """
    for one in functions(number):
        event_class.subscribe(one)


def loops(
    effort: Effort, make: Callable[[int], Callable[[], None]], few: int = FEW, many: int = MANY
) -> Sample:
    """
    Return samples of what one more costs in a bare loop.
    """
    return slope(Timed(make(few), effort), Timed(make(many), effort), many - few)


@comparison(
    "slope", "one more observer (slope from 10 to 1,000)", 1.25, against="`for f in fs: try: f(e) except`"
)
def slopes(effort: Effort, _without: dict[str, str]) -> Iterable[list[Contender]]:
    yield [
        Contender("eventbus", more(effort, observe)),
        Contender("a bare loop", loops(effort, lambda number: bare(functions(number)))),
    ]


HOOKS = 200


def hooks_of(stateful: bool) -> Callable[[Any, int], None]:
    """
    Return what defines hooks with one handler each.
    """

    def fill(event_class: Any, number: int) -> None:
        for count in range(number):

            def handle(self: Any, event: Any) -> None:
                pass

            body = {"handle": on(event_class)(handle), "stateful": stateful, "__module__": __name__}
            type(Hook)(f"Hook{count}", (Hook,), {**body, "__qualname__": f"<locals>.Hook{count}"})

    return fill


@comparison("fresh", "one more hook with an instance per event (slope)", 3, against="one more function")
def fresh(effort: Effort, _without: dict[str, str]) -> Iterable[list[Contender]]:
    yield [
        Contender("eventbus", more(effort, hooks_of(stateful=False), many=HOOKS)),
        Contender("a function", more(effort, observe, many=HOOKS)),
    ]


@comparison("stateful", "one more stateful hook (slope)", 8, against="one more function")
def stateful(effort: Effort, _without: dict[str, str]) -> Iterable[list[Contender]]:
    with correlation("run-1"):
        yield [
            Contender("eventbus", more(effort, hooks_of(stateful=True), many=HOOKS)),
            Contender("a function", more(effort, observe, many=HOOKS)),
        ]


def predicates(effort: Effort, when: Callable[[Any], Any]) -> list[Contender]:
    def fill(event_class: Any, number: int) -> None:
        for one in functions(number):
            event_class.subscribe(one, when=when)

    return [
        Contender("eventbus", more(effort, fill)),
        Contender("a bare loop", loops(effort, lambda number: bare_when(functions(number), when))),
    ]


@comparison(
    "when",
    "`when=` that says no by False or None, one more handler (slope)",
    1.5,
    against="the predicate in the bare loop",
)
def refusing(effort: Effort, _without: dict[str, str]) -> Iterable[list[Contender]]:
    yield predicates(effort, lambda event: False)


@comparison(
    "when-empty",
    "... that says no by 0, or by something empty",
    1.5,
    against="the predicate in the bare loop",
)
def empty(effort: Effort, _without: dict[str, str]) -> Iterable[list[Contender]]:
    yield predicates(effort, lambda event: 0)


@comparison("when-yes", "... that says yes", None, against="the predicate in the bare loop")
def agreeing(effort: Effort, _without: dict[str, str]) -> Iterable[list[Contender]]:
    yield predicates(effort, lambda event: True)


@comparison(
    "keyed", "emit with 10,000 subscriptions, each to one run", 1.5, against="with one such subscription"
)
def keyed(effort: Effort, _without: dict[str, str]) -> Iterable[list[Contender]]:
    many, one = subclass(), subclass()
    for count, handle in enumerate(functions(10_000)):
        many.subscribe(handle, correlation_id=f"run-{count}")
    one.subscribe(functions(1)[0], correlation_id="run-5000")
    with correlation("run-5000"):
        yield [
            Contender("eventbus", Timed(emitting(many), effort)),
            Contender("one subscription", Timed(emitting(one), effort)),
        ]


@comparison("base", "emit to a subscription of a base class", 1.05, against="to one of the class itself")
def base(effort: Effort, _without: dict[str, str]) -> Iterable[list[Contender]]:
    class Base(Event):
        order: str

    class Derived(Base):
        items: int
        total: float

    exact = subclass()
    Base.subscribe(functions(1)[0])
    exact.subscribe(functions(1)[0])
    yield [
        Contender("eventbus", Timed(emitting(Derived), effort)),
        Contender("the class itself", Timed(emitting(exact), effort)),
    ]


@comparison(
    "await", "`await aemit` to 10 async handlers, event included", 2.5, against="a bare loop of awaits"
)
def awaited(effort: Effort, without: dict[str, str]) -> Iterable[list[Contender]]:
    handlers = []
    for _ in range(10):

        async def handle(event: Any) -> None:
            pass

        handlers.append(handle)
        Placed.subscribe(handle)

    async def ours() -> None:
        await Placed.aemit(order="A1", items=3, total=9.5)

    async def loop_of_awaits() -> None:
        e = plain()
        for h in handlers:
            await h(e)

    with new_loop() as loop:
        found = [
            Contender("eventbus", AsyncTimed(loop, ours, effort)),
            Contender("a bare loop", AsyncTimed(loop, loop_of_awaits, effort)),
        ]
        if "blinker" not in without:
            import blinker

            signal = blinker.Signal()
            for one in handlers:
                signal.connect(one, weak=False)
            sent = AsyncTimed(loop, lambda: signal.send_async(plain()), effort)
            found.append(Contender("blinker", sent, counts=False))
        yield found


@contextmanager
def new_loop() -> Generator[asyncio.AbstractEventLoop]:
    """
    Give an event loop, and close it.
    """
    loop = asyncio.new_event_loop()
    try:
        yield loop
    finally:
        loop.close()


# The log.

CALL: Final = ToolCall("call_0", "lookup_order", {"order": "A1"})
DATA: Final = {"total": 12, "items": ["a", "b"], "name": "vanilla ice"}
RESULT: Final = ToolResult(DATA)


class _InUtc(logging.Formatter):
    converter = time.gmtime


@contextmanager
def lines_to(path: Path) -> Generator[logging.Logger]:
    """
    Have stderr go to a file, and a logger of the standard library to another.
    """
    logger = logging.Logger("benchmark", logging.INFO)
    handler = logging.FileHandler(path / "logging.txt")
    handler.setFormatter(_InUtc("%(asctime)s.%(msecs)03dZ %(message)s", "%Y-%m-%dT%H:%M:%S"))
    logger.addHandler(handler)
    kept = os.dup(2)
    file = os.open(path / "eventbus.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(file, 2)
    os.close(file)
    configure(log="stderr")
    EventLogger.register()
    try:
        yield logger
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        handler.close()


@contextmanager
def scratch() -> Generator[Path]:
    """
    Give a directory, and remove it.
    """
    path = Path(tempfile.mkdtemp(prefix="eventbus-benchmark-"))
    try:
        yield path
    finally:
        shutil.rmtree(path)


def cut_back(path: Path) -> Callable[[], None]:
    """
    Return what empties the files of lines.
    """

    def cut() -> None:
        for file in path.iterdir():
            os.truncate(file, 0)

    return cut


@comparison(
    "log-start",
    "one `INF START` line to a file, event included",
    0.6,
    against="stdlib logging, the same text with a time in milliseconds",
)
def log_start(effort: Effort, _without: dict[str, str]) -> Iterable[list[Contender]]:
    with scratch() as path, lines_to(path) as logger, correlation("a" * 32) as cid:
        cut = cut_back(path)
        ours = Timed(lambda: InferenceStartedEvent.emit(agent="sundae"), effort, afterwards=cut)
        theirs = Timed(lambda: logger.info("%s INF START agent=%s", cid, "sundae"), effort, afterwards=cut)
        yield [Contender("eventbus", ours), Contender("logging", theirs)]


@comparison(
    "log-data",
    "one `TOOL OK` line with data, redacted",
    1.1,
    against="stdlib logging, the same text ready-made",
)
def log_data(effort: Effort, _without: dict[str, str]) -> Iterable[list[Contender]]:
    ready = json.dumps(DATA, ensure_ascii=False)
    text = "%s TOOL OK %s id=%s data=%s"
    with scratch() as path, lines_to(path) as logger, correlation("a" * 32) as cid:
        cut = cut_back(path)
        ours = Timed(
            lambda: ToolCallCompletedEvent.emit(agent="sundae", tool_call=CALL, result=RESULT),
            effort,
            afterwards=cut,
        )
        theirs = Timed(lambda: logger.info(text, cid, CALL.name, CALL.id, ready), effort, afterwards=cut)
        dumped = Timed(
            lambda: logger.info(text, cid, CALL.name, CALL.id, json.dumps(DATA, ensure_ascii=False)),
            effort,
            afterwards=cut,
        )
        yield [
            Contender("eventbus", ours),
            Contender("logging", theirs),
            Contender("logging and json.dumps", dumped, counts=False),
        ]


# The trace store.

ATTRIBUTES: Final = {"order": "A1", "items": 3, "total": 9.5}


def tracer() -> Any:
    """
    Return a tracer of the SDK that records its spans, and exports nothing.
    """
    from opentelemetry.sdk.trace import TracerProvider

    return TracerProvider().get_tracer("benchmark")


@comparison(
    "store-emit",
    "what the trace store adds to `emit`, median",
    0.6,
    clock="wall",
    against="start and end of an OpenTelemetry span with the same attributes",
)
def store_emit(effort: Effort, without: dict[str, str]) -> Iterable[list[Contender]]:
    number = max(200, int(effort.seconds * 50_000))
    with scratch() as path:
        silent = emitting(subclass())
        trace.start(path / "runs.db")
        spans = None if "opentelemetry" in without else tracer()

        def ours() -> float:
            took = median_of(emit, number)
            trace.flush(30)
            with isolated():
                return took - median_of(silent, number)

        def theirs() -> float:
            return median_of(lambda: spans.start_span("placed", attributes=ATTRIBUTES).end(), number)

        yield [
            Contender("eventbus", ours),
            *(() if spans is None else (Contender("opentelemetry", theirs),)),
        ]
        trace.stop()


@comparison(
    "store-rate",
    "events stored per second, nothing dropped",
    0.5,
    unit="rate",
    clock="wall",
    against="the same rows by one prepared `executemany` of 1,000",
)
def store_rate(effort: Effort, _without: dict[str, str]) -> Iterable[list[Contender]]:
    number = max(2_000, int(effort.seconds * 1_000_000))
    with scratch() as path:
        trace.start(path / "runs.db")
        dropped = stats()["store_dropped"]

        def ours() -> float:
            begun = time.perf_counter()
            for _ in range(number):
                emit()
            trace.flush(60)
            taken = time.perf_counter() - begun
            assert stats()["store_dropped"] == dropped
            return taken / number

        ours()
        connection = open_to_write(str(path / "runs.db"), "batched").connection
        found = connection.execute(f"SELECT {', '.join(COLUMNS)} FROM events LIMIT 1000").fetchall()
        statement = f"INSERT INTO events ({', '.join(COLUMNS)}) VALUES ({', '.join('?' * len(COLUMNS))})"
        connection.close()
        bare_store = open_to_write(str(path / "bare.db"), "batched").connection

        def theirs() -> float:
            begun = time.perf_counter()
            for _ in range(number // 1_000):
                bare_store.execute("BEGIN IMMEDIATE")
                bare_store.executemany(statement, found)
                bare_store.execute("COMMIT")
            return (time.perf_counter() - begun) / (number // 1_000 * 1_000)

        yield [Contender("eventbus", ours), Contender("executemany", theirs)]
        bare_store.close()
        trace.stop()


# Runs.

SPAN: Final = {
    "gen_ai.operation.name": "execute_tool",
    "gen_ai.tool.name": "noop",
    "gen_ai.tool.call.id": "call_0",
}


def run_with_a_call() -> Callable[[], object]:
    """
    Return a run around a tool call that does nothing.
    """
    calls, tools = [ToolCall("call_0", "noop", {})], {"noop": lambda: None}

    def once() -> None:
        with Run(agent="sundae") as run:
            run.call_tools(calls, tools)

    return once


def span_contender(effort: Effort, without: dict[str, str]) -> list[Contender]:
    """
    Return the span that a run is compared with.
    """
    if "opentelemetry" in without:
        return []
    spans = tracer()
    once = Timed(lambda: spans.start_span("execute_tool noop", attributes=SPAN).end(), effort)
    return [Contender("opentelemetry", once)]


@comparison(
    "run-nobody",
    "`Run` around a no-op tool call, nobody listening",
    0.6,
    against="start and end of one OpenTelemetry span",
)
def run_nobody(effort: Effort, without: dict[str, str]) -> Iterable[list[Contender]]:
    yield [Contender("eventbus", Timed(run_with_a_call(), effort)), *span_contender(effort, without)]


@comparison(
    "run-heard",
    "`Run` around it, one observer and one gate on everything",
    1.5,
    against="start and end of one OpenTelemetry span",
)
def run_heard(effort: Effort, without: dict[str, str]) -> Iterable[list[Contender]]:
    Event.subscribe(functions(1)[0])
    ProtectedEvent.subscribe(functions(1)[0])
    yield [Contender("eventbus", Timed(run_with_a_call(), effort)), *span_contender(effort, without)]


def tool_call_in_a_run(run: Run) -> Callable[[], object]:
    """
    Return one more tool call in a run.
    """
    calls, tools = [ToolCall("call_0", "noop", {})], {"noop": lambda: None}
    return lambda: run.call_tools(calls, tools)


@comparison(
    "call-nobody",
    "one more tool call in a run, nobody listening",
    None,
    against="start and end of one OpenTelemetry span",
)
def call_nobody(effort: Effort, without: dict[str, str]) -> Iterable[list[Contender]]:
    with Run(agent="sundae") as run:
        yield [
            Contender("eventbus", Timed(tool_call_in_a_run(run), effort)),
            *span_contender(effort, without),
        ]


@comparison(
    "call-heard",
    "one more in a run, one observer and one gate on everything",
    None,
    against="start and end of one OpenTelemetry span",
)
def call_heard(effort: Effort, without: dict[str, str]) -> Iterable[list[Contender]]:
    Event.subscribe(functions(1)[0])
    ProtectedEvent.subscribe(functions(1)[0])
    with Run(agent="sundae") as run:
        yield [
            Contender("eventbus", Timed(tool_call_in_a_run(run), effort)),
            *span_contender(effort, without),
        ]


# Import and memory.


def importing(names: str, compiled: Path) -> Sample:
    """
    Return samples of an import in a new process, as the processor time that it takes there.

    Args:
        names: What is imported.
        compiled: The directory in which Python keeps the compiled modules, all of them.
    """
    code = (
        "import sys, time\n"
        # As where it is not installed: structlog imports it if it is there.
        "sys.modules['rich'] = None\n"
        f"begun = time.process_time()\nimport {names}\nprint(time.process_time() - begun)\n"
    )
    # Where Python was told to write no bytecode, a checkout would be compiled at each import, and of what is
    # installed nothing.
    environment = {**os.environ, "PYTHONPYCACHEPREFIX": str(compiled)}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)

    def sample() -> float:
        done = subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            check=True,
            cwd=ROOT,
            env=environment,
        )
        return float(done.stdout)

    sample()  # compiles
    return sample


@comparison(
    "import", "`import eventbus`, without rich", 1.6, clock="process", against="blinker, attrs and structlog"
)
def imports(_effort: Effort, _without: dict[str, str]) -> Iterable[list[Contender]]:
    with scratch() as compiled:
        yield [
            Contender("eventbus", importing("eventbus", compiled)),
            Contender("its dependencies", importing("blinker, attrs, structlog", compiled)),
        ]


@functools.cache
def open_runs(number: int) -> tuple[float, float]:
    """
    Return what a run costs a stateful hook in bytes, beside the instance, while it is open and after its end.
    """
    with isolated():

        class Counting(Hook):
            stateful = True
            stateful_capacity = number + 1

            @on(InferenceStartedEvent)
            def begin(self, event: Any) -> None:
                self.began = event.timestamp

        ids = [f"{count:032x}" for count in range(number)]
        warm_up = "f" * 32
        InferenceStartedEvent.emit(agent="sundae", correlation_id=warm_up)
        InferenceCompletedEvent.emit(agent="sundae", correlation_id=warm_up)
        tracemalloc.start()
        try:
            begun = tracemalloc.get_traced_memory()[0]
            instances: list[Any] = [None] * number
            empty = tracemalloc.get_traced_memory()[0]
            for count in range(number):
                instances[count] = Counting()
                instances[count].began = time.time()
            instance = tracemalloc.get_traced_memory()[0] - empty
            del instances
            begun = tracemalloc.get_traced_memory()[0]
            for cid in ids:
                InferenceStartedEvent.emit(agent="sundae", correlation_id=cid)
            during = tracemalloc.get_traced_memory()[0] - begun
            for cid in ids:
                InferenceCompletedEvent.emit(agent="sundae", correlation_id=cid)
            after = tracemalloc.get_traced_memory()[0] - begun
        finally:
            tracemalloc.stop()
        Counting.unregister()
    return (during - instance) / number, after / number


def remembered(which: int) -> Callable[[Effort, dict[str, str]], Iterable[list[Contender]]]:
    """
    Return a row of the memory that open runs take.
    """

    def prepare(effort: Effort, _without: dict[str, str]) -> Iterable[list[Contender]]:
        number = min(100_000, effort.limit * 10)
        yield [Contender("eventbus", lambda: open_runs(number)[which])]

    return prepare


comparison(
    "memory", "100,000 open runs in a stateful hook, bytes each beside the instance", 300, unit="bytes"
)(remembered(0))
comparison("memory-after", "the same after their end", 0, unit="bytes")(remembered(1))
