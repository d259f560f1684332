"""Deadlines on a busy machine: time in which nothing could run does not count, and cannot be bought."""

import subprocess
import sys
import time

import pytest

from repairgym.errors import SandboxError
from repairgym.sandbox.channel import Channel, check_had_time
from repairgym.sandbox.guest.deadlines import MAX_EXTENSION_S, Deadline, Scheduled, descendants, scheduled


def passed(timeout_s: float, running_s: float, waiting_s: float) -> Deadline:
    """A deadline whose processes have these counts when it passes by the clock."""
    return Deadline(timeout_s, lambda: Scheduled(running_s, waiting_s))


def test_waiting_for_a_processor_does_not_count():
    deadline = passed(0.004, running_s=0.0, waiting_s=0.02)
    assert 0.004 < deadline.remaining_s() <= 0.024
    assert passed(0.004, running_s=0.0, waiting_s=0.0).remaining_s() == 0.0


def test_counts_before_the_start_are_subtracted():
    counts = iter([Scheduled(1.0, 3.02), Scheduled(1.0, 3.04), Scheduled(1.0, 3.04)])
    deadline = Deadline(0.004, lambda: next(counts), before=Scheduled(1.0, 3.0))
    assert 0.01 < deadline.remaining_s() <= 0.024


def test_waits_are_told_since_the_start_whatever_was_computed():
    deadline = Deadline(0.004, lambda: Scheduled(9.0, 3.5), before=Scheduled(1.0, 3.0))
    assert deadline.waited_s() == 0.5
    assert Deadline(1.0, lambda: Scheduled(0.0, 0.0), before=Scheduled(0.0, 2.0)).waited_s() == 0.0


def test_a_wait_while_counts_are_read_does_not_count():
    begin = time.monotonic()

    def count() -> Scheduled:
        """Of a process that has only waited, and waits on before the answer is used."""
        waiting_s = time.monotonic() - begin
        time.sleep(0.12)
        return Scheduled(0.0, waiting_s)

    deadline = Deadline(0.1, count)
    time.sleep(0.1)
    assert deadline.remaining_s() > 0.0


def test_computing_counts_as_time_even_among_waiting_processes():
    deadline = passed(0.004, running_s=0.01, waiting_s=30.0)
    assert deadline.remaining_s() == 0.0
    assert not deadline.is_starved


def test_waiting_is_bounded():
    deadline = passed(0.001, running_s=0.0, waiting_s=30.0)
    assert deadline.remaining_s() <= 0.03
    while deadline.remaining_s():
        pass
    assert deadline.is_starved


class Waiting(Channel):
    """Remembers how long it was told to wait."""

    def __init__(self):
        self.timeout_s = 0.0

    async def request(self, header, blobs=(), *, timeout_s):
        self.timeout_s = timeout_s
        return {"is_starved": False, "duration_s": 1.0}, []


@pytest.mark.asyncio
async def test_the_host_outlasts_every_deadline_inside():
    channel = Waiting()
    assert await channel.run({"op": "exec"}, [], 5.0) == ({"duration_s": 1.0}, [])
    assert channel.timeout_s > 5.0 + MAX_EXTENSION_S


def test_a_starved_command_is_a_sandbox_error():
    answer = {"is_starved": False, "duration_s": 1.0}
    check_had_time(answer, 1.0)
    assert answer == {"duration_s": 1.0}
    with pytest.raises(SandboxError, match=r"deadline of 3 s hardly got a processor in 30 s"):
        check_had_time({"is_starved": True, "duration_s": 30.0}, 3.0)


ENDED = """
import os, threading, time
from repairgym.sandbox.guest.deadlines import scheduled
from repairgym.sandbox.guest.process import scheduled_below

def burn():
    end = time.thread_time() + 0.15
    while time.thread_time() < end:
        pass

def in_child():
    if os.fork() == 0:
        burn()
        os._exit(0)
    os.wait()

def in_thread():
    thread = threading.Thread(target=burn)
    thread.start()
    thread.join()

here = lambda: scheduled(["self"])
for count, work in ((here, in_thread), (here, in_child), (scheduled_below, in_child)):
    before = count().running_s
    work()
    print(count().running_s - before > 0.1)
"""


