"""
The bus under stress: threads, forks, loops, interruptions at any line, the end of the interpreter, no stderr.

What these tests claim is that nothing is lost or doubled, that nothing hangs, and that the process ends well.
What grows in the long run is for `soak.py`, which is run on request.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import sys
import textwrap
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import logged
import pytest

from eventbus import Event, HandlerFailedEvent, Hook, adrain, configure, correlation, drain, hooks, on, stats
from eventbus.testing import capture

THREADS = 16
PATIENCE = 30.0
"""Seconds that something may take which has hung if it needs them."""


class Placed(Event):
    sender: int = 0
    number: int = 0


class Finished(Event):
    ends_run = True


@pytest.fixture
def switching():
    """Let threads take turns after every few instructions."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def at_once(work, threads=THREADS):
    """Run `work(index)` on so many threads, which begin together, and return what they return."""
    ready = threading.Barrier(threads)

    def begin(index):
        ready.wait(PATIENCE)
        return work(index)

    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(begin, range(threads), timeout=PATIENCE))


def runs_well(program, **options):
    """Run a program in a process of its own, see that it ended with status 0, and return what it wrote."""
    head = """
        import asyncio, atexit, faulthandler, gc, os, signal, sys, threading, time, warnings, weakref
        from eventbus import *
        class Placed(Event):
            sender: int = 0
            number: int = 0
    """
    done = logged.run(textwrap.dedent(head) + textwrap.dedent(program), **options)
    assert 0 == done.returncode, done.stderr
    return done


