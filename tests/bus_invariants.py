"""
What must hold of any play of the bus: properties of the record, each with the contract's statement.
"""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from typing import Any

from bus_play import FIRST, Candidate, Emission, Note, Play

from eventbus._errors import AsyncGateError


class Record:
    """A play that is over, as its invariants read it."""

    def __init__(self, play: Play) -> None:
        self.play = play
        self.log = [(pos, note) for pos, note in enumerate(play.log) if note.stage != "closed"]
        self.closed = {note.value: pos for pos, note in enumerate(play.log) if note.stage == "closed"}
        self.notes: dict[int, list[tuple[int, Note]]] = defaultdict(list)
        for pos, note in self.log:
            self.notes[note.n].append((pos, note))
        self.emissions = list(play.emissions.values())

    def of(self, emission: Emission, *stages: str) -> list[tuple[int, Note]]:
        return [(pos, note) for pos, note in self.notes[emission.n] if note.stage in stages]

    def pos(self, emission: Emission, stage: str) -> int:
        return self.of(emission, stage)[0][0]

    def reached(self, emission: Emission) -> list[tuple[int, Note]]:
        """Return where each handler was reached: an async function where it began, others where called."""
        found = self.of(emission, "called", "began")
        return [(pos, note) for pos, note in found if (note.stage == "began") == is_begun(emission, note)]

    def errors(self, emission: Emission) -> list[tuple[int, BaseException, bool]]:
        """Return what handlers and predicates raised while the emit waited; and whether it is decisive."""
        if emission.is_gate:
            shadows = {candidate.name for candidate in emission.candidates.values() if candidate.shadow}
            found = [(pos, note.value, note.who not in shadows) for pos, note in self.of(emission, "failed")]
            return found + [
                (pos, note.value, True)
                for pos, note in self.of(emission, "raised")
                if not isinstance(note.value, Exception)
            ]
        return [
            (pos, note.value, True)
            for pos, note in self.of(emission, "raised", "broken")
            if note.stage == "broken" or emission.how == "aemit" or not is_async(emission, note)
        ]

    def interrupt(self, emission: Emission) -> tuple[int, BaseException] | None:
        """Return the first thing raised that is no Exception, with its place."""
        return next(((p, e) for p, e, _ in self.errors(emission) if not isinstance(e, Exception)), None)

    def refusal(self, emission: Emission) -> tuple[int, BaseException] | None:
        """Return what a before-gate's handler raised first, shadows apart."""
        if not emission.is_gate or emission.cls.reverse:
            return None
        return next(((pos, error) for pos, error, decides in self.errors(emission) if decides), None)

    def is_cut(self, emission: Emission) -> bool:
        return self.interrupt(emission) is not None or self.refusal(emission) is not None

    def is_scheduled(self, emission: Emission) -> bool:
        return not emission.is_gate and emission.how != "aemit"


def is_async(emission: Emission, note: Note) -> bool:
    candidate = emission.candidates.get(note.who)
    return candidate is not None and candidate.is_async()


def is_begun(emission: Emission, note: Note) -> bool:
    candidate = emission.candidates.get(note.who)
    return candidate is not None and candidate.flavor == "async"


INVARIANTS: dict[str, Callable[[Record], Iterator[str]]] = {}

VIEWS = {
    "has_receivers_tells_whether_anybody_listens": "§1: lets an emitter skip preparing an expensive payload",
    "the_latest_definition_is_found": "§1: a name looked up finds the latest",
    "each_subscription_ends_with_its_own_cancel": "§2: each subscription ends with its own `cancel`",
    "hooks_shows_what_is_registered": "§3: a view of what is registered, in delivery order",
    "no_guard_is_switched_off_by_accident": "§3: retiring a hook with gates takes `replaces = True`",
}
"""What is checked while playing, when the bus is looked at."""


def invariant(check: Callable[[Record], Iterator[str]]) -> Callable[[Record], Iterator[str]]:
    INVARIANTS[check.__name__] = check
    return check


