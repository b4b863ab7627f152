"""
The hooks that decide, shipped abstract: a subclass with its settings as class attributes goes live.
"""

from __future__ import annotations

from ._guardrails import GuardrailsHook, GuardrailViolation
from ._patterns import DEFAULT_BLOCKED_PATTERNS, DEFAULT_PII_PATTERNS, Detector
from ._retrying import ModelRetryHook, is_transient
from ._steering import SteeringDecision, SteeringHook, SteeringRequest

__all__ = [
    "DEFAULT_BLOCKED_PATTERNS",
    "DEFAULT_PII_PATTERNS",
    "Detector",
    "GuardrailViolation",
    "GuardrailsHook",
    "ModelRetryHook",
    "SteeringDecision",
    "SteeringHook",
    "SteeringRequest",
    "is_transient",
]
