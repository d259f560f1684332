"""The pool of worker processes: answers, crashes, timeouts, failures, and a pipe that never blocks."""

import asyncio
import multiprocessing
import os
import stat
import struct
import threading
import time
from contextlib import suppress

import pytest

from repairgym.errors import InputError
from repairgym.process_pool import (
    ProcessPool,
    WorkerEnded,
    WorkerFailure,
    WorkerTimeout,
    answer_requests,
    open_inbox,
    run_worker,
)


def work(connection, setup):
    run_worker(connection, lambda: answer_requests(connection, lambda request: answer(request, setup)))


async def answer(request, setup):
    if request == "crash":
        os._exit(3)
    if request == "half a message":
        for descriptor in range(3, 64):  # its length, and a part of it, as of a process that is killed while it sends
            with suppress(OSError):
                if stat.S_ISSOCK(os.fstat(descriptor).st_mode):
                    os.write(descriptor, struct.pack("!i", 1000) + b"x" * 10)
        os._exit(3)
    if request == "sleep":
        time.sleep(60)  # noqa: ASYNC251
    if request == "bug":
        raise ZeroDivisionError
    if request == "input":
        raise InputError("a bad request")
    return f"{setup} {request}"


def test_each_request_is_answered_once_and_a_crash_costs_only_its_own_request():
    sent: list[int] = []
    with ProcessPool(work, "did", 2) as pool:
        answers = dict(pool.map(["a", "crash", "b", "c"], sent=sent.append))
        assert [worker.process.is_alive() for worker in pool.workers] == [True] * len(pool.workers)
    assert answers == {0: "did a", 1: WorkerEnded(3), 2: "did b", 3: "did c"}
    assert pool.workers == ()
    assert sent == [0, 1, 2, 3]


def test_a_worker_that_dies_while_it_sends_is_replaced():
    with ProcessPool(work, "did", 1) as pool:
        answers = dict(pool.map(["a", "half a message", "b"]))
    assert answers == {0: "did a", 1: WorkerEnded(3), 2: "did b"}


def test_a_request_that_takes_too_long_is_given_up():
    with ProcessPool(work, "did", 1) as pool:
        assert list(pool.map(["a"])) == [(0, "did a")]
        assert list(pool.map(["sleep"], timeout_s=0.2)) == [(0, WorkerTimeout())]
        assert list(pool.map(["b"])) == [(0, "did b")]


def test_failures_are_typed():
    with ProcessPool(work, "did", 1) as pool:
        ((_, deliberate),) = pool.map(["input"])
        ((_, bug),) = pool.map(["bug"])
    assert isinstance(deliberate, WorkerFailure)
    assert isinstance(deliberate.as_error(), InputError)
    assert bug.error is None
    assert "ZeroDivisionError" in str(bug.as_error())


def test_leaving_the_iterator_ends_busy_workers():
    with ProcessPool(work, "did", 2) as pool:
        answers = pool.map(["a", "sleep"])
        next(answers)
        processes = [worker.process for worker in pool.workers]
        answers.close()
        assert len(pool.workers) == 1
        assert sum(process.is_alive() for process in processes) == 1


def test_a_sender_never_waits_for_the_receivers_event_loop():
    """With both buffers full and nobody reading, a run of 800 episodes once stood still for good."""
    here, there = multiprocessing.Pipe()
    sender = threading.Thread(target=lambda: [here.send("request" * 1000) for _ in range(200)], daemon=True)

    async def receive() -> int:
        inbox = open_inbox(there)
        sender.start()
        sender.join(timeout=20)  # the loop is blocked, as it is while the worker sends a trajectory
        assert not sender.is_alive()
        here.close()
        num = 0
        while await inbox.get() is not None:
            num += 1
        return num

    assert asyncio.run(receive()) == 200


@pytest.mark.parametrize("request_text", ["a", "crash"])
def test_a_pool_can_be_closed_twice(request_text):
    pool = ProcessPool(work, "did", 1)
    list(pool.map([request_text]))
    pool.close()
    pool.close()