@invariant
def nobody_is_reached_who_does_not_listen(record: Record) -> Iterator[str]:
    """§2: `when=` is a predicate; `correlation_id=` receives one run only; §3: a retired class is silent."""
    for emission in record.emissions:
        for _, note in record.of(emission, "called", "began"):
            candidate = emission.candidates.get(note.who)
            if candidate is None or candidate.matches(emission.flag) is False:
                yield f"{note.who} was reached by emit {emission.n} of {emission.cls.__name__}"


@invariant
def nobody_is_reached_twice(record: Record) -> Iterator[str]:
    """§2: an event reaches one function at most once, whichever of its subscriptions match."""
    for emission in record.emissions:
        counts = Counter((note.stage, note.who) for _, note in record.of(emission, "called", "began"))
        for (stage, who), count in counts.items():
            if count > 1:
                yield f"{who} was {stage} {count} times by emit {emission.n}"


@invariant
def nobody_is_left_out(record: Record) -> Iterator[str]:
    """§4: dispatch works from a snapshot; the others run, whatever one handler raises."""
    for emission in record.emissions:
        if record.is_cut(emission):
            continue
        reached = {note.who for _, note in record.reached(emission)}
        refuses = emission.is_gate and emission.loop is not None and emission.how != "aemit"
        for who, candidate in emission.candidates.items():
            later = candidate.flavor == "async" and (refuses or record.is_scheduled(emission))
            if candidate.matches(emission.flag) and who not in reached and not later:
                yield f"{who} was not reached by emit {emission.n} of {emission.cls.__name__}"


@invariant
def handlers_run_in_order(record: Record) -> Iterator[str]:
    """§4: by priority (lower first), then in order of registration; §6: after-events the other way."""
    for emission in record.emissions:
        awaits = not record.is_scheduled(emission)
        sequence = [note.who for _, note in record.reached(emission) if awaits or note.stage == "called"]
        if getattr(emission.cls, "reverse", False):
            sequence.reverse()
        # Of several places of one function, any will do that keeps the order.
        last: tuple[int, ...] = (FIRST,)
        for who in sequence:
            candidate = emission.candidates.get(who)
            places = candidate.places if candidate is not None else ()
            following = [place for place in places if place >= last]
            if places and not following:
                yield f"emit {emission.n} of {emission.cls.__name__} reached {sequence}"
                break
            last = following[0] if following else last


@invariant
def handlers_run_on_the_emitting_thread(record: Record) -> Iterator[str]:
    """§4: handlers run on the emitting thread, before `emit` returns."""
    for emission in record.emissions:
        over = record.pos(emission, "over")
        for pos, note in record.of(emission, "called"):
            if note.thread != emission.thread or pos > over:
                yield f"{note.who} was called on another thread, or after emit {emission.n}"


@invariant
def handlers_see_the_emitters_context(record: Record) -> Iterator[str]:
    """§4: they see the emitter's context variables; §5: an explicit id is what the handlers' emits carry."""
    for emission in record.emissions:
        for _, note in record.of(emission, "called", "began"):
            if note.emitted != emission.n:
                yield f"{note.who} saw the context of emit {note.emitted} instead of {emission.n}"
            if note.cid != emission.cid:
                yield f"{note.who} ran in run {note.cid} for emit {emission.n} of run {emission.cid}"


@invariant
def all_receive_the_event_that_fired(record: Record) -> Iterator[str]:
    """§3: the handler receives the specific event that fired; §5: with the id of its run."""
    for emission in record.emissions:
        for _, note in record.of(emission, "called", "began"):
            event = note.event
            if event is not None and (event is not emission.event or type(event) is not emission.cls):
                yield f"{note.who} got {event!r} from emit {emission.n}"
            if event is not None and event.correlation_id != emission.cid:
                yield f"{note.who} got an event of run {event.correlation_id}, not {emission.cid}"


@invariant
def the_emitter_sees_no_failure(record: Record) -> Iterator[str]:
    """§4: observers fail open, the emitter never sees it; `emit` returns None."""
    for emission in record.emissions:
        if emission.is_gate or record.interrupt(emission) is not None or emission.strict:
            continue
        if emission.error is not None or emission.result is not None:
            yield f"emit {emission.n} gave {emission.result!r} and raised {emission.error!r}"


