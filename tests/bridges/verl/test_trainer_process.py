"""verl's trainer as a child process: its error when it fails, and its metrics line by line."""

from pathlib import Path

import pytest

from repairgym.bridges.verl.config_files import VerlPaths
from repairgym.bridges.verl.trainer_process import IterationMetrics, failure_reason, new_lines, read_metrics, run_verl
from repairgym.config.cluster import VerlConfig
from repairgym.errors import RepairGymError

CPU = VerlConfig(device="cpu", engine="embedded", gpus_per_node=2, rollout_tensor_parallel=1, sequence_parallel=1)


def test_a_failed_child_raises_its_last_error_and_names_its_log(tmp_path):
    """There is no configuration in the folder, and here no verl either."""
    (tmp_path / "verl").mkdir()
    paths = VerlPaths(tmp_path / "verl", *[tmp_path] * 5)
    with pytest.raises(RepairGymError, match=r"verl ended with exit code 1: .*verl.*verl\.log.*resumes from the last"):
        list(run_verl(paths, CPU))
    assert "Error" in (tmp_path / "verl/verl.log").read_text()


TRAINER = """
import sys
from pathlib import Path
folder = Path(sys.argv[sys.argv.index("--config-path") + 1])
starts = folder / "starts"
starts.write_text(starts.read_text() + "x" if starts.exists() else "x")
if len(starts.read_text()) < {num_starts}:
    raise OSError("[Errno 98] address already in use")
(folder / "metrics.jsonl").write_text('{{"step": 1, "data": {{"a": 1}}}}\\n')
"""


@pytest.mark.parametrize(("num_starts", "is_run"), [(3, True), (4, False)])
def test_verl_is_started_again_when_its_port_is_taken(tmp_path, monkeypatch, num_starts, is_run):
    trainer = tmp_path / "packages/verl/trainer"
    trainer.mkdir(parents=True)
    (trainer / "main_ppo.py").write_text(TRAINER.format(num_starts=num_starts))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "packages"))
    paths = VerlPaths(tmp_path / "run", *[tmp_path] * 5)
    paths.folder.mkdir()
    if is_run:
        assert [arrival.values for arrival in run_verl(paths, CPU)] == [{"a": 1.0}]
    else:
        with pytest.raises(RepairGymError, match="address already in use"):
            list(run_verl(paths, CPU))
    assert (paths.folder / "starts").read_text() == "xxx"


def test_our_own_error_comes_before_that_of_ray(tmp_path):
    log = tmp_path / "verl.log"
    earlier = b"repairgym.errors.InputError: of an earlier call\n"
    said = b"(pid=3)     raise SandboxError(\n(pid=3) repairgym.errors.SandboxError: no room\nRay: \xff\n"
    log.write_bytes(earlier + said)
    assert failure_reason(log, len(earlier)) == "no room"
    log.write_bytes(b"(pid=3) ImportError: not that\n(pid=3)   raise\n(pid=3) ValueError: but this\nat exit\n")
    assert failure_reason(log, 0) == "ValueError: but this"
    log.write_bytes(earlier + b"\n".join(b"line %d" % number for number in range(20)))
    assert failure_reason(log, len(earlier)) == " | ".join(f"line {number}" for number in range(8, 20))


def test_metrics_are_read_line_by_line_and_an_unfinished_line_waits(tmp_path: Path):
    file = tmp_path / "metrics.jsonl"
    assert new_lines(file, 0) == ([], 0)
    file.write_bytes(b'{"step": 1, "data": {"a": 1, "b": null, "c": true, "d": 0.5}}\n{"step": 2, "da')
    (line,), position = new_lines(file, 0)
    assert read_metrics(line) == IterationMetrics(1, {"a": 1.0, "d": 0.5})
    with file.open("ab") as stream:
        stream.write(b'ta": {}}\n')
    (line,), _ = new_lines(file, position)
    assert read_metrics(line) == IterationMetrics(2, {})
