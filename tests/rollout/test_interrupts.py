"""Ctrl-C: the first asks, the second stops; whoever handled it before does so again."""

import os
import signal
import threading

import pytest

from repairgym.rollout.pool import draining_on_interrupt


def interrupt() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def test_the_first_interrupt_asks_and_the_second_stops():
    with draining_on_interrupt() as drain:
        assert not drain.is_asked
        assert not drain.is_over(0.0)
        interrupt()
        assert drain.is_asked
        assert not drain.is_over(60.0)
        assert drain.is_over(-1.0)
        with pytest.raises(KeyboardInterrupt):
            interrupt()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_somebody_elses_handler_stays():
    heard = []
    before = signal.signal(signal.SIGINT, lambda *_: heard.append(1))
    try:
        with draining_on_interrupt() as drain:
            interrupt()
            assert heard == [1]
            assert not drain.is_asked
    finally:
        signal.signal(signal.SIGINT, before)


def test_threads_do_not_touch_signals():
    found = []

    def run() -> None:
        with draining_on_interrupt() as drain:
            found.append((drain.is_asked, signal.getsignal(signal.SIGINT)))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert found == [(False, signal.default_int_handler)]
