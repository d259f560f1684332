"""Memory and processor time of a process tree."""

import subprocess
import sys
import threading
import time

from repairgym.rollout.usage import TreeUsage, memory_bytes

_MB = 1_000_000
_HOLD = "import sys; block = bytearray(80_000_000); print(1, flush=True); sys.stdin.read()"


def test_a_childs_memory_counts_while_it_lives():
    with TreeUsage() as before:
        pass
    with TreeUsage() as usage:
        child = subprocess.Popen([sys.executable, "-c", _HOLD], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert child.stdout.readline() == b"1\n"
        usage.sample()
        child.communicate(b"")
    assert usage.peak_bytes > before.peak_bytes + 75 * _MB
    with TreeUsage() as after:
        pass
    assert after.peak_bytes < before.peak_bytes + 40 * _MB


def test_processor_time_is_that_since_it_began():
    with TreeUsage() as usage:
        end = time.process_time() + 0.2
        while time.process_time() < end:
            pass
    assert 0.1 < usage.cpu_s < 5.0


def test_a_process_that_is_gone_has_no_memory():
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    assert memory_bytes(child.pid) == 0


def test_nested_measurements_share_their_samples():
    with TreeUsage() as outer, TreeUsage() as inner:
        samplers = [thread for thread in threading.enumerate() if thread.name == "memory sampler"]
        assert len(samplers) == 1
        inner.sample()
        assert outer.peak_bytes >= inner.peak_bytes > 0
    samplers[0].join(timeout=60)
    assert not samplers[0].is_alive()
