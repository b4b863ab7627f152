"""
Trace stores of several processes: forks, exits, kills, and many that write one file.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time

import pytest
import stored

from eventbus import trace

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")


@pytest.fixture
def path(tmp_path):
    """Return where the store is."""
    return tmp_path / "runs.db"


def test_forks_under_load(path):
    """Parent and children go on, with every event once and in order, though several threads fork at once."""
    code = """
trace.start(sys.argv[1])
stop = threading.Event()
sent = [0, 0]

def emit(index):
    while not stop.is_set():
        Counted.emit(who=f"t{index}", number=sent[index])
        sent[index] += 1
        time.sleep(0.0001)

threads = [threading.Thread(target=emit, args=(index,)) for index in range(2)]
for thread in threads:
    thread.start()
statuses = []

def fork(first):
    for child in range(first, first + 5):
        pid = os.fork()
        if not pid:
            for number in range(30):
                Counted.emit(who=f"c{child}", number=number)
            os._exit(0 if trace.flush(30) else 1)
        statuses.append(os.waitpid(pid, 0)[1])

forking = [threading.Thread(target=fork, args=(first,)) for first in (0, 5, 10)]
for thread in forking:
    thread.start()
for thread in forking:
    thread.join()
stop.set()
for thread in threads:
    thread.join()
trace.stop()
print(json.dumps([statuses, sent, stats()["store_dropped"]]))
"""
    status, out, err = stored.run("import json\n" + code, path)

    assert (0, "") == (status, err)
    statuses, sent, dropped = json.loads(out)
    assert [0] * 15 == statuses
    assert 0 == dropped
    for index, count in enumerate(sent):
        assert list(range(count)) == stored.numbers(path, f"t{index}")
    for child in range(15):
        assert list(range(30)) == stored.numbers(path, f"c{child}")
    assert stored.is_sound(path)


def test_what_waits_at_a_fork_is_written_once(path):
    """A child that ends in the ordinary way writes its own events, and none of the parent's."""
    code = """
from eventbus import _stores
trace.start(sys.argv[1])
store = _stores.current().store
with store._database:
    Counted.emit(who="parent", number=1)
    pid = os.fork()
    Counted.emit(who="parent" if pid else "child", number=2)
if not pid:
    sys.exit(0)
assert os.waitpid(pid, 0)[1] == 0
"""
    assert (0, "", "") == stored.run(code, path)
    assert [1, 2] == stored.numbers(path, "parent")
    assert [2] == stored.numbers(path, "child")


ENDS = {
    "return": ("", 0),
    "sys.exit": ("sys.exit(3)", 3),
    "an error": ("raise ValueError('uncaught')", 1),
    "an interrupt": ("import signal; signal.raise_signal(signal.SIGINT); time.sleep(60)", -signal.SIGINT),
    "a thread that goes on": (
        "threading.Thread(target=lambda: (time.sleep(0.1), Counted.emit(number=1000))).start()",
        0,
    ),
}


@pytest.mark.parametrize(("end", "status"), ENDS.values(), ids=ENDS.keys())
def test_an_exit_writes_what_waits(path, end, status):
    """However the program ends, everything that it has emitted is in the file."""
    code = "trace.start(sys.argv[1])\nfor number in range(100): Counted.emit(number=number)\n"

    found, out, _ = stored.run(code + end, path)

    assert (status, "") == (found, out)
    assert list(range(101 if "1000" in end else 100)) == [min(n, 100) for n in stored.numbers(path)]
    assert stored.is_sound(path)
    assert ["runs.db"] == os.listdir(path.parent)


def test_an_exit_with_a_store_of_the_environment(path):
    """It needs no end of its own."""
    code = "for number in range(10): Counted.emit(number=number)"

    assert (0, "", "") == stored.run(code, env={"EVENTBUS_TRACE": str(path)})
    assert list(range(10)) == stored.numbers(path)


def test_a_store_costs_nothing_until_there_is_one(path):
    """In a process that has none nobody listens for one, so nothing is built."""
    code = """
def built():
    before = stats()["events"]
    Counted.emit()
    return Counted.has_receivers(), InferenceGeneratedEvent.has_receivers(), stats()["events"] - before

print(*built())
trace.start(sys.argv[1])
print(*built())
"""
    assert (0, "False False 0\nTrue True 1\n", "") == stored.run(code, path)


def test_importing_opens_nothing(path):
    """Without an event there is no file, and nothing is loaded that works on the database."""
    code = (
        "import sys, eventbus; print(sorted(sys.modules.keys() & {'eventbus._schema', 'eventbus._writer'}))"
    )
    environment = {**os.environ, "EVENTBUS_TRACE": str(path)}

    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)

    assert ("[]\n", "") == (done.stdout, done.stderr)
    assert not path.exists()


