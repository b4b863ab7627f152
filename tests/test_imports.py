"""
What importing the package does, and what each of its modules may import.
"""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

import eventbus

PACKAGE = Path(eventbus.__file__).parent

OTHERS = {
    "_registry": {"blinker"},
    "_emitter": {"attrs"},
    "_event": {"attrs"},
    "_gate": {"attrs"},
    "_hook": {"attrs"},
    "_order": {"attrs"},
    "_records": {"attrs"},
    "_replay": {"attrs"},
    "_retention": {"attrs"},
    "_pieces": {"attrs"},
    "_run": {"attrs"},
    "_frames": {"attrs"},
    "_lines": {"attrs"},
    "_load": {"attrs"},
    "_plain": {"attrs"},
    "catalog": {"attrs"},
    "gates": {"attrs"},
    "values": {"attrs"},
    "_sinks": {"structlog"},
    "_logger": {"structlog"},
    "_show": {"click", "rich"},
    "_timeline": {"attrs", "jinja2"},
    "_reader": {"attrs"},
    "_tree": {"attrs"},
    "_trace_show": {"attrs", "rich"},
    "_trace_commands": {"attrs", "click"},
    "cli": {"attrs", "click", "rich"},
    "otel": {"opentelemetry"},
    "pytest_plugin": {"pytest"},
    "_drive": {"attrs"},
    "_steering": {"attrs"},
    "_detectors": {"attrs"},
    "_texts": {"attrs"},
    "_guardrails": {"attrs"},
    "_inspection": {"attrs"},
}
"""What each module may import beside the standard library and its siblings; the rest of them nothing."""

PROBE = """
import asyncio, atexit, json, logging, signal, sys, threading, warnings
import attrs, blinker, structlog
before = set(sys.modules)
done = []

def told(name, original):
    def wrapper(*args, **kwargs):
        if name != "atexit.register" or sys._getframe(1).f_globals["__name__"].startswith("eventbus"):
            done.append(name)
        return original(*args, **kwargs)
    return wrapper

threading.Thread.start = told("thread", threading.Thread.start)
asyncio.new_event_loop = asyncio.events.new_event_loop = told("loop", asyncio.new_event_loop)
atexit.register = told("atexit.register", atexit.register)
structlog.configure = told("structlog.configure", structlog.configure)

def audit(name, args):
    if name == "open" and (set(args[1] or "") & set("wax+") or args[2] & 0o1103):
        done.append(f"open {args[0]}")
    if name.startswith(("socket.", "subprocess.", "sqlite3.", "shutil.", "tempfile.", "os.mkdir")):
        done.append(name)

sys.addaudithook(audit)

def state():
    return [
        threading.active_count(),
        [repr(handler) for handler in logging.root.handlers],
        logging.root.level,
        [name for name in logging.root.manager.loggerDict if name.startswith("eventbus")],
        structlog.is_configured(),
        [repr(item) for item in warnings.filters],
        [repr(hook) for hook in (sys.excepthook, sys.unraisablehook, threading.excepthook)],
        [repr(signal.getsignal(number)) for number in sorted(signal.valid_signals())],
    ]

was = state()
import eventbus
changed = [index for index, (a, b) in enumerate(zip(was, state())) if a != b]
new = sorted({name.partition(".")[0] for name in set(sys.modules) - before} - sys.stdlib_module_names)
print(json.dumps({"done": done, "changed": changed, "new": new, "events": eventbus.stats()["events"]}))
"""


def probe():
    """Import the package in a process of its own, and return what that did."""
    run = subprocess.run([sys.executable, "-B", "-c", PROBE], capture_output=True, text=True, check=True)
    assert "" == run.stderr
    return json.loads(run.stdout)


def test_importing_starts_nothing():
    """No thread, loop, file, `atexit`, logging or structlog configuration, and nothing on either output."""
    found = probe()
    assert [] == found["done"]
    assert [] == found["changed"]
    assert 0 == found["events"]


def test_importing_brings_its_dependencies_only():
    """blinker, attrs and structlog, and what these import; neither click nor rich of its own account."""
    assert ["eventbus"] == probe()["new"]


def imported(path):
    """Return the top-level names that a module imports, those of its siblings and for type checkers apart."""
    found = set()
    waiting = [ast.parse(path.read_text(encoding="utf-8"))]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        if isinstance(node, ast.ImportFrom) and not node.level:
            found.add(node.module.partition(".")[0])
        waiting += ast.iter_child_nodes(node)
    return found


@pytest.mark.parametrize("path", sorted(PACKAGE.glob("*.py")), ids=lambda path: path.stem)
def test_each_module_knows_what_it_needs(path):
    """The core knows neither the logger's library nor the command line's, and one module knows blinker."""
    assert imported(path) - sys.stdlib_module_names <= OTHERS.get(path.stem, set())


def test_siblings_are_imported_relatively():
    """A module of the package does not import the package."""
    assert [] == [path.name for path in PACKAGE.glob("*.py") if "eventbus" in imported(path)]


def test_the_public_names_are_sorted_and_there():
    """`__all__` is sorted, has no name twice, and every name in it exists."""
    names = eventbus.__all__
    assert sorted(set(names)) == names
    assert [] == [name for name in names if not hasattr(eventbus, name)]
