"""The pipe between a pool and its workers."""

import asyncio
import multiprocessing
import threading

from repairgym.rollout.jobs import PolicyRef
from repairgym.rollout.worker import WorkRequest, open_inbox


def test_a_sender_never_waits_for_the_receivers_event_loop() -> None:
    """With both buffers full and nobody reading, a run of 800 episodes once stood still for good."""
    request = WorkRequest(PolicyRef("teacher" * 1000), (), {})
    here, there = multiprocessing.Pipe()
    sender = threading.Thread(target=lambda: [here.send(request) for _ in range(200)], daemon=True)

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
