"""Connecting to a cluster: a client whose process on the head ends at its start is started again."""

from __future__ import annotations

import pytest

from repairgym.bridges.ray.nodes import start_client


@pytest.mark.parametrize(("num_failures", "num_calls"), [(0, 1), (2, 3), (3, 3)])
def test_a_client_is_started_three_times_at_most(num_failures: int, num_calls: int) -> None:
    calls: list[int] = []

    def init() -> None:
        calls.append(1)
        if len(calls) <= num_failures:
            raise ConnectionAbortedError("Initialization failure from server")

    if num_failures < num_calls:
        start_client(init)
    else:
        with pytest.raises(ConnectionAbortedError):
            start_client(init)
    assert len(calls) == num_calls


def test_a_wrong_address_is_asked_once() -> None:
    calls: list[int] = []

    def init() -> None:
        calls.append(1)
        raise ConnectionError("ray client connection timeout")

    with pytest.raises(ConnectionError):
        start_client(init)
    assert len(calls) == 1