def test_emitting_while_the_process_ends(path):
    """After the store's own end, events are counted, and nothing is raised."""
    code = """
import atexit

def late():
    before = stats()["store_dropped"]
    Counted.emit(number=2)
    print(trace.flush(), stats()["store_dropped"] - before, flush=True)

import weakref
class Last: pass
last = Last()
weakref.finalize(last, late)
trace.start(sys.argv[1])
Counted.emit(number=1)
"""
    assert (0, "True 1\n", "") == stored.run(code, path)
    assert [1] == stored.numbers(path)


def test_an_exit_is_not_held_up(path):
    """A lock that is never let go costs the exit some seconds at most."""
    code = """
import sqlite3
from eventbus import _writer
trace.start(sys.argv[1])
other = sqlite3.connect(sys.argv[1], isolation_level=None)
other.execute("BEGIN IMMEDIATE")
Counted.emit(number=1)
assert (5.0,) == _writer.Store.close.__defaults__
_writer.Store.close.__defaults__ = (0.2,)
"""
    assert (0, "", "") == stored.run(code, path)
    assert [] == stored.numbers(path)


CHILDREN = """
import multiprocessing

def work(who):
    for number in range(20):
        Counted.emit(who=who, number=number)

def keep(who):
    work(who)
    trace.stop()

if __name__ == "__main__":
    if sys.argv[3] == "start":
        trace.start(sys.argv[2])
    Counted.emit(who="parent", number=0)
    context = multiprocessing.get_context(sys.argv[1])
    children = [context.Process(target=work, args=("c0",)), context.Process(target=keep, args=("c1",))]
    for child in children:
        child.start()
    for child in children:
        child.join()
    assert [0, 0] == [child.exitcode for child in children]
    Counted.emit(who="parent", number=1)
"""


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_children_of_multiprocessing(tmp_path, path, method):
    """They end without exit functions, and their events are written all the same."""
    how = "start" if method == "fork" else "environment"
    environment = {key: value for key, value in os.environ.items() if not key.startswith("EVENTBUS_")}
    if how == "environment":
        environment["EVENTBUS_TRACE"] = str(path)
    program = stored.program(tmp_path, CHILDREN)

    subprocess.run([sys.executable, program, method, path, how], env=environment, check=True, timeout=60)

    assert [0, 1] == stored.numbers(path, "parent")
    for index in range(2):
        assert list(range(20)) == stored.numbers(path, f"c{index}")
    assert stored.is_sound(path)


@pytest.mark.parametrize("durability", ["batched", "sync"])
def test_a_kill_leaves_a_prefix(tmp_path, durability):
    """What survives is a prefix, and the file is sound; with "sync" nothing that was emitted is lost."""
    code = """
trace.start(sys.argv[1], sys.argv[2])
number = 0
while True:
    Counted.emit(number=number, at=time.monotonic())
    number += 1
    os.write(1, b"%d\\n" % number)
    if sys.argv[2] == "batched":
        time.sleep(0.0002)
"""
    for attempt in range(2):
        path = tmp_path / f"{attempt}.db"
        process = stored.start(code, path, durability)
        emitted = 0
        for line in process.stdout:
            emitted = int(line)
            if emitted == 20 + 67 * attempt:
                process.kill()
        process.wait()
        process.stdout.close()
        process.stderr.close()
        kept = stored.numbers(path)
        assert list(range(len(kept))) == kept
        assert stored.is_sound(path)
        if durability == "sync":
            assert emitted <= len(kept) <= emitted + 1
    trace.start(path)
    stored.Counted.emit(number=-1)
    trace.stop()
    assert [*kept, -1] == stored.numbers(path)


def test_four_processes_write_and_one_reads(path):
    """No "database is locked", and no loss."""
    code = """
configure(log="stderr")
trace.start(sys.argv[1])
for number in range(100):
    Counted.emit(who=sys.argv[2], number=number)
    if number % 40 == 0:
        time.sleep(0.002)
trace.stop()
assert stats()["store_dropped"] == 0
"""
    writers = [stored.start(code, path, f"p{index}") for index in range(4)]
    seen = [0]
    while any(writer.poll() is None for writer in writers):
        time.sleep(0.05)
        if path.exists():
            found = stored.query(path, "SELECT count(*), max(seq) FROM events")[0]
            assert found[0] == (found[1] or 0) >= seen[-1]
            seen.append(found[0])

    assert [(0, "", "")] * 4 == [stored.finish(writer) for writer in writers]
    for index in range(4):
        assert list(range(100)) == stored.numbers(path, f"p{index}")
    assert stored.is_sound(path)