@invariant
def interrupts_propagate_at_once(record: Record) -> Iterator[str]:
    """§4: BaseException always propagates."""
    for emission in record.emissions:
        found = record.interrupt(emission)
        if found is None:
            continue
        pos, error = found
        if emission.error is not error:
            yield f"emit {emission.n} raised {emission.error!r} instead of {error!r}"
        if any(later > pos for later, _ in record.of(emission, "called")):
            yield f"emit {emission.n} went on after {error!r}"


@invariant
def each_failure_is_told_once(record: Record) -> Iterator[str]:
    """§4: the report is a HandlerFailedEvent, with hook, handler, event and error, every time."""
    for emission in record.emissions:
        told = Counter(id(note.value) for _, note in record.of(emission, "failed"))
        errors = {id(note.value): note.value for _, note in record.of(emission, "failed", "raised", "broken")}
        names = {candidate.name for candidate in emission.candidates.values()}
        raised = Counter(
            id(note.value)
            for _, note in record.of(emission, "raised", "broken")
            if isinstance(note.value, Exception) and (emission.is_gate or not emission.strict)
        )
        for key in raised | told:
            extra = emission.is_gate and isinstance(errors[key], AsyncGateError) and not raised[key]
            if told[key] != raised[key] and not extra:
                yield f"{errors[key]!r} was told {told[key]} times for emit {emission.n}"
        for _, note in record.of(emission, "failed"):
            if note.who not in names:
                yield f"{note.value!r} was told of {note.who}, which emit {emission.n} had nothing to do with"


@invariant
def strict_raises_what_would_be_reported(record: Record) -> Iterator[str]:
    """§4: strict turns reports into raised errors after all handlers ran: the single error, or a group."""
    drained = {id(error) for group in record.play.drained for error in members(group)}
    for emission in record.emissions:
        if not emission.strict or emission.is_gate or record.interrupt(emission) is not None:
            continue
        errors = [error for _, error, _ in record.errors(emission)]
        if not is_raised(errors, emission.error):
            yield f"emit {emission.n} raised {emission.error!r} instead of {errors}"
        for _, note in record.of(emission, "raised"):
            if not any(note.value is error for error in errors) and id(note.value) not in drained:
                yield f"drain did not raise {note.value!r} of emit {emission.n}"


def members(error: BaseException | None) -> list[BaseException]:
    """Return an error, and those of the group that it may be."""
    inner = error.exceptions if isinstance(error, BaseExceptionGroup) else ()
    return [*inner] if error is None else [error, *inner]


def is_raised(errors: list[BaseException], error: BaseException | None) -> bool:
    """Tell whether `error` is what becomes of the errors: nothing, the single one, or a group."""
    if len(errors) < 2:
        return error is (errors[0] if errors else None)
    return isinstance(error, ExceptionGroup) and [*map(id, errors)] == [*map(id, error.exceptions)]


@invariant
def nothing_is_judged_after_a_before_gate_raised(record: Record) -> Iterator[str]:
    """§6: the first exception, of a handler or its `when=`, stops the rest and propagates unchanged."""
    for emission in record.emissions:
        found = record.refusal(emission)
        if found is None:
            continue
        pos, error = found
        if any(later > pos for later, _ in record.of(emission, "called", "began")):
            yield f"emit {emission.n} of {emission.cls.__name__} went on after {error!r}"
        if emission.error is not error:
            yield f"emit {emission.n} raised {emission.error!r} instead of {error!r}"


@invariant
def after_gates_all_run_then_raise(record: Record) -> Iterator[str]:
    """§6: of after-events all run, then the single error, or an ExceptionGroup, is raised."""
    for emission in record.emissions:
        if emission.is_gate and emission.cls.reverse and record.interrupt(emission) is None:
            errors = [error for _, error, decides in record.errors(emission) if decides]
            if not is_raised(errors, emission.error):
                yield f"emit {emission.n} raised {emission.error!r} instead of {errors}"


@invariant
def a_gate_returns_its_event(record: Record) -> Iterator[str]:
    """§6: `emit` and `aemit` return the event."""
    for emission in record.emissions:
        if emission.is_gate and emission.error is None:
            result = emission.result
            if type(result) is not emission.cls or (emission.event or result) is not result:
                yield f"emit {emission.n} returned {result!r}"


