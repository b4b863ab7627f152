"""
A trace store: two runs are written to an SQLite file, and plain SQL finds out what came of them.

Prints:

    sundae completed: Refund A1, please.
    sundae failed: Refund B7, please.
    lookup_order: 2 calls
    1 failure: no order B7
"""

import contextlib
import sqlite3
import tempfile
from pathlib import Path

from eventbus import Run, ToolCall, configure, trace

ORDERS = {"A1": 50}


def lookup_order(order_id: str) -> dict[str, int]:
    if order_id not in ORDERS:
        raise LookupError(f"no order {order_id}")
    return {"total": ORDERS[order_id]}


def ask(order_id: str) -> None:
    with Run(agent="sundae", message=f"Refund {order_id}, please.") as run:
        [(_, result)] = run.call_tools(
            [ToolCall("call_0", "lookup_order", {"order_id": order_id})], {"lookup_order": lookup_order}
        )
        if result.error is not None:
            raise LookupError(result.error)
        run.complete("Refunded.")


if __name__ == "__main__":
    configure(log=None)
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "runs.db"
        trace.start(path)
        for order_id in ("A1", "B7"):
            with contextlib.suppress(LookupError):
                ask(order_id)
        trace.stop()

        with contextlib.closing(sqlite3.connect(path)) as store:
            for agent, status, message in store.execute(
                "SELECT agent, status, message FROM runs ORDER BY first_seq"
            ):
                print(f"{agent} {status}: {message}")
            for tool, calls in store.execute(
                "SELECT tool, count(*) FROM events WHERE channel = 'eventbus.tool_call.started' GROUP BY tool"
            ):
                print(f"{tool}: {calls} calls")
            failures = "SELECT json_extract(payload, '$.error.text') FROM events WHERE event = ?"
            for (text,) in store.execute(failures, ("InferenceFailedEvent",)):
                print(f"1 failure: {text}")
