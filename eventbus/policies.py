"""
The hooks that decide, shipped abstract: a subclass with its settings as class attributes goes live.
"""

from __future__ import annotations

from ._retrying import ModelRetryHook, is_transient
from ._steering import SteeringDecision, SteeringHook, SteeringRequest

__all__ = ["ModelRetryHook", "SteeringDecision", "SteeringHook", "SteeringRequest", "is_transient"]