def writes(record: Record, emission: Emission) -> Iterator[tuple[int, str, str, Any, bool]]:
    """Yield place, author, field, value and whether it applies, for all that was written to a gate."""
    latched = False
    for pos, note in record.of(emission, "wrote", "failed"):
        if note.stage == "failed":
            shadow = any(c.shadow for c in emission.candidates.values() if c.name == note.who)
            yield pos, note.who, "raised", note.value, not shadow
            continue
        author = emission.candidates.get(note.who)
        if author is None:
            continue
        name, _, value = note.value
        applied = not author.shadow and not (name == "cancel" and latched)
        latched = latched or (applied and name == "cancel" and bool(value))
        yield pos, author.name, name, value, applied


@invariant
def edits_tell_who_wrote_what(record: Record) -> Iterator[str]:
    """§6: `event.edits` lists who wrote what; what shadows write, or that they raise, is not applied."""
    for emission in record.emissions:
        event = emission.event if emission.result is None else emission.result
        if emission.is_gate and event is not None:
            told = [(edit.handler, edit.field, edit.new, edit.applied) for edit in event.edits]
            expected = [rest for _, *rest in writes(record, emission)]
            if [list(edit) for edit in told] != expected:
                yield f"emit {emission.n} tells {told} instead of {expected}"


@invariant
def each_gate_sees_what_earlier_ones_wrote(record: Record) -> Iterator[str]:
    """§6: each handler sees what earlier ones wrote; a shadow's writing is not applied."""
    for emission in record.emissions:
        if not emission.is_gate:
            continue
        written = [(pos, name, value) for pos, _, name, value, applied in writes(record, emission) if applied]
        for pos, note in record.of(emission, "called", "began"):
            before = {"value": 0, "cancel": False, **{name: value for at, name, value in written if at < pos}}
            if note.seen is not None and note.seen != (before["value"], before["cancel"]):
                yield f"{note.who} saw {note.seen} instead of {before}"


@invariant
def a_refusal_stands(record: Record) -> Iterator[str]:
    """§6: a sticky field latches at its first truthy value; the first reason stands."""
    for emission in record.emissions:
        event = emission.event if emission.result is None else emission.result
        if emission.is_gate and event is not None:
            reasons = [
                value
                for _, _, name, value, applied in writes(record, emission)
                if applied and name == "cancel" and value
            ]
            if event.cancel != (reasons[0] if reasons else False):
                yield f"emit {emission.n} ended with cancel={event.cancel!r}, after {reasons}"


@invariant
def no_async_handler_is_lost(record: Record) -> Iterator[str]:
    """§4: plain `emit` schedules the async handlers; they are never lost to garbage collection."""
    for emission in record.emissions:
        if not record.is_scheduled(emission) or record.is_cut(emission):
            continue
        for who, candidate in emission.candidates.items():
            if candidate.is_async() and candidate.matches(emission.flag):
                stages = [
                    n.stage for _, n in record.of(emission, "began", "finished", "raised") if n.who == who
                ]
                if stages not in (["began", "finished"], ["began", "raised"]):
                    yield f"{who} has {stages} of emit {emission.n}"


@invariant
def scheduled_handlers_run_on_the_right_loop(record: Record) -> Iterator[str]:
    """§4: on the running loop; else on that of the enclosing scope; else on one background loop."""
    background: set[int] = set()
    others = {id(loop) for e in record.emissions for loop in (e.loop, e.scope_loop) if loop is not None}
    for emission in record.emissions:
        if record.is_scheduled(emission):
            expected = emission.scope_loop if emission.loop is None else emission.loop
            for _, note in record.of(emission, "began"):
                if expected is None:
                    background.add(id(note.loop))
                elif note.loop is not expected:
                    yield f"{note.who} of emit {emission.n} ran on another loop"
    # What is emitted on the background loop itself runs there as well.
    here = {
        id(n.loop)
        for e in record.emissions
        if e.loop is None and e.scope_loop is None
        for _, n in record.of(e, "began")
    }
    if len(background) > 1 or (background & others) - here:
        yield "there is more than one background loop"


