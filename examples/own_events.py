"""
Events that have nothing to do with agents: two with a line in the log, one that only handlers see.

Prints:

    paid 20.0 of 29.5

Logs, after each timestamp:

    order-A1 ORDER PLACED id=A1 total=29.5
    order-A1 PAYMENT REFUSED id=A1 reason="card expired token=[REDACTED]"
"""

import json

from eventbus import Event, Hook, correlation, on


class OrderPlaced(Event):
    order_id: str
    total: float = 0.0

    def log_line(self) -> str:
        return f"ORDER PLACED id={self.order_id} total={self.total}"


class PaymentReceived(Event, channel="shop.payment.received"):
    order_id: str
    amount: float


class PaymentRefused(Event, channel="shop.payment.refused"):
    log_level = "warning"

    order_id: str
    reason: str

    def log_line(self) -> str:
        return f"PAYMENT REFUSED id={self.order_id} reason={json.dumps(self.reason)}"


class Ledger(Hook):
    due = paid = 0.0
    shared = True

    @on(OrderPlaced)
    def placed(self, event: OrderPlaced) -> None:
        self.due += event.total

    @on(PaymentReceived)
    def received(self, event: PaymentReceived) -> None:
        self.paid += event.amount
        print("paid", self.paid, "of", self.due)


if __name__ == "__main__":
    with correlation("order-A1"):
        OrderPlaced.emit(order_id="A1", total=29.5)
        PaymentRefused.emit(order_id="A1", reason="card expired token=tok_51H8x")
        PaymentReceived.emit(order_id="A1", amount=20.0)
