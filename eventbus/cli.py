"""
The command line: `eventbus` with its commands, which are here or in `_trace_commands`; needs the extra `cli`.

Results go to stdout; log lines, progress and complaints go to stderr.
"""

from __future__ import annotations

import io
import os
import stat
import sys
from collections import Counter
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, cast

import attrs

try:
    import click

    from ._show import Counts, progress, show_counts, show_events, show_hooks, show_json, show_note
    from ._trace_commands import INTERRUPTED, Unusable, grep, reading, runs, stats, tail, trace
except ModuleNotFoundError as error:
    if (error.name or "").partition(".")[0] not in {"click", "rich"}:
        raise
    _msg = "the command line needs click and rich; install them with: pip install 'eventbus[cli]'"
    raise ImportError(_msg, name="eventbus.cli") from error

from . import catalog, gates
from . import trace as trace_store
from ._context import replaying
from ._emitter import payload_fields
from ._errors import TraceFileError
from ._event import STICKY, Event, EventRoot
from ._hook import hooks
from ._lines import escape
from ._load import LoadError, load
from ._records import Problem, read_records
from ._replay import Summary, replay_record
from ._retell import retell
from ._scheduler import drain
from ._settings import configure
from .values import ToolCall

__all__ = ["cli"]

SHOWN_REASONS: Final = 5
"""How many different reasons of a gate are shown, the most frequent."""

_INPUT: Final = click.Path(exists=True, dir_okay=False, allow_dash=True)
_EXISTING: Final = click.Path(exists=True, dir_okay=False)
_FILE: Final = click.Path(dir_okay=False)

_DATABASE: Final = b"SQLite format 3\0"

AFTER_A_REFUSAL: Final = """\
What follows a refusal is the run as it was recorded: this tells what would have
been refused, not what would have happened then."""


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="eventbus", prog_name="eventbus")
def cli() -> None:
    """
    Show what the event bus knows, and send recorded runs through it.
    """
    # Names come from whoever made the file; not every encoding has their characters.
    reconfigure = getattr(sys.stdout, "reconfigure", None)
    if reconfigure is not None:
        reconfigure(errors="backslashreplace")


for _command in (runs, trace, tail, grep, stats):
    cli.add_command(_command)


@cli.command()
@click.argument("what", metavar="[FILE | RUN]", required=False)
@click.option("--db", "store", type=_EXISTING, metavar="FILE", help="Replay the runs of this trace store.")
@click.option(
    "--trace", "into", type=_FILE, metavar="FILE", help="Fill this trace store with what is replayed."
)
@click.option(
    "--hooks",
    "modules",
    multiple=True,
    metavar="MODULE_OR_FILE",
    help="Import this first: a dotted module or package, or a .py file. May be repeated.",
)
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="Stop after N runs.")
@click.option("--quiet", "-q", is_flag=True, help="Write no lines, only the summary.")
@click.pass_context
def replay(
    ctx: click.Context,
    what: str | None,
    store: str | None,
    into: str | None,
    modules: Sequence[str],
    limit: int | None,
    quiet: bool,
) -> None:
    """
    Send recorded runs through the bus.

    They come from FILE, or with --db from a trace store. FILE has one JSON object per line, gzipped or not,
    with `id`, `agent`, `model` and `messages` as in OpenAI's chat format; - reads stdin. RUN is one run of
    the store; without it all are replayed, the oldest first. What is replayed is stored only where --trace
    says, whatever EVENTBUS_TRACE names. The exit status is 1 if a line could not be replayed.
    """
    if store is None:
        if what is None:
            msg = "give a FILE of recorded runs, or a trace store with --db."
            raise click.UsageError(msg)
        _INPUT.convert(what, None, ctx)
    elif into is not None and os.path.exists(into) and os.path.samefile(into, store):
        msg = "--db and --trace name one file; its runs would be in it twice. Give --trace another."
        raise Unusable(msg)
    summary = Summary()
    told = _Told()
    interrupted = False
    try:
        with _stored_only_in(into):
            with replaying():
                _load("--hooks", modules)
            if quiet:
                configure(log="off")
            with summary:
                if store is None:
                    _replay_file(cast("str", what), limit, summary, told)
                else:
                    _replay_store(store, what, limit, summary, told)
                drain()
    except KeyboardInterrupt:
        interrupted = True
        _complain("Interrupted; this is what was replayed so far.")
    _show_summary(summary, told, has_lines=store is None)
    if failed := summary.events[catalog.InferenceFailedEvent] if store is None and not interrupted else 0:
        # Of a recorded conversation, that is; a stored run may have failed by itself.
        show_note(
            f"{failed} run{'s' if failed > 1 else ''} ended where a gate failed; the rest was not replayed."
        )
    ctx.exit(INTERRUPTED if interrupted else 1 if told.problems else 0)