@invariant
def scheduled_handlers_of_a_run_follow_one_another(record: Record) -> Iterator[str]:
    """§4: for one handler (or stateful instance) and run one after another, in the order of events."""
    chains: dict[Any, list[tuple[int, int, Emission]]] = defaultdict(list)
    for emission in record.emissions:
        # An emit that is awaited comes after what is scheduled already, unless a handler awaits it.
        if emission.is_gate or emission.cid is None or (emission.how == "aemit" and not emission.outermost):
            continue
        for pos, note in record.of(emission, "began"):
            candidate = emission.candidates.get(note.who)
            ends = [
                at for at, n in record.of(emission, "finished", "raised") if n.who == note.who and at > pos
            ]
            if candidate is not None and candidate.is_async() and ends:
                chains[candidate.serial, emission.cid].append((pos, ends[0], emission))
    for (serial, cid), deliveries in chains.items():
        for one, two in itertools.permutations(deliveries, 2):
            first, second = one[2], two[2]
            both = record.is_scheduled(first) and record.is_scheduled(second)
            if both and one[0] < two[0] < one[1]:
                yield f"two deliveries to {serial} of run {cid} overlap"
            if (
                record.is_scheduled(first)
                and record.pos(first, "over") < record.pos(second, "start")
                and one[1] > two[0]
            ):
                yield f"{serial} of run {cid} began with emit {second.n} before emit {first.n} was done"


@invariant
def aemit_awaits_each_handler(record: Record) -> Iterator[str]:
    """§4: `aemit` runs all handlers in order and awaits each; §6: a sync `emit` waits for async gates."""
    for emission in record.emissions:
        if record.is_scheduled(emission):
            continue
        over, last = record.pos(emission, "over"), -1
        for pos, note in record.reached(emission):
            mine = [at for at, n in record.of(emission, "left", "finished", "raised") if n.who == note.who]
            if pos < last or (mine and max(mine) > over):
                yield f"emit {emission.n} did not wait for a handler before {note.who}"
            last = max([last, *mine])


def instances(record: Record) -> Iterator[tuple[int, Note, Emission, Candidate]]:
    for pos, note in record.log:
        if note.stage in ("called", "began") and note.token is not None:
            emission = record.play.emissions[note.n]
            candidate = emission.candidates.get(note.who)
            if candidate is not None and (note.stage == "began") == (candidate.flavor == "async"):
                yield pos, note, emission, candidate


def is_of_run(emission: Emission, candidate: Candidate) -> bool:
    return candidate.life == "stateful" and emission.cid is not None


@invariant
def one_instance_per_event(record: Record) -> Iterator[str]:
    """§3: how long an instance lives: by default one per event; without a cid nothing is kept."""
    tokens: dict[Any, set[int]] = defaultdict(set)
    owners: dict[Any, set[int]] = defaultdict(set)
    for _, note, emission, candidate in instances(record):
        if candidate.life == "fresh" or (candidate.life == "stateful" and emission.cid is None):
            tokens[candidate.period, emission.n].add(note.token)
        owners[note.token].add(emission.n)
    for (period, n), found in tokens.items():
        if len(found) > 1:
            yield f"emit {n} met {len(found)} instances of one hook"
        if any(len(owners[token]) > 1 for token in found):
            yield f"the instance of emit {n}, period {period}, met another event"


@invariant
def one_instance_per_process(record: Record) -> Iterator[str]:
    """§3: `shared = True`: one per process."""
    tokens: dict[int, set[int]] = defaultdict(set)
    for _, note, _, candidate in instances(record):
        if candidate.life == "shared":
            tokens[candidate.period].add(note.token)
    if any(len(found) > 1 for found in tokens.values()):
        yield f"a shared hook has several instances: {dict(tokens)}"


