"""
A model that is asked again when its provider is busy, or when it says nothing.

It prints:

    retry: RateLimitError 429, wait 0.01 s
    retry: empty answer, wait 0.00 s
    Your order is on its way.

The first wait is the one the provider asks for. The second is random, from a source with a fixed seed here.
"""

import random
from typing import Any

from eventbus import AfterModelCallEvent, ModelResponse, Run
from eventbus.policies import ModelRetryHook


class RateLimitError(Exception):
    """As the clients of providers raise it."""

    status_code = 429
    retry_after = 0.01


class Retry(ModelRetryHook):
    max_retries = 4
    initial_delay = 0.005
    max_delay = 2.0
    random = random.Random(7)


@AfterModelCallEvent.subscribe(priority=0)
def show(event: AfterModelCallEvent) -> None:
    if event.retry:
        print(f"retry: {event.reason}, wait {event.retry:.2f} s")


answers: list[Any] = [RateLimitError(), ModelResponse(" "), ModelResponse("Your order is on its way.")]


def model(messages: list[str], **settings: Any) -> ModelResponse:
    """Stand in for a provider."""
    answer = answers.pop(0)
    if isinstance(answer, Exception):
        raise answer
    return answer  # type: ignore[no-any-return]  # of a list of both


if __name__ == "__main__":
    with Run(agent="sundae", message="Where is my order?") as run:
        response = run.call_model(model, ["Where is my order?"])
        print(response.content)
