"""
Importing the hooks that a command names: a module, a package with all its modules, or a file.
"""

from __future__ import annotations

import importlib.util
import os
import re
import sys
import traceback
import zlib
from typing import Final

from ._discover import discover
from ._errors import DiscoveryError, EventbusError

FRAMES: Final = 3
"""How many of an error's innermost frames are shown."""

_IMPORT_SYSTEM: Final = ("<frozen importlib", os.path.dirname(importlib.__file__) + os.sep)
_OURS: Final = os.path.dirname(os.path.abspath(__file__)) + os.sep
_NO_NAME: Final = re.compile(r"\W")


class LoadError(EventbusError, ImportError):
    """
    What was named could not be imported; the text says why, with the end of the traceback.
    """


def load(name: str) -> None:
    """
    Import what a command names, so that its hooks go live.

    A file is imported under its own name, as others would import it, or, where something else has that name,
    under one made of name and path. What it imports is searched for in its folder too, after everything else.

    Args:
        name: A dotted module or package, or the path of a `.py` file.

    Raises:
        LoadError: If there is no such file, or something fails while it is imported, SystemExit included.
    """
    try:
        if name.endswith(".py") or "/" in name or os.sep in name:
            _load_file(os.path.abspath(name))
        else:
            discover(name)
    except DiscoveryError as error:
        raise LoadError(_why(error)) from error
    except ExceptionGroup as group:
        raise LoadError("\n".join(map(_why, group.exceptions))) from group
    except (Exception, SystemExit) as error:
        msg = f"{name} failed to import: {type(error).__name__}: {error}{_where(error)}"
        raise LoadError(msg) from error


def _load_file(path: str) -> None:
    if not os.path.isfile(path):
        msg = "there is no such file"
        raise FileNotFoundError(msg)
    folder, file = os.path.split(path)
    if folder not in sys.path:
        sys.path.append(folder)
    name = _NO_NAME.sub("_", file.removesuffix(".py"))
    if _file_named(name) != path:
        name = f"{name}_{zlib.crc32(os.fsencode(path)):08x}"
    if name in sys.modules:
        return
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        msg = "it is no .py file"
        raise ImportError(msg)
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise


def _file_named(name: str) -> str | None:
    # Where `import name` finds, or has found, the module.
    if name in sys.modules:
        return getattr(sys.modules[name], "__file__", None)
    spec = importlib.util.find_spec(name)
    return None if spec is None else spec.origin


def _why(error: Exception) -> str:
    return f"{error}{_where(error.__cause__ or error)}"


def _where(error: BaseException) -> str:
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith((*_IMPORT_SYSTEM, _OURS))
    ]
    lines = "".join(traceback.format_list(frames[-FRAMES:]))
    if isinstance(error, SyntaxError):
        lines += "".join(traceback.format_exception_only(error)[:-1])
    return f"\n{lines}".rstrip()