@invariant
def one_instance_per_run(record: Record) -> Iterator[str]:
    """§3: `stateful = True`: one per (hook, cid), evicted when the run ends, or least recently used first."""
    current: dict[tuple[int, int, str], int] = {}
    used: dict[int, list[tuple[str | None, str]]] = defaultdict(list)
    gone: set[int] = set()
    limbo: set[tuple[int, str]] = set()
    inside: Counter[tuple[int, str]] = Counter()
    for pos, note in record.log:
        emission = record.play.emissions[note.n]
        candidate = emission.candidates.get(note.who)
        world = id(emission.world)
        if note.stage == "ended":
            run = (world, note.value)
            for key in [key for key in current if (key[0], key[2]) == run]:
                gone.add(current.pop(key))
            for uses in used.values():
                uses.append((None, note.value))
            if inside[run]:
                # A handler that is still inside finishes with what it has.
                limbo.add(run)
        elif candidate is None or not is_of_run(emission, candidate):
            continue
        elif note.stage == "called":
            cid = emission.cid or ""
            inside[world, cid] += 1
            key = (world, candidate.period, cid)
            if record.closed.get(candidate.period, pos) < pos:
                # Of a hook that is gone an event under way still makes instances.
                continue
            if (world, cid) in limbo:
                # It takes a place meanwhile, and gives it up again.
                gone.add(note.token)
                used[candidate.period] += [(cid, cid), (None, cid)]
                continue
            if note.token in gone:
                yield f"{note.who} met an instance of a run that had ended before emit {emission.n}"
            yield from _kept(current.get(key), note, used[candidate.period], cid, candidate.capacity)
            current[key] = note.token
            used[candidate.period].append((cid, cid))
        elif note.stage in ("left", "raised"):
            if note.stage == "raised" and candidate.is_async():
                continue
            inside[world, emission.cid or ""] -= 1
            if not inside[world, emission.cid or ""]:
                limbo.discard((world, emission.cid or ""))


def _kept(
    before: int | None, note: Note, uses: list[tuple[str | None, str]], cid: str, capacity: int | None
) -> Iterator[str]:
    # Between two uses, as many others as there is room for leave it alone; more take its place.
    since: list[tuple[str | None, str]] = []
    for use in reversed(uses):
        if use[0] == cid:
            break
        since.append(use)
    others = {use[0] for use in since if use[0] is not None}
    ended = any(use[0] is None for use in since)
    if before is None:
        return
    if note.token != before and (capacity is None or len(others) < capacity):
        yield f"{note.who} met another instance in run {cid}, in emit {note.n}"
    if note.token == before and capacity is not None and len(others) >= capacity and not ended:
        yield f"{note.who} met an instance beyond the capacity of {capacity}, in emit {note.n}"


@invariant
def stateful_handlers_of_a_run_take_turns(record: Record) -> Iterator[str]:
    """§3: the synchronous handlers of one run's stateful hooks run one at a time, whichever threads emit."""
    inside: dict[Any, list[int]] = defaultdict(list)
    for _, note in record.log:
        emission = record.play.emissions[note.n]
        candidate = emission.candidates.get(note.who)
        if candidate is None or not is_of_run(emission, candidate) or candidate.is_async():
            continue
        threads = inside[id(emission.world), emission.cid]
        if note.stage == "called":
            if any(thread != note.thread for thread in threads):
                yield f"{note.who} ran in run {emission.cid} while another handler did"
            threads.append(note.thread)
        elif note.stage in ("left", "raised"):
            threads.remove(note.thread)


@invariant
def nothing_is_kept_of_an_ended_run(record: Record) -> Iterator[str]:
    """§3: a stateful instance is evicted after the handlers of an event whose class sets `ends_run`."""
    for world, periods, kept, end in record.play.kept:
        used: dict[str | None, set[int]] = defaultdict(set)
        for _, note in [one for one in record.log if one[0] < end]:
            emission = record.play.emissions[note.n]
            candidate = emission.candidates.get(note.who)
            if emission.world is not world:
                continue
            if note.stage == "ended":
                used.pop(note.value, None)
            elif note.stage == "called" and candidate is not None and is_of_run(emission, candidate):
                used[emission.cid].add(candidate.period)
        may = [cid for cid, found in used.items() if found & periods]
        if kept > len(may):
            yield f"{kept} runs are kept where {may} may be"


def violations(play: Play) -> Iterator[str]:
    """Yield what does not hold of a play, each with the name of its invariant."""
    yield from play.problems
    if any(problem.startswith("no_emit_hangs") for problem in play.problems):
        return
    record = Record(play)
    for name, check in INVARIANTS.items():
        for text in check(record):
            yield f"{name}: {text}"
