"""The event loop of agents: which callbacks run, when, and which do not."""

from __future__ import annotations

import os
import threading
from functools import partial
from pathlib import Path

from hvd_kernel.processes.event_loop import EventLoop


def test_reused_descriptor_is_not_the_closed_one() -> None:
    """Both ends of the first pipe are ready in one turn; the first callback closes the second's and opens another."""
    loop, called = EventLoop(), list[str]()
    first, first_end = os.pipe()
    second, second_end = os.pipe()
    for end in (first_end, second_end):
        os.write(end, b"x")
    silent: list[int] = []

    def replace() -> None:
        called.append("first")
        loop.remove_reader(first)
        loop.remove_reader(second)
        os.close(second)
        silent.extend(os.pipe())
        loop.add_reader(silent[0], partial(called.append, "silent"))

    loop.add_reader(first, replace)
    loop.add_reader(second, partial(called.append, "second"))
    loop.turn()
    assert silent[0] == second, "it has the number"
    assert called == ["first"]
    os.write(silent[1], b"x")
    loop.turn()
    assert called == ["first", "silent"]
    for descriptor in (first, first_end, second_end, *silent):
        os.close(descriptor)


def test_read_and_write_callbacks_of_a_descriptor_are_separate() -> None:
    loop, called = EventLoop(), list[str]()
    reading, writing = os.pipe()
    loop.add_writer(writing, partial(called.append, "room"))
    loop.turn()
    loop.remove_writer(writing)
    loop.remove_writer(writing)
    os.write(writing, b"x")
    loop.add_reader(reading, partial(called.append, "data"))
    loop.turn()
    assert called == ["room", "data"]
    os.close(reading)
    os.close(writing)


def test_timers_fire_in_order_and_cancelled_ones_do_not() -> None:
    loop, called = EventLoop(), list[int]()
    loop.call_later(0.0, partial(called.append, 1))
    loop.call_later(0.0, partial(called.append, 2)).cancel()
    loop.call_later(0.0, partial(called.append, 3))
    loop.call_later(3600.0, partial(called.append, 4))
    loop.call_later(0.0, loop.stop)
    loop.run()
    assert called == [1, 3]


def test_loop_is_woken_from_another_thread() -> None:
    loop, called = EventLoop(), list[int]()
    caller = threading.Thread(
        target=lambda: (
            [loop.call_soon_threadsafe(partial(called.append, i)) for i in range(3)]
            + [loop.call_soon_threadsafe(loop.stop)]
        )
    )
    caller.start()
    loop.run()
    caller.join()
    assert called == [0, 1, 2]


def descriptors() -> set[str]:
    return {each.name for each in Path("/proc/self/fd").iterdir()}


def test_a_closed_loop_leaves_no_descriptor() -> None:
    before = descriptors()
    loop = EventLoop()
    assert len(descriptors()) == len(before) + 1
    loop.close()
    loop.close()
    assert descriptors() == before


def test_a_timer_may_be_due_in_months() -> None:
    """poll() accepts 24 days: HVD_KEEP_HOURS=1000 ended the detached ranks as soon as their kernel had left."""
    loop, called = EventLoop(), list[str]()
    for seconds in (1000 * 3600.0, float("inf")):
        loop.call_later(seconds, partial(called.append, "due"))
        loop.call_soon_threadsafe(partial(called.append, "asked"))
        loop.turn()
    loop.close()
    assert called == ["asked", "asked"]
