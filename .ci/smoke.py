"""
What must hold for an installed eventbus, whichever extras are there.

Run from a directory that has no checkout of the package in it: `python smoke.py [extra ...]`, with the extras
that are installed. Prints what it looked at; the exit status is 1 at the first thing that does not hold.
"""

import pkgutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import eventbus


def check(holds: bool, what: str, otherwise: str = "") -> None:
    """
    Say what was looked at, and stop if it does not hold.
    """
    print(f"{'ok' if holds else 'NOT SO'}: {what}", flush=True)
    if not holds:
        sys.exit(otherwise or 1)


def run(*arguments: str) -> "subprocess.CompletedProcess[str]":
    """
    Run this Python.
    """
    return subprocess.run(
        [sys.executable, "-P", *arguments], capture_output=True, text=True, timeout=120, check=False
    )


def check_runs_or_names_extra(what: str, *arguments: str) -> None:
    """
    Check that something runs, or else that its one complaint is an extra that is not installed.
    """
    done = run(*arguments)
    complaint = (done.stderr.strip().splitlines() or [""])[-1]
    if done.returncode and not sys.argv[1:] and "eventbus[" in complaint:
        check(True, f"{what} names its extra: {complaint}")
    else:
        check(done.returncode == 0, what, done.stderr)


def check_command_line(installed: bool) -> None:
    """
    Check that `python -m eventbus` works, or says in one line what to install.
    """
    done = run("-m", "eventbus", "events")
    if installed:
        check(done.returncode == 0, "`python -m eventbus events` works", done.stderr)
        check("eventbus.inference.started" in done.stdout, "and lists the catalog", done.stdout)
        return
    check(done.returncode != 0, "`python -m eventbus` fails without the cli extra", done.stdout)
    said = (done.stdout + done.stderr).strip()
    one_line = len(said.splitlines()) == 1
    check(one_line and "eventbus[cli]" in said, "and says in one line what to install", said)


def main(extras: "list[str]") -> None:
    """
    Look at everything.
    """
    home = Path(eventbus.__file__).resolve()
    installed = Path(sysconfig.get_path("purelib")).resolve()
    check(installed in home.parents, f"eventbus is imported from {installed}", str(home))
    check((home.parent / "py.typed").is_file(), "the wheel has py.typed")
    absent = [name for name in eventbus.__all__ if not hasattr(eventbus, name)]
    check(not absent, "every name of __all__ is there", ", ".join(absent))
    for module in pkgutil.iter_modules(eventbus.__path__):
        if not module.name.startswith("_"):
            statement = f"import eventbus.{module.name}"
            check_runs_or_names_extra(statement, "-c", statement)
    check_command_line("cli" in extras)
    for example in sorted(Path("examples").glob("*.py")):
        check_runs_or_names_extra(str(example), str(example))


if __name__ == "__main__":
    main(sys.argv[1:])
