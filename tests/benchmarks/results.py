"""
What was measured, as text, as a table and as charts.
"""

from __future__ import annotations

import datetime
import os
import platform
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from .comparisons import ROOT, Comparison
from .contenders import LACKS, versions
from .growth import Growth
from .measuring import Measured, Spread

PAGE: Final = ROOT / "docs" / "performance.md"
BEGIN: Final = "<!-- measured: written by `python -m tests.benchmarks` -->"
END: Final = "<!-- /measured -->"


@dataclass
class Outcome:
    """
    One row, measured.

    Attributes:
        row: What was measured.
        measured: What came of it.
    """

    row: Comparison
    measured: Measured

    @property
    def spread(self) -> Spread | None:
        """What is held against the target; None without anything to compare with."""
        found = self.measured
        if self.row.unit == "bytes":
            return found.costs["eventbus"]
        if not found.best:
            return None
        ratio = found.ratios[found.best]
        if self.row.unit == "rate":
            return Spread(1 / ratio.median, 1 / ratio.high, 1 / ratio.low)
        return ratio

    @property
    def is_met(self) -> bool | None:
        """Whether the target is met; None where there is none."""
        if self.row.target is None or self.spread is None:
            return None
        if self.row.unit == "rate":
            return self.spread.median >= self.row.target
        # In thousandths for ratios, in whole bytes for memory.
        return round(self.spread.median, 0 if self.row.unit == "bytes" else 3) <= self.row.target

    @property
    def target(self) -> str:
        """The target as the table has it."""
        if self.row.target is None:
            return ""
        return f"{'≥' if self.row.unit == 'rate' else '≤'} {self.row.target:g}"

    def ratio(self) -> str:
        """Return what is held against the target, with its quartiles."""
        spread = self.spread
        if spread is None:
            return "no peer"
        if self.row.unit == "bytes":
            return f"{spread.median:.0f} bytes"
        return f"{spread.median:.2f} ({spread.low:.2f} to {spread.high:.2f})"

    def verdict(self) -> str:
        """Return whether the target is met, in a word."""
        return {None: "", True: "met", False: "**missed**"}[self.is_met]

    def others(self) -> str:
        """Return the ratio to each of the others."""
        found = self.measured
        rest = [(name, ratio) for name, ratio in found.ratios.items() if name != found.best]
        return ", ".join(
            f"{name} {ratio.median:.2g}" for name, ratio in sorted(rest, key=lambda r: -r[1].median)
        )


def seconds(value: float) -> str:
    """
    Write a time.
    """
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if abs(value) >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value / 1e-9:.3g} ns"


def line(outcome: Outcome) -> str:
    """
    Return one row for the terminal.
    """
    found = outcome.measured
    if outcome.row.unit == "bytes":
        costs = ""
    else:
        costs = ", ".join(f"{name} {seconds(cost.median)}" for name, cost in found.costs.items())
    verdict = {None: "", True: "met", False: "MISSED"}[outcome.is_met]
    return f"{outcome.row.key:14} {outcome.ratio():24} {outcome.target:7} {verdict:7} {costs}"


def machine() -> str:
    """
    Return what it was measured on.
    """
    cpu = platform.processor() or platform.machine()
    try:
        found = re.search(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text(encoding="utf-8"), re.M)
        cpu = found[1] if found else cpu
    except OSError:
        pass
    load = f", load {os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else ""
    python = f"{platform.python_implementation()} {platform.python_version()}"
    return f"{python}, {platform.system()}, {cpu}, {os.cpu_count()} CPUs{load}"


def table(outcomes: list[Outcome], missing: dict[str, str], measured_on: str) -> Iterator[str]:
    """
    Yield the lines of the table.
    """
    today = datetime.datetime.now(datetime.UTC).date()
    yield f"Measured on {today} with {measured_on}."
    yield f"Versions: {', '.join(f'{name} {version}' for name, version in versions().items())}."
    for name, reason in missing.items():
        yield f"Left out: {name} ({reason})."
    yield ""
    yield "| what | ratio (quartiles) | target | | to what | ratio to others |"
    yield "|---|---|---|---|---|---|"
    for outcome in outcomes:
        best, against = outcome.measured.best, outcome.row.against
        to = f"{against}: {best}" if against == "the fastest peer" else against
        if outcome.row.unit == "bytes":
            to = ""
        cells = [outcome.row.what, outcome.ratio(), outcome.target, outcome.verdict(), to, outcome.others()]
        yield f"| {' | '.join(cells)} |"


