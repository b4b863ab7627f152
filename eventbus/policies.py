"""
The hooks that decide, shipped abstract: a subclass with its settings as class attributes goes live.
"""

from __future__ import annotations

from ._attacks import DEFAULT_BLOCKED_PATTERNS
from ._detectors import Detector
from ._guardrails import GuardrailsHook
from ._inspection import GuardrailViolation
from ._personal_data import DEFAULT_PII_PATTERNS
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
