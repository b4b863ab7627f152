"""
Lines in an application that uses structlog: its processors see an event and key-values.

Prints:

    level='info' event='starting' app='shop'
    level='info' event='INF START' cid='run-1' agent='sundae'
    level='info' event='TOOL OK' cid='run-1' tool='lookup_order' data={'total': 50}
    level='warning' event='INF DENY' cid='run-1' agent='sundae' reason='too long'
"""

import structlog
from structlog.typing import EventDict, WrappedLogger

from eventbus import (
    InferenceDeniedEvent,
    InferenceStartedEvent,
    ToolCall,
    ToolCallCompletedEvent,
    ToolResult,
    configure,
    correlation,
)

WANTED = ("level", "event", "app", "cid", "agent", "tool", "data", "reason")


def pick(logger: WrappedLogger, method: str, event: EventDict) -> EventDict:
    """
    Keep what this application wants of each entry, in its order.
    """
    return {key: event[key] for key in WANTED if key in event}


if __name__ == "__main__":
    structlog.configure(
        processors=[structlog.processors.add_log_level, pick, structlog.processors.KeyValueRenderer()]
    )
    configure(log="structlog")

    structlog.get_logger().info("starting", app="shop")
    with correlation("run-1"):
        InferenceStartedEvent.emit(agent="sundae")
        call = ToolCall("call_0", "lookup_order", {"order_id": "A1"})
        ToolCallCompletedEvent.emit(tool_call=call, result=ToolResult({"total": 50}))
        InferenceDeniedEvent.emit(agent="sundae", reason="too long")
