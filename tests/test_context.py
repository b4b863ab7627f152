"""
Correlation ids, scopes, and carrying a context to where none would be.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import inspect
import os
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eventbus import (
    Event,
    carry_context,
    correlation,
    current_correlation_id,
    drain,
    is_replaying,
    new_correlation_id,
)
from eventbus._context import new_span_id, replaying, running_loop, scope_loop, scope_var
from eventbus.testing import capture


class Happened(Event):
    n: int = 0


class TestIds:
    """What an id looks like."""

    def test_thirty_two_hex_digits(self):
        """An id is 32 lowercase hex digits, valid as a W3C trace id, and new each time."""
        ids = {new_correlation_id() for _ in range(1000)}
        assert 1000 == len(ids)
        assert all(32 == len(cid) and set(cid) <= set("0123456789abcdef") for cid in ids)
        assert "0" * 32 not in ids

    def test_span_ids(self):
        """They are 16 of these digits."""
        assert 16 == len(new_span_id())
        assert int(new_span_id(), 16)

    @pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
    def test_a_forked_child_has_its_own(self):
        """After a fork, parent and child do not make the same ids."""
        read, write = os.pipe()
        # So that some are ready.
        new_correlation_id()
        pid = os.fork()
        if pid == 0:
            os.write(write, new_correlation_id().encode())
            os._exit(0)
        os.waitpid(pid, 0)
        assert os.read(read, 32).decode() != new_correlation_id()
        os.close(read)
        os.close(write)


class TestScopes:
    """`with correlation(...)`."""

    def test_it_sets_the_id(self):
        """What is given is the id inside, and what `as` gives."""
        with correlation("run") as cid:
            assert "run" == cid == current_correlation_id()
        assert current_correlation_id() is None

    def test_without_an_id_it_is_a_new_one(self):
        """Each scope has its own."""
        with correlation() as one:
            assert one == current_correlation_id()
        with correlation() as two:
            assert 32 == len(two)
        assert one != two

    def test_events_inside_carry_it(self):
        """On this thread and on the tasks it starts, and not on another thread."""

        async def emit():
            Happened.emit(n=2)

        async def main():
            await asyncio.create_task(emit())

        with capture(Happened) as recorder:
            with correlation("run"):
                Happened.emit(n=1)
                asyncio.run(main())
                thread = threading.Thread(target=Happened.emit, kwargs={"n": 3})
                thread.start()
                thread.join()
            Happened.emit(n=4)
        assert ["run", "run", None, None] == [event.correlation_id for event in recorder]

    @pytest.mark.parametrize("arguments", [{"cid": 1}, {"parent": 2}])
    def test_ids_are_texts(self, arguments):
        """Anything else is a TypeError that names the argument and the fix."""
        ((name, value),) = arguments.items()
        with pytest.raises(
            TypeError, match=rf"^`{name}` must be a str or None, not {value}; pass str\({name}\)\.$"
        ):
            correlation(**arguments)

    def test_the_parent_is_the_enclosing_id(self):
        """Unless another is given; a scope used again asks again."""
        lone, nested, given_ = correlation("a"), correlation("b"), correlation("c", parent="x")
        with lone:
            assert lone.parent is None
            with nested, given_:
                assert ("a", "x") == (nested.parent, given_.parent)
        with correlation("z"), nested, given_:
            assert ("z", "x") == (nested.parent, given_.parent)

    @given(depth=st.integers(1, 8), fails=st.integers(0, 8))
    def test_scopes_nest_and_restore(self, depth, fails):
        """Leaving a scope, also by an exception, restores what was before."""

        def enter(level):
            if level == fails:
                raise ZeroDivisionError
            if level < depth:
                with correlation(f"{level}"):
                    try:
                        enter(level + 1)
                    finally:
                        assert f"{level}" == current_correlation_id()

        try:
            enter(0)
        except ZeroDivisionError:
            assert fails <= depth
        assert current_correlation_id() is None

    def test_a_scope_is_for_one_use_at_a_time(self):
        """Entering it while it is open is an error that says what to do; afterwards it can be used again."""
        scope = correlation("run")
        with scope:
            with pytest.raises(
                RuntimeError, match=r"^The correlation scope 'run' is open already; make another"
            ):
                scope.__enter__()
            assert "run" == current_correlation_id()
        with scope as cid:
            assert "run" == cid

    @pytest.mark.parametrize("order", [(0, 1, 2), (0, 2, 1), (1, 0, 2), (1, 2, 0), (2, 0, 1), (2, 1, 0)])
    def test_scopes_closed_out_of_order(self, order):
        """When the last of them is closed, nothing of them is left."""
        scopes = [correlation(f"{n}") for n in range(3)]
        with correlation("outer"):
            for scope in scopes:
                scope.__enter__()
            for n in order:
                scopes[n].__exit__(None, None, None)
            assert "outer" == current_correlation_id()

    def test_leaving_the_scope_around_one_closed_elsewhere(self):
        """A scope left behind by a close from another context is over when the one around it is left."""

        def generator():
            with correlation("generator"):
                yield

        running = generator()
        with correlation("mine"):
            next(running)
            thread = threading.Thread(target=running.close)
            thread.start()
            thread.join()
        assert current_correlation_id() is None

    def test_closing_from_another_context(self):
        """A generator that is closed by another thread raises nothing and changes nothing there."""

        def generator():
            with correlation("generator"):
                yield

        running = generator()
        with correlation("mine"):
            next(running)
            ids = []

            def close():
                with correlation("thread"):
                    running.close()
                    ids.append(current_correlation_id())
                ids.append(current_correlation_id())

            thread = threading.Thread(target=close)
            thread.start()
            thread.join()
            assert ["thread", None] == ids
            with correlation("next"):
                assert "mine" == scope_var.get().parent
            assert "mine" == current_correlation_id()
        assert current_correlation_id() is None

    def test_a_suspended_generator_is_closed_after_its_caller_left(self):
        """A scope that outlives the one around it leaves nothing behind either."""

        def generator():
            with correlation("generator"):
                yield

        running = generator()
        with correlation("mine"):
            next(running)
        running.close()
        assert current_correlation_id() is None

    def test_a_task_that_outlives_the_scope_it_was_started_in(self):
        """It stays in its run, also after scopes of its own."""
        ids = []

        async def background(go):
            await go.wait()
            with correlation("nested"):
                ids.append(scope_var.get().parent)
            ids.append(current_correlation_id())

        async def main():
            go = asyncio.Event()
            with correlation("run"):
                task = asyncio.create_task(background(go))
                await asyncio.sleep(0)
            go.set()
            await task

        asyncio.run(main())
        assert ["run", "run"] == ids


class TestLoops:
    """Which loop a scope was opened on."""

    def test_the_scope_knows_its_loop_while_it_runs(self):
        """A thread with the scope's context finds the loop; when it has ended, there is none."""
        assert running_loop() is None
        assert scope_loop() is None

        async def main():
            with correlation("run"):
                found = await asyncio.to_thread(nested)
                return found, asyncio.get_running_loop(), contextvars.copy_context()

        def nested():
            with correlation("inner"):
                return scope_loop()

        found, loop, context = asyncio.run(main())
        assert loop is found
        assert context.run(scope_loop) is None
        with correlation("no loop"):
            assert scope_loop() is None