@pytest.mark.usefixtures("switching")
class TestThreads:
    """Sixteen threads, which switch as often as Python lets them."""

    def test_who_stays_gets_everything_once(self):
        """Whatever the others subscribe, cancel, define and unregister, in the order of each sender."""
        rounds = 20
        stayed = [[], [], []]

        class Staying(Hook):
            @on(Placed)
            def handle(self, event):
                stayed[0].append((event.sender, event.number))

        Placed.subscribe(lambda event: stayed[1].append((event.sender, event.number)))
        Event.subscribe(lambda event: stayed[2].append((event.sender, event.number)))

        def work(sender):
            own = []
            for number in range(rounds):
                with correlation(f"run-{sender}"):
                    seen, of_run = [], []

                    class Passing(Hook):
                        @on(Placed, when=lambda event: event.sender == sender)
                        def handle(self, event, seen=seen):
                            seen.append(event.number)

                    mine = Placed.subscribe(
                        lambda event, of_run=of_run: of_run.append(event.sender),
                        correlation_id=f"run-{sender}",
                    )
                    Placed.emit(sender=sender, number=number)
                    mine.cancel()
                    Passing.unregister()
                    own.append((seen, of_run))
            return own

        with capture(HandlerFailedEvent) as recorder:
            owned = at_once(work)

        assert [] == recorder.events
        expected = [(sender, number) for sender in range(THREADS) for number in range(rounds)]
        for seen in stayed:
            assert expected == sorted(seen, key=lambda pair: pair[0])
        for sender, own in enumerate(owned):
            assert [([number], [sender]) for number in range(rounds)] == own

    def test_async_handlers_get_everything_once(self):
        """In the order of each run, on the background loop, while others come and go."""
        rounds = 40
        seen = []

        @Placed.subscribe
        async def handler(event):
            await asyncio.sleep(0)
            seen.append((event.sender, event.number))

        def work(sender):
            with correlation(f"run-{sender}"):
                for number in range(rounds):
                    with Placed.subscribe(lambda event: None):
                        Placed.emit(sender=sender, number=number)

        at_once(work)
        assert 0 == drain(PATIENCE)
        expected = [(sender, number) for sender in range(THREADS) for number in range(rounds)]
        assert expected == sorted(seen, key=lambda pair: pair[0])

    def test_stateful_instances_count_right(self):
        """One instance for each of four runs, whose handlers never overlap, and which is gone at its end."""
        rounds = 40
        told = Counter()

        class Counting(Hook):
            stateful = True

            def __init__(self):
                self.count = 0

            @on(Placed)
            def count_up(self):
                count = self.count
                # A switch here loses a count, if somebody else is let in.
                self.count = (lambda: count)() + 1

            @on(Finished)
            def tell(self, event):
                told[event.correlation_id] = self.count

        def work(sender):
            for number in range(rounds):
                Placed.emit(sender=sender, number=number, correlation_id=f"run-{sender % 4}")

        with capture(HandlerFailedEvent) as recorder:
            at_once(work)
            for run in range(4):
                Finished.emit(correlation_id=f"run-{run}")
        assert [] == recorder.events
        assert {f"run-{run}": rounds * THREADS // 4 for run in range(4)} == told

    def test_hooks_defined_again_at_once(self):
        """Of one hook that all define again and again, as a reload does, one is live in the end."""
        scope = {"Hook": Hook, "on": on, "Placed": Placed, "seen": [], "__name__": "reloaded"}
        code = compile(
            "class Reloaded(Hook):\n @on(Placed)\n def handle(self, event):\n  seen.append(event.number)",
            "reloaded.py",
            "exec",
        )

        def work(sender):
            for _ in range(20):
                exec(code, dict(scope))
                Placed.emit(number=-1)

        with capture(HandlerFailedEvent) as recorder:
            at_once(work)
        assert [] == recorder.events
        assert ["live"] == [info.state for info in hooks() if info.name == "Reloaded"]
        scope["seen"].clear()
        Placed.emit(number=1)
        assert [1] == scope["seen"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_forking_while_threads_emit():
    """Parent and children go on: a child has all of its own, and the parent all of its own, once."""
    done = runs_well(
        """
        warnings.simplefilter("ignore", DeprecationWarning)
        sys.setswitchinterval(1e-5)
        EventLogger.unregister()
        signal.alarm(40)
        over, seen, later = threading.Event(), [], []
        Event.subscribe(lambda event: seen.append((event.sender, event.number)))
        @Placed.subscribe
        async def handler(event):
            await asyncio.sleep(0)
            later.append((event.sender, event.number))
        sent = [0, 0, 0, 0]
        def emit(sender):
            with correlation(f"run-{sender}"):
                while not over.is_set():
                    with Placed.subscribe(lambda event: None):
                        Placed.emit(sender=sender, number=sent[sender])
                    sent[sender] += 1
        threads = [threading.Thread(target=emit, args=(sender,)) for sender in range(4)]
        for thread in threads:
            thread.start()
        children = []
        for number in range(20):
            child = os.fork()
            if not child:
                signal.alarm(20)
                seen.clear()
                later.clear()
                for again in range(10):
                    with Placed.subscribe(lambda event: None):
                        Placed.emit(sender=9, number=again, correlation_id="child")
                left = drain(20)
                os._exit(0 if not left and seen == later == [(9, n) for n in range(10)] else 1)
            children.append(child)
        over.set()
        for thread in threads:
            thread.join()
        print(*(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children))
        assert 0 == drain(20)
        everything = [(sender, number) for sender in range(4) for number in range(sent[sender])]
        assert everything == sorted(seen, key=lambda pair: pair[0]), "sync"
        assert everything == sorted(later, key=lambda pair: pair[0]), "async"
        """
    )
    assert " ".join(["0"] * 20) == done.stdout.strip()
    assert "" == done.stderr


@pytest.mark.parametrize(
    "defines",
    [
        "async def handle(event): ...\nPlaced.subscribe(handle)",
        "class Caller:\n async def __call__(self, event): ...\nPlaced.subscribe(Caller())",
        "class Late(Hook):\n @on(Placed)\n async def handle(self, event): ...",
    ],
)
def test_what_registers_with_fork_is_there_before_the_first_event(defines, tmp_path):
    """Else a fork of another thread at that event would undo what it has not done, and say so on stderr."""
    done = runs_well(
        f"""
        module = "concurrent.futures.thread"
        assert module not in sys.modules
        exec({defines!r})
        assert module in sys.modules
        registered = []
        os.register_at_fork = lambda **functions: registered.append(functions)
        from eventbus import trace
        trace.start("traces.db")
        Placed.emit(number=1)
        assert 0 == drain(20)
        trace.stop()
        assert [] == registered
        """,
        cwd=tmp_path,
    )
    assert "" == done.stderr


def open_files():
    """Return how many descriptors this process has open."""
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="needs /proc to count descriptors")
@pytest.mark.parametrize("drains", [True, False])
def test_a_hundred_loops_leave_nothing(drains):
    """No thread, descriptor, task or pending delivery; and everything is delivered, or counted as lost."""
    seen = []

    @Placed.subscribe
    async def handler(event):
        await asyncio.sleep(0)
        seen.append(event.number)

    async def main(number):
        for _ in range(5):
            Placed.emit(number=number)
            await Placed.aemit(number=number)
        if drains:
            await adrain(PATIENCE)

    def rounds():
        for number in range(100):
            asyncio.run(main(number))

    asyncio.run(main(-1))
    drain(PATIENCE)
    gc.collect()
    seen.clear()
    before = threading.active_count(), open_files()
    with capture(HandlerFailedEvent) as recorder:
        rounds()
        assert 0 == drain(PATIENCE)
    gc.collect()
    assert before == (threading.active_count(), open_files())
    assert 1000 == len(seen) + len(recorder)
    assert 500 <= len(seen)
    assert drains <= (len(recorder) == 0)
    assert 0 == stats()["pending"]
    # Not isinstance, which asks the objects themselves: other tests keep some that raise.
    assert [] == [
        each for each in gc.get_objects() if issubclass(type(each), asyncio.Task) and not each.done()
    ]


class TestInterruptions:
    """What a signal handler or a finalizer does, at whatever line of the bus it comes."""

    SCENARIO = """
        import eventbus
        faulthandler.dump_traceback_later(40, exit=True)
        EventLogger.unregister()
        PACKAGE = os.path.dirname(eventbus.__file__)
        seen, later, inside = [], [], []
        Event.subscribe(lambda event: seen.append(event.get("number")))
        @Placed.subscribe
        async def handler(event):
            later.append(event.number)

        class Counting(Hook):
            stateful = True
            @on(Placed)
            def handle(self, event):
                pass

        def interrupt():
            # What a signal handler or a finalizer may do: all of it takes the bus's locks.
            Placed.emit(number=2, correlation_id="run")
            Placed.subscribe(inside.append).cancel()
            stats()

        def work():
            with Placed.subscribe(inside.append):
                Placed.emit(number=1, correlation_id="run")
            with correlation("run"), Run("sundae"):
                pass
            Placed.subscribe(inside.append, correlation_id="other").cancel()
            drain(10)
    """

    def test_at_every_line(self):
        """
        A scenario is run as often as it has lines in the package, and interrupted at another one each time:
        everything is delivered once, and nothing waits for a lock that the interrupted code holds.
        """
        done = runs_well(
            self.SCENARIO
            + """
        def interrupted(at):
            lines = 0
            def trace(frame, what, argument):
                nonlocal lines
                if not frame.f_code.co_filename.startswith((PACKAGE, "<eventbus")):
                    return None
                if what == "line":
                    lines += 1
                    if lines == at:
                        sys.settrace(None)
                        interrupt()
                return trace
            sys.settrace(trace)
            try:
                work()
            finally:
                sys.settrace(None)
            drain(10)
            return lines >= at

        work()
        at = 0
        while True:
            at += 1
            for each in (seen, later, inside):
                each.clear()
            if not interrupted(at):
                break
            assert (1, 1, 1, 1) == tuple(w.count(n) for w in (seen, later) for n in (1, 2)), (at, seen, later)
            assert [] == [e for e in inside if e.number not in (1, 2)], (at, inside)
        assert 0 == stats()["failures"] == stats()["pending"]
        print(at > 500)
        """
        )
        assert ("True\n", "") == (done.stdout, done.stderr)

    @pytest.mark.skipif(not hasattr(os, "kill"), reason="needs signals")
    def test_by_signals(self):
        """A hundred and fifty real ones, as fast as they are handled."""
        done = runs_well(
            self.SCENARIO
            + """
        handled = 0
        def on_signal(number, frame):
            global handled
            interrupt()
            handled += 1
        signal.signal(signal.SIGUSR1, on_signal)
        over = threading.Event()
        def send():
            sent = 0
            while sent < 150:
                if handled == sent:
                    sent += 1
                    os.kill(os.getpid(), signal.SIGUSR1)
            over.set()
        sender = threading.Thread(target=send)
        sys.setswitchinterval(1e-5)
        sender.start()
        rounds = 0
        while not over.is_set() or handled < 150:
            work()
            rounds += 1
        sender.join()
        assert 0 == drain(10)
        assert (rounds, 150) == (seen.count(1), seen.count(2))
        assert (rounds, 150) == (later.count(1), later.count(2))
        assert 0 == stats()["failures"]
        """
        )
        assert "" == done.stderr


class TestExit:
    """The end of the interpreter, whoever still emits."""

    def test_from_everywhere(self):
        """
        Exit functions, finalizers, threads, objects that die with their module: plain handlers get it, async
        ones until the threads end; what these do not get is told, and the status is 0.
        """
        done = runs_well(
            """
            class Dying:
                # The module's names may be gone by then.
                def __init__(self, event_class, name):
                    self.emit, self.name = event_class.emit, name
                def __del__(self):
                    self.emit(sender=7)
            class Finished(Placed, channel="finished"):
                ends_run = True
            seen = []
            Placed.subscribe(lambda event: seen.append(event.sender), when=lambda event: event.sender)
            async def handler(event):
                seen.append(-event.sender)
            Placed.subscribe(handler, when=lambda event: event.sender)
            @atexit.register
            def told():
                assert {1, 2, 3, 5, -1} <= set(seen), seen
                print("told", flush=True)
            atexit.register(Placed.emit, sender=2)
            weakref.finalize(Placed, Placed.emit, sender=3)
            kept = Dying(Placed, "kept")
            cycle = Dying(Placed, "cycle")
            cycle.itself = cycle
            def emit_for_ever():
                while True:
                    Finished.emit()
            # The interpreter stops it wherever it is.
            threading.Thread(target=emit_for_ever, daemon=True).start()
            threading.Thread(target=lambda: Placed.emit(sender=5)).start()
            Placed.emit(sender=1)
            drain(10)
            InferenceStartedEvent.emit(agent="sundae")
            """
        )
        assert "told\n" == done.stdout
        told = [line.split(" ", 2)[2] for line in done.stderr.splitlines()]
        assert "INF START agent=sundae" == told[0]
        late = "HOOK FAIL handler on=Placed LoopClosedError: The interpreter is exiting: "
        assert [late] * len(told[1:]) == [line[: len(late)] for line in told[1:]]

    @pytest.mark.parametrize("last", ["sys.exit()", "os.kill(os.getpid(), signal.SIGINT)", "1 / 0"])
    def test_with_a_run_open(self, last):
        """Its terminal is told, and an async handler of it runs, however the program ends."""
        done = logged.run(
            textwrap.dedent(
                f"""
                import os, signal, sys
                from eventbus import *
                @InferenceFailedEvent.subscribe
                async def handler(event):
                    print(type(event.error).__name__, flush=True)
                with Run("sundae"):
                    {last}
                """
            )
        )
        expected = {"s": ("SystemExit", 0), "o": ("KeyboardInterrupt", -2), "1": ("ZeroDivisionError", 1)}
        assert expected[last[0]] == (done.stdout.strip(), done.returncode)
        assert 1 == len([line for line in done.stderr.splitlines() if " INF FAIL " in line])


@pytest.mark.exhausts_stack
class TestRecursion:
    """Near the recursion limit."""

    @pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")
    def test_nothing_stays_locked(self):
        """Wherever the stack runs out, the next emit of any thread goes through, sync, stateful and async."""
        seen, later = [], []

        class Counting(Hook):
            stateful = True

            @on(Placed)
            def handle(self, event):
                seen.append(event.number)

        @Placed.subscribe
        async def handler(event):
            later.append(event.number)

        def below(frames, number):
            if frames:
                return below(frames - 1, number)
            try:
                return Placed.emit(number=number, correlation_id="run")
            finally:
                Placed.subscribe(print).cancel()

        Placed.emit(number=-1, correlation_id="run")
        depth = sys.getrecursionlimit() - len(list(frames_here()))
        configure(lock_timeout=0.5)
        for left in range(1, 80):
            with contextlib.suppress(RecursionError):
                below(depth - left, left)
            thread = threading.Thread(
                target=Placed.emit, kwargs={"number": 1000 + left, "correlation_id": "run"}
            )
            thread.start()
            thread.join(PATIENCE)
            assert not thread.is_alive()
        assert 0 == drain(PATIENCE)
        expected = [1000 + left for left in range(1, 80)]
        assert expected == [number for number in seen if number > 1000]
        assert expected == [number for number in later if number > 1000]

    def test_what_has_no_room_is_not_pending(self, monkeypatch):
        """A delivery that a loop might not hear of for want of stack is a failure, and nothing is kept."""

        @Placed.subscribe
        async def handler(event):
            raise NotImplementedError

        monkeypatch.setattr("eventbus._scheduler.NEEDED_FRAMES", 1_000_000)
        with capture(HandlerFailedEvent) as recorder:
            Placed.emit(correlation_id="run")
        assert [RecursionError] == [type(event.error) for event in recorder]
        assert 0 == stats()["pending"]


def frames_here():
    """Yield the frames that are on the stack."""
    frame = sys._getframe(1)
    while frame is not None:
        yield frame
        frame = frame.f_back


class TestWithoutStderr:
    """No output is worth a run."""

    PROGRAM = """
        {before}
        Placed.subscribe(lambda event: 1 / 0)
        @Placed.subscribe
        async def fails(event):
            raise KeyError
        def emit(sender):
            for number in range(20):
                Placed.emit(sender=sender, number=number)
        threads = [threading.Thread(target=emit, args=(sender,)) for sender in range(4)]
        for thread in threads:
            thread.start()
        with Run("sundae") as run:
            for call, result in run.call_tools([ToolCall("1", "tool", {{}})], {{"tool": lambda: 1 / 0}}):
                run.complete(str(result.error))
        for thread in threads:
            thread.join()
        drain(10)
        print(run.result, stats()["failures"], stats()["log_dropped"] > 4, flush=True)
    """

    @pytest.mark.parametrize("output", ["stderr", "json"])
    @pytest.mark.parametrize(
        "before",
        [
            "os.close(2)",
            "sys.stderr.close()",
            "sys.stderr = None",
            "os.dup2(os.open('/dev/full', os.O_WRONLY), 2)",
        ],
    )
    def test_the_run_goes_on(self, before, output):
        """Threads, async handlers and failures included; and the status is 0."""
        if "/dev/full" in before and not os.path.exists("/dev/full"):
            pytest.skip("needs /dev/full")
        done = runs_well(self.PROGRAM.format(before=before), env={"EVENTBUS_LOG": output})
        assert done.stdout.startswith("division by zero 160 ")
