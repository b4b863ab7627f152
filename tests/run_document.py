"""
Runs the snippets of one document, as a reader would: one after another, in one fresh interpreter.

`python run_document.py FILE` writes a JSON list: for each Python, text and console block its line in the
document and what went wrong with it, or null. A `python` block runs as if it were the reader's `app.py`. A
`text` block right after it holds what that has written to stdout and stderr. A `console` block holds
commands after `$ ` and their output; those of eventbus and of Python are run, and compared if any output is
shown, but for the width of columns. Times, durations and generated ids differ from run to run and are
compared by their form; a line of `...` stands for any lines. A `python` block that begins with `# name.py` is
a file that the reader saves, that line included, in a folder of his own, where the commands after it are run.
"""

import _thread
import gc
import io
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from types import ModuleType
from typing import Any

from sybil import Document, Example
from sybil.parsers.markdown import CodeBlockParser

HERE = Path(__file__)
VARYING = [
    (re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z"), "<timestamp>"),
    (re.compile(r"\b[0-9a-f]{32}\b"), "<cid>"),
    (re.compile(r"\b[0-9.]+(?: (?:µs|ms|s)|s)\b|(?<= )[0-9]+\.[0-9]{3}(?= )"), "<duration>"),
    # The reader's program is not called by this one.
    (re.compile(rf" < {HERE.name}:\d+ in \w+"), ""),
]
FILE = re.compile(r"# (\w+\.py)\n")
COMMAND = re.compile(r"(?:[A-Z_]+=\S+ )*(?:eventbus|python|grep) ")


def normal(text: str) -> str:
    """
    Return a text without what differs from run to run.
    """
    for pattern, form in VARYING:
        text = pattern.sub(form, text)
    return "\n".join(line.rstrip() for line in text.strip().splitlines())


def differs(shown: str, real: str) -> str | None:
    """
    Tell how what a document shows differs from what was written.
    """
    lines = normal(shown).split("\n")
    pattern = "".join(r"(?:.*\n)*" if line == "..." else re.escape(line) + "\n" for line in lines)
    if re.fullmatch(pattern, normal(real) + "\n"):
        return None
    return f"the document shows\n\n{normal(shown)}\n\nbut it wrote\n\n{normal(real)}"


def narrow(text: str) -> str:
    """
    Return a text without the width of its columns, which depends on what else is in them.
    """
    return re.sub(r" {2,}", "  ", text)


class Reader:
    """
    Somebody who types in what the document says.

    Args:
        folder: An empty folder for what he saves.
    """

    def __init__(self, folder: Path) -> None:
        self.module = ModuleType("app")
        self.folder = folder
        self.written: str | None = None

    def python(self, example: Example) -> str | None:
        """
        Run a block of Python, or save it.
        """
        if (named := FILE.match(example.parsed)) is not None:
            (self.folder / named[1]).write_text(example.parsed, encoding="utf-8")
            return None
        written = io.StringIO()
        failure: list[str] = []
        done = threading.Event()
        # A finalizer that runs where a snippet has used the stack up would write into what it shows.
        gc.collect()
        gc.disable()

        def run() -> None:
            try:
                exec(code, self.module.__dict__)
            except BaseException:
                failure.append(traceback.format_exc())
            finally:
                done.set()

        with redirect_stdout(written), redirect_stderr(written):
            code = compile(example.parsed, "app.py", "exec")
            # A thread of its own has no callers, which would show up in the frames of an error.
            _thread.start_new_thread(run, ())
            if not done.wait(60):
                failure.append("it did not end within 60 seconds")
        self.written = written.getvalue()
        return "".join(failure) or None

    def text(self, example: Example) -> str | None:
        """
        Compare what the block before has written.
        """
        written, self.written = self.written, None
        return "no python block stands before it" if written is None else differs(example.parsed, written)

    def console(self, example: Example) -> str | None:
        """
        Run a session of commands.
        """
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
        for part in re.split(r"^\$ ", example.parsed, flags=re.MULTILINE)[1:]:
            command, _, shown = part.partition("\n")
            if COMMAND.match(command) is None:
                continue
            done = subprocess.run(
                command,
                shell=True,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=60,
                env={**os.environ, "PATH": path},
                cwd=self.folder if any(self.folder.iterdir()) else HERE.parent.parent,
            )
            problem = differs(narrow(shown), narrow(done.stdout)) if shown.strip() else None
            if problem or (done.returncode and not shown.strip()):
                return f"$ {command} (exit status {done.returncode}): {problem or done.stdout}"
        return None


def blocks(path: Path, reader: Reader | None) -> list[Example]:
    """
    Return the blocks of a document that are to be run, in order.
    """
    kinds: dict[str, Callable[[Example], str | None]] = {}
    if reader is not None:
        kinds = {"python": reader.python, "text": reader.text, "console": reader.console}
    parsers = [
        CodeBlockParser(kind, kinds.get(kind, lambda _: None)) for kind in ("python", "text", "console")
    ]
    return list(Document.parse(str(path), *parsers).examples())


def main(path: Path) -> list[dict[str, Any]]:
    """
    Run a document.
    """
    with tempfile.TemporaryDirectory() as folder:
        reader = Reader(Path(folder))
        return [
            {"line": example.line, "problem": example.region.evaluator(example)}
            for example in blocks(path, reader)
        ]


if __name__ == "__main__":
    sys.stdout.write(json.dumps(main(Path(sys.argv[1]).resolve())))