def test_a_file_deleted_under_two_processes(path):
    """Both notice, and go on in one new file."""
    code = """
from eventbus import *
trace.start(sys.argv[1])
for line in sys.stdin:
    Counted.emit(who=sys.argv[2], number=int(line))
    assert trace.flush(30)
    print("done", flush=True)
"""
    writers = [stored.start(code, path, who, stdin=subprocess.PIPE) for who in ("a", "b")]

    def send(number):
        for writer in writers:
            writer.stdin.write(f"{number}\n")
            writer.stdin.flush()
        for writer in writers:
            assert "done\n" == writer.stdout.readline()

    send(1)
    os.unlink(path)
    send(2)
    send(3)

    assert [(0, "", "")] * 2 == [stored.finish(writer) for writer in writers]
    assert [2, 3] == stored.numbers(path, "a")
    assert [2, 3] == stored.numbers(path, "b")
    assert stored.is_sound(path)


def test_a_limit_of_the_file_size(path):
    """Beyond it nothing can be written: the run goes on, drops are counted, the rest is written after it."""
    code = """
import resource
from eventbus import _writer
_writer.MAX_ROWS = 50
_writer.MAX_RETRY_SECONDS = _writer.RETRY_SECONDS
trace.start(sys.argv[1])
soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
for number in range(300):
    Counted.emit(who="x" * 1000, number=number)
    if number % 10 == 0:
        trace.flush(0.01)
assert stats()["store_dropped"] > 0
resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
assert trace.flush(30)
Counted.emit(number=-1)
trace.stop()
print(stats()["store_dropped"])
"""
    status, out, err = stored.run(code, path)

    assert (0, "") == (status, err)
    kept = stored.numbers(path, "x" * 1000)
    assert 300 == len(kept) + int(out)
    assert sorted(kept) == kept
    assert [-1] == stored.numbers(path)
    assert stored.is_sound(path)
    assert int(out) == stored.query(path, "SELECT sum(count) FROM losses")[0][0]


@pytest.mark.skipif(os.geteuid() != 0, reason="needs the right to become another user")
def test_a_directory_that_may_not_be_written(tmp_path, path):
    """The run goes on, it is said once, and the store catches up when it may."""
    code = """
from eventbus import _stores, _writer
configure(log="stderr")
os.setegid(65534), os.seteuid(65534)
_writer.MAX_RETRY_SECONDS = _writer.RETRY_SECONDS
trace.start(sys.argv[1])
Counted.emit(number=1)
assert not trace.flush(0.3)
with _stores.current().store._database:
    # Meanwhile the writer is not to make the file with these rights.
    os.seteuid(0)
    os.chmod(os.path.dirname(sys.argv[1]), 0o777)
    os.seteuid(65534)
assert trace.flush(30)
trace.stop()
os.seteuid(0)
"""
    directory = tmp_path / "closed"
    directory.mkdir(0o555)
    for place in (tmp_path, tmp_path.parent, tmp_path.parent.parent):
        place.chmod(0o755)

    status, out, err = stored.run(code, directory / "runs.db")

    assert (0, "") == (status, out), err
    assert ["TRACE FAIL", "TRACE OK"] == [" ".join(line.split()[2:4]) for line in err.splitlines()]
    assert "PermissionError" in err
    assert [1] == stored.numbers(directory / "runs.db")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_fork_in_the_middle_of_a_transaction(path):
    """The fork waits until the writer is between two, so that the child is given no half of one."""
    trace.start(path)
    stop = threading.Event()
    count = 0

    def emit():
        nonlocal count
        # No more than fit into the queue, however long the forks take.
        while not stop.is_set() and count < 50_000:
            stored.Counted.emit(number=count)
            count += 1

    thread = threading.Thread(target=emit)
    thread.start()
    statuses = []
    for _ in range(5):
        pid = os.fork()
        if not pid:
            os._exit(0)
        statuses.append(os.waitpid(pid, 0)[1])
    stop.set()
    thread.join()
    assert trace.flush(stored.PATIENCE)

    assert [0] * 5 == statuses
    assert list(range(count)) == stored.numbers(path)


def test_no_secret_is_in_any_file(tmp_path, path):
    """Not in the database, its log, its index, nor what was moved aside."""
    code = """
canary = sys.argv[2]
trace.start(sys.argv[1])

class Note(Event):
    value: object = None

def login(**arguments):
    raise RuntimeError(f"https://ada:{canary}@example.org/?access_token={canary} password={canary}")

with Run(agent="sundae", message={"text": f"my password: {canary}"}, metadata={"api_key": canary}) as run:
    call = ToolCall("c", "login", {"password": canary, "json": '{"token": "%s"}' % canary})
    run.call_tools([call], {"login": login})
    Note.emit(value={"nested": [{"secret": canary}]}, session_id=canary)
    try:
        login()
    except RuntimeError as error:
        Note.emit(value=error)
    run.complete(f"Bearer {canary}")
trace.flush()
print(len(os.listdir(os.path.dirname(sys.argv[1]))), flush=True)
os.kill(os.getpid(), 9)
"""
    canary = "hunter2canary"
    status, out, _ = stored.run(code, path, canary)

    assert (-9, "3\n") == (status, out)
    assert 6 == len(stored.rows(path))
    for file in tmp_path.iterdir():
        assert canary.encode() not in file.read_bytes()
