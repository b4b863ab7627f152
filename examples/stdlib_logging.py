"""
Lines in an application that uses `logging`: its handlers and levels, its format, tracebacks as everywhere.

Prints:

    INFO shop -------- starting
    INFO eventbus run-1 INF START agent=sundae
    INFO eventbus run-1 TOOL OK lookup_order id=call_0 data={"total": 50} tool=lookup_order
    WARNING eventbus run-1 MAX TURNS turn=10 pending=[send_email]
"""

import logging
import sys

from eventbus import (
    InferenceMaxTurnsReachedEvent,
    InferenceStartedEvent,
    ToolCall,
    ToolCallCompletedEvent,
    ToolResult,
    configure,
    correlation,
)


class ToolFormatter(logging.Formatter):
    """
    Adds the tool, from the facts that each record of eventbus carries.
    """

    def format(self, record: logging.LogRecord) -> str:
        facts = getattr(record, "eventbus", {})
        return super().format(record) + (f" tool={facts['tool']}" if "tool" in facts else "")


if __name__ == "__main__":
    handler = logging.StreamHandler(sys.stdout)
    # The application's own records have no `cid`.
    form = "%(levelname)s %(name)s %(cid)s %(message)s"
    handler.setFormatter(ToolFormatter(form, defaults={"cid": "--------"}))
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    configure(log="stdlib")

    logging.getLogger("shop").info("starting")
    with correlation("run-1"):
        InferenceStartedEvent.emit(agent="sundae")
        call = ToolCall("call_0", "lookup_order", {"order_id": "A1"})
        ToolCallCompletedEvent.emit(tool_call=call, result=ToolResult({"total": 50}))
        InferenceMaxTurnsReachedEvent.emit(turn=10, tool_calls=[ToolCall("call_1", "send_email")])
