"""
Functions that listen without a hook: filtered, for one run, for a while, and first in line.

Prints:

    first: A1
    total so far: 9.5
    first: A2
    a large one: A2
    total so far: 509.5
    first: A3
    only run-7: A3
    total so far: 510.5
"""

from eventbus import Event, Priority, correlation


class OrderPlaced(Event):
    order_id: str
    total: float = 0.0


class Till:
    total = 0.0

    def add(self, event: OrderPlaced) -> None:
        self.total += event.total


till = Till()
OrderPlaced.subscribe(till.add)
OrderPlaced.subscribe(lambda e: print("a large one:", e.order_id), when=lambda e: e.total > 100)
only_one_run = OrderPlaced.subscribe(lambda e: print("only run-7:", e.order_id), correlation_id="run-7")


@OrderPlaced.subscribe(priority=Priority.SECURITY)
def first(event: OrderPlaced) -> None:
    print("first:", event.order_id)


if __name__ == "__main__":
    with OrderPlaced.subscribe(lambda e: print("total so far:", till.total)):
        OrderPlaced.emit(order_id="A1", total=9.5)
        OrderPlaced.emit(order_id="A2", total=500)
        with correlation("run-7"):
            OrderPlaced.emit(order_id="A3", total=1)
    first.cancel()
    only_one_run.cancel()
    OrderPlaced.emit(order_id="A4", correlation_id="run-7")
