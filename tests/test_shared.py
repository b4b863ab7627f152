"""
Shared hooks: one instance per process, made at its first event.
"""

from __future__ import annotations

import os
import threading

import pytest

from eventbus import Event, HandlerFailedEvent, HandlerLockTimeoutError, Hook, drain, hooks, on
from eventbus.testing import capture, isolated


class Placed(Event):
    number: int = 0


class Shipped(Event):
    pass


def shared(body, **settings):
    """Define a shared hook with a constructor; return the list of the instances made."""
    made = []

    def __init__(self):
        made.append(self)
        body(self)

    def audit(self, event):
        self.seen = [*getattr(self, "seen", ()), event.number]

    type("Client", (Hook,), {"shared": True, "__init__": __init__, "audit": on(Placed)(audit), **settings})
    return made


def test_it_is_made_at_the_first_event():
    """No instance exists before the first event, and one for all events after."""
    made = shared(lambda self: None)
    assert [] == made
    for number in range(3):
        Placed.emit(number=number)
    (instance,) = made
    assert [0, 1, 2] == instance.seen


def test_all_handlers_share_it():
    """Every handler of the class works on the one instance."""
    seen = []

    class Client(Hook):
        shared = True

        @on(Placed)
        def first(self):
            seen.append(self)

        @on(Shipped)
        async def second(self):
            seen.append(self)

    Placed.emit()
    Shipped.emit()
    assert 0 == drain(10)
    assert seen[0] is seen[1]


def test_an_instance_that_is_false_is_an_instance():
    """A hook that is empty, as a container is, is made once as well."""
    made = shared(lambda self: None, __len__=lambda self: 0, __bool__=lambda self: False)
    Placed.emit()
    Placed.emit()
    assert 1 == len(made)


def test_eight_threads_make_one():
    """Threads that come while it is made wait for it."""
    started, go_on = threading.Event(), threading.Event()

    def slow(self):
        started.set()
        go_on.wait(10)

    made = shared(slow)
    threads = [threading.Thread(target=Placed.emit) for _ in range(8)]
    for thread in threads:
        thread.start()
    started.wait(10)
    go_on.set()
    for thread in threads:
        thread.join()
    (instance,) = made
    assert 8 == len(instance.seen)


def test_a_constructor_that_fails_is_tried_again():
    """Each event reports the failure until an instance can be made."""
    attempts = []

    def flaky(self):
        attempts.append(1)
        if len(attempts) < 3:
            raise ConnectionError

    made = shared(flaky)
    with capture(HandlerFailedEvent) as recorder:
        for number in range(4):
            Placed.emit(number=number)
    assert [ConnectionError] * 2 == [type(e.error) for e in recorder]
    assert [2, 3] == made[-1].seen


def test_a_constructor_that_emits_to_itself():
    """An event from the constructor that the hook handles is skipped and told, not waited for."""
    made = shared(lambda self: Placed.emit(number=9))
    with capture(HandlerFailedEvent) as recorder:
        Placed.emit(number=1)
    (failed,) = recorder
    assert "Client.audit was skipped for Placed, which Client.__init__ has emitted" in str(failed.error)
    assert [[1]] == [instance.seen for instance in made]


def test_a_constructor_that_does_not_end_in_time():
    """Another thread waits for the lock's timeout, and then skips the handler with an error that names it."""
    started, go_on = threading.Event(), threading.Event()

    def slow(self):
        started.set()
        go_on.wait(10)

    made = shared(slow, lock_timeout=0.01)
    first = threading.Thread(target=Placed.emit)
    first.start()
    started.wait(10)
    with capture(HandlerFailedEvent) as recorder:
        Placed.emit(number=2)
    go_on.set()
    first.join()
    (failed,) = recorder
    assert isinstance(failed.error, HandlerLockTimeoutError)
    assert "Client.audit was skipped for Placed: Client.__init__ has not ended within 0.01 s" in str(
        failed.error
    )
    assert [[0]] == [instance.seen for instance in made]


def test_handlers_run_at_once_on_several_threads():
    """A shared instance is not locked: two handlers can be inside at one time."""
    both = threading.Barrier(2, timeout=10)
    seen = []

    class Client(Hook):
        shared = True

        @on(Placed)
        def audit(self):
            both.wait()
            seen.append("met")

    threads = [threading.Thread(target=Placed.emit) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert ["met", "met"] == seen


def test_unregistering_drops_it():
    """A hook that comes back has a new instance; so has one let into isolation."""
    made = shared(lambda self: None)
    client = hooks().get("Client").cls
    Placed.emit()
    client.unregister()
    client.register()
    Placed.emit()
    assert 2 == len(made)
    with isolated():
        client.register()
        Placed.emit()
    Placed.emit()
    assert 3 == len(made)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_fork_while_another_thread_makes_it():
    """The child makes its own instance, and does not wait for a thread that stayed in the parent."""
    started, go_on = threading.Event(), threading.Event()
    parent = os.getpid()

    def slow(self):
        if os.getpid() == parent:
            started.set()
            go_on.wait(10)

    made = shared(slow, lock_timeout=5)
    first = threading.Thread(target=Placed.emit)
    first.start()
    started.wait(10)
    child = os.fork()
    if not child:
        Placed.emit(number=4)
        os._exit(0 if [4] == getattr(made[-1], "seen", None) else 1)
    go_on.set()
    first.join()
    assert 0 == os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert 1 == len(made)
