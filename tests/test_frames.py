"""An error says where it was raised, innermost first."""

from __future__ import annotations

import pytest

import eventbus._frames
from eventbus._frames import error_frames, error_message, error_name


def fail(depth: int = 0) -> None:
    """Raise, from as many frames further down."""
    if depth:
        fail(depth - 1)
    raise ValueError("boom")


def caught(depth: int = 0) -> ValueError:
    """Catch what `fail` raises."""
    with pytest.raises(ValueError, match="boom") as info:
        fail(depth)
    return info.value


def names(error: BaseException) -> list[str]:
    """Give the functions of the frames, after seeing that each names this file or another."""
    frames = [frame.split(" in ") for frame in error_frames(error)]
    assert all(place.rpartition(":")[2].isdigit() for place, _ in frames)
    return [function for _, function in frames]


def test_frames_of_the_traceback_are_followed_by_the_callers_of_who_caught_it() -> None:
    """Three in all: where it was raised, where it was caught, who called that."""
    error = caught()
    assert ["fail", "caught"] == names(error)[:2]
    assert names(error)[2].startswith("test_frames_of")
    assert error_frames(error)[0].startswith("test_frames.py:")


def test_of_a_long_traceback_the_innermost_frames_are_kept() -> None:
    """The place it was raised tells more than the way there."""
    assert ["fail", "fail", "fail"] == names(caught(10))


def test_an_error_that_was_never_raised_has_no_frames() -> None:
    """Nothing is made up."""
    assert [] == error_frames(ValueError("boom"))


def test_frames_of_eventbus_are_left_out() -> None:
    """They would say where the bus is, not where the user's code is."""
    code = compile("def inner(call):\n    call()\n", eventbus._frames.__file__, "exec")
    namespace: dict[str, object] = {}
    exec(code, namespace)

    def through() -> None:
        namespace["inner"](fail)  # type: ignore[operator]

    with pytest.raises(ValueError, match="boom") as info:
        through()
    assert ["fail", "through"] == names(info.value)[:2]


def test_an_error_in_a_module_shows_its_callers_to_the_end_of_the_stack() -> None:
    """A stack of fewer than three frames is shown whole."""
    from threading import Thread

    frames: list[str] = []

    def run() -> None:
        try:
            fail()
        except ValueError as error:
            frames.extend(names(error))

    thread = Thread(target=run)
    thread.run = run  # type: ignore[method-assign]
    thread.start()
    thread.join()
    assert ["fail", "run", "_bootstrap_inner"] == frames


def test_a_message_that_raises_is_unprintable() -> None:
    """An error may be broken itself."""

    class Broken(Exception):
        def __str__(self) -> str:
            raise self

    assert "<unprintable>" == error_message(Broken())
    assert "Broken" == error_name(Broken())


def test_a_message_of_a_str_subclass_is_copied() -> None:
    """What comes out is a str and nothing else."""

    class Text(str):
        __slots__ = ()

    class Odd(Exception):
        def __str__(self) -> str:
            return Text("odd")

    assert type(error_message(Odd())) is str
