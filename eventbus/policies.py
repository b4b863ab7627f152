"""
The hooks that decide, shipped abstract: a subclass with its settings as class attributes goes live.
"""

from __future__ import annotations

__all__: list[str] = []
