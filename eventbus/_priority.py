"""
The named places in the order of delivery.
"""

from __future__ import annotations

import enum


class Priority(enum.IntEnum):
    """
    Where a handler stands in the order: lower first, any int between is accepted.

    The bands are those of the hook providers this grew from: 0-99 security, 100-199 observability, 200-299
    business logic, 300 and above everything else.
    """

    SECURITY = 50
    OBSERVABILITY = 150
    BUSINESS = 250
    DEFAULT = 300