@attrs.define
class _Told:
    """
    What a replay could not tell.

    Attributes:
        problems: How many lines of the file.
        skipped: How many events of the store, by name.
    """

    problems: int = 0
    skipped: Counter[str] = attrs.field(factory=Counter[str])


@contextmanager
def _stored_only_in(into: str | None) -> Generator[None]:
    # EVENTBUS_TRACE names the store that the other commands read; a replay is not to double its runs.
    named = os.environ.pop("EVENTBUS_TRACE", None)
    try:
        if into is not None:
            try:
                trace_store.start(into)
            except TraceFileError as error:
                raise Unusable(escape(str(error))) from error
        yield
    finally:
        if into is not None:
            trace_store.stop()
        if named is not None:
            os.environ["EVENTBUS_TRACE"] = named


def _replay_file(file: str, limit: int | None, summary: Summary, told: _Told) -> None:
    with _open(file) as stream:
        if stream.peek(len(_DATABASE)).startswith(_DATABASE):
            msg = (
                f"{file} is a database, and has no recorded runs; if it is a trace store, give it with --db."
            )
            raise Unusable(msg)
        about = os.fstat(stream.fileno())
        size = about.st_size if stat.S_ISREG(about.st_mode) else None
        with progress(size, stream.raw.tell, lambda: summary.runs) as advance:
            replayed = 0
            for found in read_records(stream):
                if isinstance(found, Problem):
                    told.problems += 1
                    _complain(f"{'<stdin>' if file == '-' else file}:{found.line}: {found.reason}")
                else:
                    replay_record(found)
                    replayed += 1
                    # Its queue is bounded: what comes faster than it is written would be dropped.
                    trace_store.flush()
                advance()
                if replayed == limit:
                    break


def _replay_store(path: str, run: str | None, limit: int | None, summary: Summary, told: _Told) -> None:
    with reading(Path(path)) as reader:
        found = reader.runs() if run is None else [reader.run(run)]
        chosen = sorted((one.first_seq, one.correlation_id) for one in found)[:limit]
        replayed = 0
        with progress(len(chosen), lambda: replayed, lambda: summary.runs) as advance:
            for _, cid in chosen:
                retell(list(reader.events(cid)), told.skipped)
                trace_store.flush()
                replayed += 1
                advance()


def _show_summary(summary: Summary, told: _Told, *, has_lines: bool) -> None:
    order = {cls: place for place, cls in enumerate(_catalog())}
    by_type = sorted(summary.events.items(), key=lambda item: order.get(item[0], len(order)))
    by_calls = sorted(summary.tools.items(), key=lambda item: (-item[1].calls, item[0]))
    show_counts(
        {
            "runs": summary.runs,
            **({"lines not replayed": told.problems} if has_lines else {}),
            "events": summary.total,
            "seconds": summary.seconds,
            "events per second": round(summary.rate),
        },
        [
            Counts(("event", "count"), [(cls.__name__, [count]) for cls, count in by_type]),
            Counts(
                ("tool", "calls", "failed"), [(name, [tool.calls, tool.failed]) for name, tool in by_calls]
            ),
            Counts(
                ("handler that raised", "times"),
                [(name, [count]) for name, count in summary.failed_handlers.most_common()],
            ),
            Counts(("gate decision", "count"), list(_decisions(summary))),
            Counts(
                ("event that is not registered", "left out"),
                [(name, [count]) for name, count in told.skipped.most_common()],
            ),
        ],
    )
    if any(decided.action == "deny" for decided in summary.decisions):
        show_note(AFTER_A_REFUSAL)


