"""
The program: `python -m eventbus`, and the console script `eventbus`.
"""

from __future__ import annotations

import sys


def main() -> None:
    """
    Run the command line; without the extra `cli`, say in one sentence what to install, and exit with 1.
    """
    try:
        from .cli import cli
    except ImportError as error:
        if error.name != "eventbus.cli":
            raise
        sys.exit(f"eventbus: {error}")
    cli(prog_name="eventbus")


if __name__ == "__main__":
    main()