class TestCarryContext:
    """Running a function elsewhere with the caller's context."""

    def test_a_plain_thread(self):
        """The thread has the id of where carry_context was called."""
        ids = []
        with correlation("run"):
            thread = threading.Thread(target=carry_context(lambda: ids.append(current_correlation_id())))
        thread.start()
        thread.join()
        assert ["run"] == ids

    def test_an_executor_many_times_at_once(self):
        """Calls may overlap, and what one sets the others do not see."""
        barrier = threading.Barrier(4)

        def work(n):
            with correlation(f"{n}"):
                barrier.wait(10)
                return current_correlation_id()

        with correlation("run"):
            carried = carry_context(work)
        with ThreadPoolExecutor(4) as pool:
            assert ["0", "1", "2", "3"] == list(pool.map(carried, range(4)))
            assert "run" == pool.submit(carried.__wrapped__ and carry_in("run")).result()

    def test_arguments_result_and_errors_pass_through(self):
        """As does the signature, name and docstring."""

        def divide(a: int, b: int = 1) -> float:
            """Divide."""
            return a / b

        carried = carry_context(divide)
        assert 2.0 == carried(4, b=2)
        with pytest.raises(ZeroDivisionError):
            carried(1, 0)
        assert inspect.signature(divide) == inspect.signature(carried)
        assert ("divide", "Divide.") == (carried.__name__, carried.__doc__)

    def test_async_functions_of_any_kind(self):
        """The body runs with the carried context, on the loop that awaits it."""

        async def work():
            await asyncio.sleep(0)
            return current_correlation_id()

        class Work:
            async def __call__(self):
                return await work()

        with correlation("run"):
            carried = [carry_context(fn) for fn in (work, functools.partial(work), Work())]

        async def main():
            with correlation("other"):
                return [await fn() for fn in carried]

        assert ["run"] * 3 == asyncio.run(main())

    def test_handlers_of_a_carried_emit(self):
        """A handler sees the emitter's context variables, on whatever thread it runs."""
        variable, seen = contextvars.ContextVar("variable", default="none"), []

        @Happened.subscribe
        async def later(event):
            seen.append((variable.get(), current_correlation_id()))

        def emit():
            Happened.emit()
            drain(10)

        variable.set("set")
        with correlation("run"):
            thread = threading.Thread(target=carry_context(emit))
        thread.start()
        thread.join()
        assert [("set", "run")] == seen


def carry_in(cid):
    """Carry a look at the id, out of a scope."""
    with correlation(cid):
        return carry_context(current_correlation_id)


def test_is_replaying():
    """It is true inside, also in a thread with the context, and false again after an error."""
    assert not is_replaying()
    with pytest.raises(ZeroDivisionError), replaying():
        assert is_replaying()
        with replaying():
            pass
        assert is_replaying()
        raise ZeroDivisionError
    assert not is_replaying()


def test_a_generator_cannot_be_carried():
    """Its body would run in the context of whoever iterates it, so the mistake is told at once."""

    def generator():
        yield

    async def async_generator():
        yield

    for fn in (generator, async_generator):
        with pytest.raises(TypeError, match=r"carry_context cannot carry .*generator"):
            carry_context(fn)