def _decisions(summary: Summary) -> Iterator[tuple[str, Sequence[int]]]:
    # Most frequent first; under each what reasons it gave.
    for decided, decisions in sorted(summary.decisions.items(), key=lambda item: (-item[1].count, item[0])):
        applied = "" if decided.applied else ", not applied"
        yield f"{decided.by} {decided.action} {decided.subject}{applied}", [decisions.count]
        for reason, count in decisions.reasons.most_common(SHOWN_REASONS):
            yield f"  {reason}", [count]
        if len(decisions.reasons) > SHOWN_REASONS:
            rest = decisions.reasons.most_common()[SHOWN_REASONS:]
            yield "  other reasons", [sum(count for _, count in rest)]


@cli.command()
@click.option("--json", "as_json", is_flag=True, help="Write JSON.")
def events(as_json: bool) -> None:
    """
    List the events of the catalog.

    Each with its channel, whether it ends the run, the line it has in the log and that line's level, and its
    readers; of gates, * marks what can be written, and ! what keeps its first value.
    """
    (show_json if as_json else show_events)([_event_row(cls) for cls in _catalog()])


@cli.command("hooks")
@click.argument("module", required=False)
@click.option("--json", "as_json", is_flag=True, help="Write JSON.")
def list_hooks(module: str | None, as_json: bool) -> None:
    """
    List the hooks that are registered, in the order of delivery.

    MODULE is imported first: a dotted module, a package with all its modules, or a .py file.
    """
    _load("MODULE", [] if module is None else [module])
    rows = [
        {
            "hook": row.name,
            "module": row.cls.__module__,
            "state": row.state,
            "priority": row.priority,
            "events": [event.__name__ for event in row.events],
            "file": row.file,
            "line": row.line,
        }
        for row in hooks()
    ]
    (show_json if as_json else show_hooks)(rows)


def _load(parameter: str, modules: Iterable[str]) -> None:
    # As `python -m` has it: an application's own modules are found where the command is given.
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    for module in modules:
        try:
            load(module)
        except LoadError as error:
            msg = f"{parameter} {error}"
            raise Unusable(msg) from error


@contextmanager
def _open(file: str) -> Generator[io.BufferedReader]:
    try:
        stream = open(0, "rb", closefd=False) if file == "-" else open(file, "rb")  # noqa: SIM115 - closed below
    except OSError as error:
        msg = f"{file} cannot be opened: {error.strerror}"
        raise Unusable(msg) from error
    with stream:
        yield stream


def _complain(text: str) -> None:
    click.echo(escape(text), err=True)


def _catalog() -> list[type[EventRoot]]:
    # In the order of their definition, which is that of a run; `__all__` is sorted by name.
    return [
        cls
        for module in (catalog, gates)
        for name, cls in cast("Mapping[str, Any]", vars(module)).items()
        if name in module.__all__
    ]


def _event_row(cls: type[EventRoot]) -> dict[str, Any]:
    fields = [field for field in payload_fields(cls) if field.name != "run"]
    readers = [field.name for field in fields]
    words = _line_words(cls, readers)
    return {
        "event": cls.__name__,
        "kind": "event" if issubclass(cls, Event) else "gate",
        "channel": cls.channel,
        "readers": readers,
        "writable": [field.name for field in fields if STICKY in field.metadata],
        "sticky": [field.name for field in fields if field.metadata.get(STICKY)],
        "ends_run": cls.ends_run,
        "line": words,
        "level": None if words is None or "action" in readers else cls.log_level,
    }


def _line_words(cls: type[EventRoot], readers: Sequence[str]) -> str | None:
    if not issubclass(cls, catalog.CatalogEvent) or cls.log_line is Event.log_line:
        return None
    required = {"tool_call": ToolCall("call_0", "lookup_order")} if "tool_call" in readers else {}
    line = cls(**required)._line()  # type: ignore[arg-type]  # the constructor of a class known only by its base
    if line is None:
        return None
    # All events of a class have the same words and level, but for a gate's decision: its action says which.
    return f"{line.words[0]} ..." if "action" in readers else " ".join(line.words)
