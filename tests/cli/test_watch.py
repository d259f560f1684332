"""Watching a run: what a terminal and a pipe get, from the store alone."""

import io
import signal
import subprocess
import sys

import pytest
from rich.console import Console

from repairgym.cli.display import ProgressDisplay, clock
from repairgym.cli.main import main
from repairgym.cli.watch import iteration_line, read_snapshot, render, sparkline
from repairgym.rollout.calls import is_locked, locked
from repairgym.rollout.store import RunStore


@pytest.fixture
def run(tmp_path, trajectory_maker):
    with RunStore.create(tmp_path / "run.db") as store:
        store.plan_phases(["rft", "rl"])
        with store.phase("rft"):
            pass
        for step, reward in enumerate((0.25, 0.5)):
            store.add_metrics("rl", step, {"rollout/reward_mean": reward, "rollout/num_groups": 8.0})
        store.add_metrics("rl", 1, {"policy/log_prob_gap": 0.02})
        store.add_trajectory(trajectory_maker(), phase="rl", step=1, split="train")
        store.add_event("alarm_log_prob_gap", "iteration 1: log prob gap 0.02 (limit 0.01): stop", phase="rl")
        store.add_event("sandbox_lost", "no alarm", phase="rl")
    return tmp_path


def shown(snapshot) -> str:
    console = Console(file=io.StringIO(), width=160)
    console.print(render(snapshot))
    return console.file.getvalue()


def test_a_terminal_shows_phases_iterations_seconds_and_alarms(run):
    with RunStore.open(run / "run.db", is_read_only=True) as store:
        text = shown(read_snapshot(store))
    phases = [" ".join(line.split("│")[1].split()) for line in text.splitlines() if "│" in line]
    assert phases[0].startswith("✓ rft done")
    assert phases[1] == "· rl planned 1 episodes"
    for part in ("reward ▁█", "0.250", "0.500", "0.0200", "tool 0.10 s"):
        assert part in text
    assert "! iteration 1: log prob gap 0.02" in text
    assert "no alarm" not in text


def test_many_phases_stay_a_short_list(tmp_path):
    with RunStore.create(tmp_path / "run.db") as store:
        store.plan_phases([f"p{number:02}" for number in range(30)])
        for number in range(25):
            store.start_phase(f"p{number:02}")
            store.end_phase(f"p{number:02}")
        text = shown(read_snapshot(store))
    assert "16 more phases" in text
    assert "p15" not in text
    assert "p16" in text
    assert "p29" in text


def test_an_empty_run_can_be_shown(store):
    assert "nothing has begun yet" in shown(read_snapshot(store))


def test_a_pipe_gets_a_line_per_iteration_and_alarm(run, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["watch", str(run)])
    assert ended.value.code == 0
    out, err = capsys.readouterr()
    assert out.splitlines() == [
        "rl 0: reward 0.250, of 8",
        "rl 1: reward 0.500, of 8, gap 0.0200",
        "alarm: iteration 1: log prob gap 0.02 (limit 0.01): stop",
    ]
    assert "no process works on" in err


def test_once_shows_the_panel_and_leaves(run, capsys):
    with locked(run), pytest.raises(SystemExit):
        main(["watch", str(run), "--once"])
    assert "reward ▁█" in capsys.readouterr().out


def test_no_run_is_an_input_error(tmp_path, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["watch", str(tmp_path)])
    assert ended.value.code == 3
    assert "does not exist" in capsys.readouterr().err


def test_a_lock_is_seen_and_goes_with_its_holder(tmp_path):
    assert not is_locked(tmp_path)
    with locked(tmp_path):
        assert is_locked(tmp_path)
    assert not is_locked(tmp_path)


def test_lines_are_about_what_is_known(run):
    with RunStore.open(run / "run.db", is_read_only=True) as store:
        assert iteration_line(read_snapshot(store), 0) == "rl 0: reward 0.250, of 8"
    assert sparkline([1.0, 1.0]) == "▁▁"
    assert sparkline([0.0, 0.5, 1.0], width=2) == "▁█"


def test_progress_in_a_pipe_is_a_line_per_phase_and_every_message():
    console = Console(file=io.StringIO(), width=200)
    with ProgressDisplay(console=console, is_live=False) as progress:
        progress("own", 1, 9, "1 solved")
        progress("own", 2, 9, "not due yet")
        progress("alarm", 0, 0, "iteration 1: [entropy]")
        progress("own", 9, 9, "5 solved")
    lines = [line.partition(" ")[2] for line in console.file.getvalue().splitlines()]
    assert lines == ["own 1/9 1 solved", "alarm: iteration 1: [entropy]", "own 9/9 5 solved"]


def test_progress_on_a_terminal_shows_the_run_below_the_bars(run):
    console = Console(file=io.StringIO(), width=160, force_terminal=True)
    with ProgressDisplay(run, console, is_live=True) as progress:
        progress("rl", 3, 9, "2 solved")
    text = console.file.getvalue()
    assert "3/9" in text
    assert "left" in text
    assert "iteration 1: log prob gap" in text


def test_a_budget_has_a_bar_over_everything_and_its_time_left():
    console = Console(file=io.StringIO(), width=160, force_terminal=True)
    with ProgressDisplay(None, console, is_live=True, budget_s=7500.0) as progress:
        progress("own", 1, 9, "")
    text = console.file.getvalue()
    assert "of 2 h 05 min" in text
    assert "2 h 04 min left" in text
    assert "processors" in text
    assert "GiB memory" in text


def test_clocks():
    assert [clock(seconds) for seconds in (0.4, 61, 3599, 3600, 7384)] == [
        "0:00",
        "1:01",
        "59:59",
        "1 h 00 min",
        "2 h 03 min",
    ]


def test_ctrl_c_ends_the_watching_only(run):
    code = "import sys; from repairgym.cli.main import main; main(sys.argv[1:])"
    words = [sys.executable, "-c", code, "watch", str(run), "--every", "0.1"]
    with locked(run):
        process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert process.stdout is not None
        assert process.stdout.readline().startswith("rl 0")
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (0, "")
