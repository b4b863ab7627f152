"""
The hypothesis machine that draws what is done to a bus, and has it checked.
"""

from __future__ import annotations

import random
from typing import Any

from bus_invariants import violations
from bus_play import PRIORITIES, RUNS, Own, Play
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from eventbus import Event, ProtectedEvent

VERBS = ("raise", "emit", "emit")
GATE_VERBS = ("raise", "edit", "refuse", "unlatch", "emit")
WRITES = ("edit", "refuse", "unlatch", "refuse", "unlatch")
CHANGES = ("subscribe", "cancel", "unregister", "register", "thread", "interrupt", "hush")
WAYS = ("emit", "emit", "emit", "loop", "aemit", "aemit", "publish", "scope", "thread", "strict")
WHENS = (None, None, None, None, None, "even", "odd", "even", "odd", "broken")
SEEDS = st.integers(0, 2**24 - 1)


class Hand:
    """
    Does one random thing or another to a play.

    What it does comes from a seed rather than from hypothesis' own choices: those cost more than the play,
    and seldom have an event meet a handler. A failure shrinks to the fewest steps that have it.
    """

    def __init__(self, play: Play, seed: int) -> None:
        self.play = play
        self.random = random.Random(seed)
        self.choose = self.random.choice

    def pick(self) -> int:
        return self.random.randrange(100)

    def may(self, chance: float) -> bool:
        return self.random.random() < chance

    def event(self) -> Any:
        name = self.choose(("Told", "Told", "Ended", "Asked", "Answered", None, None))
        return self.play.events[name] if name else self.play.pick_event(self.pick())

    def actions(self, verbs: tuple[str, ...]) -> list[tuple[str, int]]:
        verbs = verbs if self.may(0.6) else verbs + CHANGES
        trouble = self.choose((0.0, 0.2, 0.4, 0.8))
        return [(self.choose(verbs) if self.may(trouble) else "pass", self.pick()) for _ in range(14)]

    def owns(self) -> list[tuple[str, Own]]:
        owns = []
        for name in self.random.sample("abc", self.choose((1, 2, 3))):
            kind = self.choose(("on", "on", "on", "override", "drop"))
            classes = tuple(self.event() for _ in range(self.choose((1, 1, 2)))) if kind == "on" else ()
            # No async method: when an instance is used is known of a call only.
            flavor = self.choose(("sync", "sync", "sync", "returns", "returns", "bare"))
            priority = self.choose((None, None, None, 50, 300))
            owns.append((name, Own(kind, classes, priority, self.choose(WHENS), flavor)))
        return owns

    def define_hook(self) -> None:
        life = self.choose(("fresh", "stateful", "stateful", "shared"))
        bases = [self.pick() for _ in range(self.choose((0, 0, 1, 1, 2)))]
        self.play.define_hook(
            self.random.randrange(4),
            bases,
            self.owns(),
            self.owns() if self.may(0.2) else [],
            stateful=life == "stateful",
            shared=life == "shared",
            priority=self.choose(PRIORITIES),
            stateful_capacity=self.choose((None, None, 1, 2)),
            abstract=self.may(0.05),
            replaces=self.may(0.5),
            shadow=self.may(0.15),
        )

    def subscribe(self) -> None:
        self.play.subscribe(
            self.random.randrange(8),
            Event if self.may(0.05) else self.event(),
            self.choose(PRIORITIES),
            self.choose(WHENS),
            self.choose((None, None, "r1", "r2")),
            self.choose(("strong", "strong", "strong", "weak", "blinker")),
            again=self.may(0.15),
        )

    def change(self) -> None:
        """Take back, bring back, let go."""
        play = self.play
        self.choose((play.cancel, play.cancel, play.register, play.unregister, play.let_go))(self.pick() % 20)

    def define_event(self) -> None:
        self.play.define_event(self.random.randrange(3), self.pick())

    def emit(self) -> None:
        way = "threads" if self.may(0.05) else self.choose(WAYS)
        scope = self.choose((None, "r1", "r1", "r2"))
        explicit = self.choose((None, None, *RUNS))
        cls = self.event()
        verbs = self.choose((GATE_VERBS, WRITES)) if issubclass(cls, ProtectedEvent) else VERBS
        actions = self.actions(verbs)
        self.play.top(cls, way, scope, explicit, self.random.randrange(2), actions)


class BusMachine(RuleBasedStateMachine):
    """Draws what is done to a bus, and checks it in the end; all that must hold, or one of it."""

    wanted: str | None = None

    def __init__(self) -> None:
        super().__init__()
        self.play = Play()

    @initialize(seed=SEEDS)
    def begin(self, seed: int) -> None:
        hand = Hand(self.play, seed)
        for _ in range(4):
            hand.subscribe()
        for _ in range(3):
            hand.define_hook()
        for _ in range(2):
            hand.define_event()
        for _ in range(3):
            hand.emit()

    @rule(seed=SEEDS)
    def define(self, seed: int) -> None:
        hand = Hand(self.play, seed)
        hand.choose((hand.define_event, hand.define_hook, hand.define_hook))()
        hand.emit()

    @rule(seed=SEEDS)
    def subscribe(self, seed: int) -> None:
        hand = Hand(self.play, seed)
        hand.subscribe()
        hand.emit()

    @rule(seed=SEEDS)
    def change(self, seed: int) -> None:
        hand = Hand(self.play, seed)
        hand.change()
        hand.emit()

    @rule(seed=SEEDS)
    def emit(self, seed: int) -> None:
        hand = Hand(self.play, seed)
        for _ in range(5):
            hand.emit()

    @rule()
    def drain(self) -> None:
        self.play.drain()

    @rule(leave=st.booleans())
    def isolate(self, leave: bool) -> None:
        if leave and len(self.play.worlds) > 1:
            self.play.leave()
        elif len(self.play.worlds) < 3:
            self.play.isolate()

    def teardown(self) -> None:
        self.play.close()
        found = [text for text in violations(self.play) if self.wanted in (None, text.partition(":")[0])]
        assert [] == found, "\n".join(found)