def growth_table(growths: list[Growth]) -> Iterator[str]:
    """
    Yield the lines about growth, and name each step that grows faster than its work.
    """
    for growth in growths:
        yield f"### {growth.title}"
        yield ""
        yield f"![{growth.title}](performance-{growth.key}.svg)"
        yield ""
        sizes = sorted({size for points in growth.series.values() for size in points})
        shown = [size for size in sizes if size in {sizes[0], sizes[-1]} or str(size).strip("0") == "1"]
        yield f"| {growth.across} | {' | '.join(f'{size:,}' for size in shown)} | steepest step |"
        yield f"|---|{'---|' * len(shown)}---|"
        steps = {name: step for name, *step in growth.steepest()}
        for name, points in growth.series.items():
            costs = " | ".join(seconds(points[size]) if size in points else "" for size in shown)
            power, small, large, outgrows = steps[name]
            step = f"n^{power:.2f}, {small:,} to {large:,}"
            yield f"| {name} | {costs} | {f'**{step}**' if outgrows else step} |"
        yield ""


def lacking() -> Iterator[str]:
    """
    Yield what each contender does not do.
    """
    yield "| peer | what it does not do, or does otherwise |"
    yield "|---|---|"
    for name, what in LACKS.items():
        yield f"| {name} | {what} |"


def can_write(directory: Path) -> None:
    """
    See that the table and the charts can be written, before anything is measured.

    Raises:
        ImportError: If what draws the charts is not installed.
        OSError: If there can be no such directory.
    """
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams.update({"svg.hashsalt": "eventbus", "font.size": 9, "svg.fonttype": "none"})
    directory.mkdir(parents=True, exist_ok=True)


def write(
    directory: Path,
    outcomes: list[Outcome],
    growths: list[Growth],
    missing: dict[str, str],
    measured_on: str,
) -> None:
    """
    Write the table into a copy of `docs/performance.md`, or into itself, and the charts beside it.
    """
    chart_of_ratios(directory / "performance-ratios.svg", outcomes)
    for growth in growths:
        chart_of_growth(directory / f"performance-{growth.key}.svg", growth)
    text = PAGE.read_text(encoding="utf-8")
    measured = [
        *table(outcomes, missing, measured_on),
        "",
        "![Ratios](performance-ratios.svg)",
        "",
        "## How cost grows",
        "",
    ]
    measured += [*growth_table(growths), "## What the peers do not do", "", *lacking()]
    before, rest = text.split(BEGIN)
    after = rest.split(END)[1]
    (directory / PAGE.name).write_text(
        f"{before}{BEGIN}\n{chr(10).join(measured)}\n{END}{after}", encoding="utf-8"
    )


def _saved(figure: Any, path: Path) -> None:
    figure.savefig(path, metadata={"Date": None})
    # Matplotlib leaves spaces at the ends of lines.
    lines = path.read_text(encoding="utf-8").splitlines()
    path.write_text("\n".join(one.rstrip() for one in lines) + "\n", encoding="utf-8")


def chart_of_ratios(path: Path, outcomes: list[Outcome]) -> None:
    """
    Draw each ratio with its quartiles, and its target.
    """
    from matplotlib.figure import Figure

    shown = [outcome for outcome in outcomes if outcome.row.unit != "bytes" and outcome.spread][::-1]
    figure = Figure(figsize=(10, 0.34 * len(shown) + 1.2), layout="constrained")
    axes = figure.add_subplot()
    for place, outcome in enumerate(shown):
        spread = outcome.spread
        assert spread is not None
        color = {None: "#888888", True: "#2a7f4f", False: "#c2452d"}[outcome.is_met]
        low, high = max(0, spread.median - spread.low), max(0, spread.high - spread.median)
        axes.barh(place, spread.median, color=color, height=0.6, xerr=[[low], [high]], ecolor="#222222")
        if outcome.row.target is not None:
            axes.plot([outcome.row.target] * 2, [place - 0.42, place + 0.42], color="black", linewidth=2)
    axes.axvline(1, color="#888888", linewidth=0.8, linestyle=":")
    axes.set_xscale("log")
    axes.set_xticks([0.1, 0.2, 0.5, 1, 2, 5, 10, 20], ["0.1", "0.2", "0.5", "1", "2", "5", "10", "20"])
    axes.minorticks_off()
    axes.set_yticks(range(len(shown)), [outcome.row.what.replace("`", "") for outcome in shown])
    axes.set_xlabel("cost of eventbus to that of the reference (for a rate: rate to rate); black: the target")
    _saved(figure, path)


def chart_of_growth(path: Path, growth: Growth) -> None:
    """
    Draw the cost by the size, both as logarithms: work that grows with its size is a straight line.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.add_subplot()
    for name, points in growth.series.items():
        axes.plot(
            list(points), [value * 1e6 for value in points.values()], marker="o", markersize=3, label=name
        )
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_title(growth.title)
    axes.set_xlabel(growth.across)
    axes.set_ylabel(f"{growth.up} (µs)")
    axes.grid(visible=True, linewidth=0.3)
    axes.legend(fontsize=8)
    _saved(figure, path)
