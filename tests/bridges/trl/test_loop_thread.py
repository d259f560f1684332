"""Coroutines in a thread of their own: results, errors, and an end that waits for what was stopped."""

from __future__ import annotations

import asyncio
import linecache
import os
import signal
import sys
from collections.abc import Iterator
from types import FrameType

import pytest

from repairgym.bridges.trl.loop_thread import LoopThread


class Stopped(BaseException):
    """As Ctrl-C: raised in the main thread by a signal."""


@pytest.fixture
def thread() -> Iterator[LoopThread]:
    made = LoopThread("test")
    yield made
    made.close()


@pytest.fixture
def stop_by_signal() -> Iterator[None]:
    def stop(*_: object) -> None:
        raise Stopped

    previous = signal.signal(signal.SIGUSR1, stop)
    yield
    signal.signal(signal.SIGUSR1, previous)


def test_results_and_errors_are_returned(thread: LoopThread) -> None:
    async def double(number: int) -> int:
        await asyncio.sleep(0)
        return 2 * number if number else 1 // number

    assert thread.run(double(4)) == 8
    with pytest.raises(ZeroDivisionError):
        thread.run(double(0))
    assert thread.run(double(5)) == 10


@pytest.mark.usefixtures("stop_by_signal")
def test_a_stopped_caller_waits_for_the_cleanup(thread: LoopThread) -> None:
    ended: list[str] = []

    async def work() -> None:
        os.kill(os.getpid(), signal.SIGUSR1)
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.05)
            ended.append("cleaned up")

    with pytest.raises(Stopped):
        thread.run(work())
    assert ended == ["cleaned up"]


@pytest.mark.parametrize("before", ["call_soon_threadsafe(call.start)", "return call.ended.result()"])
def test_a_caller_stopped_between_two_lines_leaves_nothing_running(thread: LoopThread, before: str) -> None:
    running: list[str] = []

    async def work() -> None:
        running.append("work")
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.01)
            running.clear()

    def stop_at(frame: FrameType, event: str, _: object) -> object:
        if event == "line" and before in linecache.getline(frame.f_code.co_filename, frame.f_lineno):
            raise Stopped
        return stop_at if frame.f_code in (LoopThread.run.__code__, call.__code__) else None

    def call() -> None:
        sys.settrace(stop_at)
        thread.run(work())

    previous = sys.gettrace()
    try:
        with pytest.raises(Stopped):
            call()
    finally:
        sys.settrace(previous)
    assert not running