@pytest.mark.skipif(not scheduled(["self"]).running_s, reason="this kernel keeps no counts of the scheduler")
def test_ended_processes_still_count_as_computing():
    """Or code that forks and forks could starve itself, and call the machine too busy to judge it."""
    done = subprocess.run([sys.executable, "-c", ENDED], capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.split() == ["True"] * 3, done


STARVED = """
import os, time
from repairgym.sandbox.guest.deadlines import deadline_of_this_process
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
for _ in range(4):
    if os.fork() == 0:
        end = time.monotonic() + 20
        while time.monotonic() < end and os.getppid() != 1:
            pass
        os._exit(0)
if os.fork():  # the others are no descendants of the one with the deadline
    os.wait()
begin = time.process_time()
deadline, start = deadline_of_this_process(0.3), time.monotonic()
while time.process_time() < begin + 0.25:
    pass
print(time.monotonic() - start > 0.3, deadline.remaining_s() > 0, flush=True)
while deadline.remaining_s():
    pass
print(time.process_time() - begin >= 0.29, flush=True)
os.killpg(0, 9)
"""


@pytest.mark.skipif(not scheduled(["self"]).running_s, reason="this kernel keeps no counts of the scheduler")
def test_a_process_on_a_shared_processor_gets_its_full_time():
    """Five processes on one processor: 0.25 s of work take a second, and a deadline of 0.3 s does not pass."""
    done = subprocess.run(
        [sys.executable, "-c", STARVED], capture_output=True, text=True, timeout=60, check=False, start_new_session=True
    )
    assert done.stdout.split() == ["True", "True", "True"], done


OLDER = """
import os, time
from repairgym.sandbox.guest.deadlines import deadline_of_this_process
reading, writing = os.pipe()
older = os.fork()
if not older:
    while time.process_time() < 0.4:
        pass
    os.write(writing, b"x")
    time.sleep(60)
os.read(reading, 1)
deadline = deadline_of_this_process(0.3)
for _ in range(2):
    print(deadline._count().running_s - deadline._before.running_s < 0.2, flush=True)
    if not _:
        os.kill(older, 9)
        os.wait()
"""


@pytest.mark.skipif(not scheduled(["self"]).running_s, reason="this kernel keeps no counts of the scheduler")
def test_what_an_older_program_has_computed_takes_no_time_from_a_test():
    """A fixture started it: it has used the time of the deadline before the test begins, and ends within it."""
    done = subprocess.run([sys.executable, "-c", OLDER], capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.split() == ["True", "True"], done


WAITING = (
    STARVED[: STARVED.index("begin =")]
    + """
deadline, start = deadline_of_this_process(0.3), time.monotonic()
child = os.fork()
if not child:
    while time.process_time() < 0.2:
        pass
    os._exit(0)
is_late = False
while os.waitpid(child, os.WNOHANG) == (0, 0):
    is_late = is_late or not deadline.remaining_s()
    time.sleep(0.05)  # to look costs processor time, too
print(time.monotonic() - start > 0.3, is_late, flush=True)
os.killpg(0, 9)
"""
)


@pytest.mark.skipif(not scheduled(["self"]).running_s, reason="this kernel keeps no counts of the scheduler")
def test_a_process_that_waits_for_a_program_has_the_time_of_the_program():
    """The program waits for the processor; the test that started it only waits for the program."""
    done = subprocess.run(
        [sys.executable, "-c", WAITING], capture_output=True, text=True, timeout=60, check=False, start_new_session=True
    )
    assert done.stdout.split() == ["True", "False"], done


def test_waits_of_a_process_that_has_ended_stay_counted():
    counts = iter([Scheduled(0.0, 0.03), Scheduled(0.0, 0.0)])
    deadline = Deadline(0.004, lambda: next(counts, Scheduled(0.0, 0.0)))
    time.sleep(0.005)
    assert deadline.remaining_s() > 0.0
    deadline._end = 0.0
    assert deadline.remaining_s() > 0.0


def test_descendants_are_listed_whatever_the_code_puts_in_the_place_of_os(monkeypatch):
    with subprocess.Popen(["sh", "-c", "sleep 60 & wait"]) as shell:
        while len(descendants()) < 2:
            time.sleep(0.01)
        monkeypatch.setattr("os.listdir", lambda path: [])
        monkeypatch.setattr("os.open", lambda *_: -1)
        assert shell.pid in descendants()
        monkeypatch.undo()
        for pid in descendants():
            subprocess.run(["kill", str(pid)], check=True)
