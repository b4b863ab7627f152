"""
Compares eventbus with what people would use instead, and measures how its cost grows.

    python -m tests.benchmarks

in a clone with the extra `bench` installed measures everything, and writes table and charts into docs/.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from pathlib import Path

from eventbus.testing import isolated

from . import results
from .comparisons import COMPARISONS
from .contenders import missing
from .growth import GROWTHS, Growth
from .measuring import FULL, QUICK, Effort, compare


def arguments() -> argparse.Namespace:
    """
    Read the command line.
    """
    keys = [row.key for row in COMPARISONS] + list(GROWTHS)
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks", description=__doc__.splitlines()[1])
    parser.add_argument("--only", nargs="+", metavar="KEY", choices=keys, help=f"of: {', '.join(keys)}")
    parser.add_argument("--quick", action="store_true", help="fewer rounds and smaller sizes")
    parser.add_argument("--check", action="store_true", help="status 1 if a target is missed")
    parser.add_argument("--no-growth", action="store_true", help="the comparisons alone")
    parser.add_argument(
        "--output", type=Path, help="where performance.md and the charts are written, as in docs/"
    )
    return parser.parse_args()


def measure(chosen: list[str], effort: Effort, without: dict[str, str]) -> list[results.Outcome]:
    """
    Measure the comparisons, and print each.
    """
    found = []
    for row in COMPARISONS:
        if row.key in chosen:
            with row.prepare(effort, without) as contenders:
                measured = compare(contenders, effort)
            found.append(results.Outcome(row, measured))
            print(results.line(found[-1]), flush=True)
    return found


def grow(chosen: list[str], effort: Effort) -> list[Growth]:
    """
    Measure how cost grows, and print each.
    """
    found = []
    for key, one in GROWTHS.items():
        if key in chosen:
            with isolated():
                found.append(one(effort))
            print("\n".join(results.growth_table(found[-1:])), flush=True)
    return found


def main() -> int:
    """
    Do what the command line says.
    """
    warnings.simplefilter("ignore")
    given = arguments()
    effort = QUICK if given.quick else FULL
    is_whole = not (given.only or given.quick or given.no_growth or given.check)
    directory = results.PAGE.parent if given.output is None and is_whole else given.output
    if directory is not None:
        results.can_write(directory)
    without = missing()
    for name, reason in without.items():
        print(f"left out: {name} ({reason})")
    measured_on = results.machine()
    print(f"eventbus on {measured_on}")
    chosen = given.only or [*(row.key for row in COMPARISONS), *(() if given.no_growth else GROWTHS)]
    outcomes = measure(chosen, effort, without)
    growths = grow(chosen, effort)
    if directory is not None:
        results.write(directory, outcomes, growths, without, measured_on)
    missed = [outcome.row.key for outcome in outcomes if outcome.is_met is False]
    met = [outcome.row.key for outcome in outcomes if outcome.is_met]
    print(f"{len(met)} targets met, {len(missed)} missed{': ' if missed else ''}{', '.join(missed)}")
    return 1 if given.check and missed else 0


if __name__ == "__main__":
    sys.exit(main())
