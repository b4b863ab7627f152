"""
The program runs as a module, and says what to install where the extra is missing.
"""

from __future__ import annotations

import subprocess
import sys

import pytest
import recordings

from eventbus.__main__ import main

WITHOUT = """
import sys
sys.modules[{missing!r}] = None
sys.argv = ["eventbus", "events"]
{run}
"""
RUN_AS_MODULE = "import runpy; runpy.run_module('eventbus', run_name='__main__', alter_sys=True)"


def python(*arguments, **options):
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=recordings.ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        **options,
    )


def test_it_runs_as_a_module():
    """`python -m eventbus` is the program `eventbus`."""
    done = python("-m", "eventbus", "--help")
    assert 0 == done.returncode
    assert done.stdout.startswith("Usage: eventbus ")


def test_main_runs_the_command_line(monkeypatch, capsys):
    """The console script calls `main`, which exits with the command's status."""
    monkeypatch.setattr(sys, "argv", ["eventbus", "nosuch"])
    with pytest.raises(SystemExit) as caught:
        main()
    assert 2 == caught.value.code
    assert "No such command 'nosuch'" in capsys.readouterr().err


@pytest.mark.parametrize("missing", ["click", "rich"])
@pytest.mark.parametrize("run", [RUN_AS_MODULE, "from eventbus.__main__ import main; main()"])
def test_without_the_extra_one_sentence_says_what_to_install(missing, run):
    """It goes to stderr, without a traceback, and the exit status is 1."""
    done = python("-c", WITHOUT.format(missing=missing, run=run))
    assert (
        1,
        "",
        "eventbus: the command line needs click and rich; install them with: pip install 'eventbus[cli]'\n",
    ) == (done.returncode, done.stdout, done.stderr)


def test_the_module_of_the_commands_names_the_extra():
    """Importing it without the extra is an ImportError that says what to install."""
    done = python("-c", "import sys; sys.modules['rich'] = None; import eventbus.cli")
    assert 1 == done.returncode
    assert done.stderr.rstrip().endswith("pip install 'eventbus[cli]'")


def test_another_missing_module_is_an_error_as_ever():
    """Only the extra's own modules are answered with the sentence."""
    done = python(
        "-c",
        "import sys; sys.modules['eventbus._show'] = None\nfrom eventbus.__main__ import main\nmain()",
    )
    assert 1 == done.returncode
    assert done.stderr.startswith("Traceback")


def test_importing_the_package_imports_no_command_line():
    """`import eventbus` imports neither click nor anything of the commands."""
    names = {
        "click",
        "eventbus.cli",
        "eventbus._show",
        "eventbus._load",
        "eventbus._replay",
        "eventbus._records",
    }
    done = python("-c", f"import sys, eventbus; print({names!r} & set(sys.modules))")
    assert "set()\n" == done.stdout
