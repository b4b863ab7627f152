"""
An asyncio application: `aemit` awaits its async handlers, `emit` schedules them, `adrain` waits for the rest.

Prints:

    mailed A1 in request-1
    aemit has returned
    emit has returned, pending: 2
    mailed A2 in request-2
    mailed A3 in request-3
    left: 0
"""

import asyncio

from eventbus import Event, adrain, correlation, current_correlation_id, stats


class OrderPlaced(Event):
    order_id: str


@OrderPlaced.subscribe
async def mail(event: OrderPlaced) -> None:
    await asyncio.sleep(0)
    print("mailed", event.order_id, "in", current_correlation_id())


def handle(request: str, order_id: str) -> None:
    with correlation(request):
        # A plain function cannot await; the handler still runs on the loop, and knows the request.
        OrderPlaced.emit(order_id=order_id)


async def main() -> None:
    with correlation("request-1"):
        await OrderPlaced.aemit(order_id="A1")
    print("aemit has returned")
    handle("request-2", "A2")
    handle("request-3", "A3")
    print("emit has returned, pending:", stats()["pending"])
    print("left:", await adrain(timeout=5))


if __name__ == "__main__":
    asyncio.run(main())
