"""
What tests of detectors share: the tables of texts, and what detectors find in one.
"""

from __future__ import annotations

from pathlib import Path

TEXTS = Path(__file__).parent / "guard_texts"


def table(name):
    """Return the rows of a table: the heading above, and the text, in which ⏎ stands for a line break."""
    heading, rows = "", []
    for line in (TEXTS / name).read_text(encoding="utf-8").splitlines():
        if line.startswith("# "):
            heading = line[2:]
        else:
            rows.append((heading, line.replace("⏎", "\n")))
    return rows


def found(detectors, text):
    """Return the names of the detectors that find something, with what they find."""
    return {
        name: [text[start:end] for start, end in spans]
        for name, detector in detectors.items()
        if (spans := detector.spans(text))
    }
