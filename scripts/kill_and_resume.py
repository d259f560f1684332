"""Kill -9 an RL run at random moments, resume it each time, and compare what it leaves with an unbroken run.

    python scripts/kill_and_resume.py --kills 20                        # tiny model, scripted sandbox, seconds
    python scripts/kill_and_resume.py --kills 20 --tasks T --start M    # `repairgym train rl`: real tasks, two workers

A kill meets the run itself or, where there are some, one of its worker processes: then the run goes on by itself. Reads
nothing but its arguments (and tasks and model where they are named); makes run folders in a temporary folder and
prints one JSON object. It fails unless every resumed run holds the trajectories of the unbroken one, token by token,
each once, has kept all those and all turns that a kill left behind, and ends with the same weights and optimizer state,
bit for bit.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import torch

from repairgym.config.learning import AlgorithmConfig, OptimizerConfig, SftConfig
from repairgym.config.models import EngineConfig, ModelConfig
from repairgym.config.pipeline import PipelineConfig
from repairgym.config.recipes import CollectConfig, RlConfig
from repairgym.config.rollout import RolloutConfig
from repairgym.config.selection import TrainingSelection
from repairgym.inference.loading import create_model, load_tokenizer, save_checkpoint
from repairgym.inference.renderer import ChatRenderer
from repairgym.inference.tokenizer import train_tokenizer
from repairgym.rollout.jobs import PolicyRef
from repairgym.rollout.local import LocalPool
from repairgym.rollout.names import RL as PHASE
from repairgym.rollout.names import TURNS_FOLDER
from repairgym.rollout.rows import pack_ledger
from repairgym.rollout.store import RunStore
from repairgym.rollout.turn_log import TurnLog
from repairgym.tasks.build.validation import TaskLayers
from repairgym.testing.scripted import ScriptedBackend, scripted_answer, scripted_task
from repairgym.training.rl_loop import RLLoop, state_name
from repairgym.training.run import Run
from repairgym.training.supervised import collect_successes, fit_samples, supervised_samples

TEXTS = ["user\nassistant\nf in m.py is wrong edit < => <= @2 test undo submit passed 1 failed 1 of 1: no"] * 20
MODEL = ModelConfig(
    hidden_size=32, num_layers=1, num_heads=2, num_kv_heads=1, head_dim=16, intermediate_size=32, max_len_tokens=200
)
ROLLOUT = RolloutConfig(
    max_in_flight=8,
    pipeline=PipelineConfig(max_len_tokens=200, max_turns=4, max_action_tokens=8),
    engine=EngineConfig(num_slots=8, max_len_tokens=200, is_batch_invariant=True),
)
RL = RlConfig(
    algorithm=AlgorithmConfig(group_size=4, batch_size=8, optimizer=OptimizerConfig(learning_rate=1e-3)),
    num_groups=2,
    num_groups_sampled=2,
    max_refills=1,
    curriculum="learnability",
    max_iterations=4,
)
REAL = (
    "rollout.num_workers=2",
    "rollout.max_in_flight=16",
    "rollout.max_attempts=9",  # losses in a row without a new turn: kills here come quicker than anywhere else
    "rollout.pipeline.max_turns=8",
    "rollout.pipeline.max_action_tokens=24",
    "rollout.pipeline.max_len_tokens=1024",
    "rollout.engine.is_batch_invariant=true",
    "rl.algorithm.group_size=4",
    "rl.algorithm.batch_size=8",
    "rl.algorithm.optimizer.learning_rate=1e-4",
    "rl.num_groups=2",
    "rl.num_groups_sampled=3",
    "rl.max_refills=1",
    "rl.max_iterations=3",
)
Seconds = tuple[float, float, float]
"""Of one turn: sampling, execution, waits."""
Start = Callable[[Path], int]
"""Starts the run in a folder, or goes on with it; returns the process id."""


def main() -> None:
    arguments = parse_arguments()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        start = real_start(arguments) if arguments.tasks else tiny_start(root)
        print(json.dumps(compare(root, start, arguments.kills, arguments.kills_per_run, random.Random(arguments.seed))))


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--kills-per-run", type=float, default=4.0, help="About so many; a restart takes time.")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--tasks", type=Path, help="Folder of tasks: real sandboxes and worker processes.")
    parser.add_argument("--start", type=Path, help="Model folder to start from.")
    arguments = parser.parse_args()
    if bool(arguments.tasks) != bool(arguments.start):
        parser.error("--tasks and --start need each other")
    return arguments


def compare(root: Path, start: Start, num_kills: int, kills_per_run: float, generator: random.Random) -> dict[str, Any]:
    """Break runs until ``num_kills`` kills have met a living process; every run has to end like the unbroken one."""
    began = time.monotonic()
    whole = root / "whole"
    whole.mkdir()
    assert ends_within(start(whole), None)
    duration_s = time.monotonic() - began
    wanted = what_is_left(whole)
    seen = Counter[str]()
    num_kept = num_runs = 0
    while seen["runs killed"] + seen["workers killed"] < num_kills:
        folder = root / f"killed-{num_runs}"
        folder.mkdir()
        num_runs += 1
        recorded: dict[str, list[Seconds]] = {}
        pid = start(folder)
        while True:
            before = stored_at(folder)
            # Early ones and late ones, in sampling, learning and saving.
            is_last = seen["runs killed"] + seen["workers killed"] >= num_kills
            if ends_within(pid, None if is_last else generator.uniform(0.0, 2 * duration_s / kills_per_run)):
                break
            is_worker = kill_one(pid, generator)
            after = stored_at(folder)
            seen["workers killed" if is_worker else "runs killed"] += 1
            note_turns(folder, seen, recorded)
            lost = {name for name, at in before.items() if after.get(name) != at}
            assert not lost, f"stored before the kill, gone or run again after it: {sorted(lost)}"
            num_kept = max(num_kept, len(before))
            say(f"{dict(seen)}, {len(after)} stored")
            if not is_worker:
                pid = start(folder)
        assert_equal(what_is_left(folder), wanted)
        seen["turns on disk and made again"] += count_repeated(folder, recorded)
        seen["turns of whole runs"] += wanted["num_turns"]
        say("equal to the unbroken run")
        shutil.rmtree(folder)
    assert not seen["turns on disk and made again"], dict(seen)
    return {
        **seen,
        "num_runs": num_runs,
        "num_trajectories": len(wanted["trajectories"]),
        "most_kept_over_a_kill": num_kept,
        "unbroken_s": round(duration_s, 2),
        "weights_sha256": wanted["weights"],
    }


def ends_within(pid: int, delay_s: float | None) -> bool:
    """Wait for the process to end by itself, without an error; False when it lives after ``delay_s`` seconds."""
    deadline = time.monotonic() + (float("inf") if delay_s is None else delay_s)
    while not (ended := os.waitpid(pid, os.WNOHANG))[0]:
        if time.monotonic() >= deadline:
            return False
        time.sleep(0.005)
    assert ended[1] == 0, f"the run ended with status {ended[1]}"
    return True


def kill_one(pid: int, generator: random.Random) -> bool:
    """Kill one of the run's workers, or the run itself; return True for a worker."""
    workers = [child.pid for child in psutil.Process(pid).children() if "spawn_main" in " ".join(child.cmdline())]
    if workers and generator.random() < 0.5:
        os.kill(generator.choice(workers), signal.SIGKILL)
        return True
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return False


def stored_at(folder: Path) -> dict[str, str]:
    """Id of each stored trajectory -> when it was stored."""
    path = folder / "run.db"
    if not path.exists():
        return {}
    with RunStore.open(path) as store:
        return {row.id: row.created_at for row in store.rows(phase=PHASE)}


def note_turns(folder: Path, seen: Counter[str], recorded: dict[str, list[Seconds]]) -> None:
    """Note the turns on disk at a kill, by the name of their log, and episodes whose next action was being sampled."""
    for path in (folder / TURNS_FOLDER).glob("*.log"):
        with suppress(FileNotFoundError):  # its trajectory was stored meanwhile
            lines = [line for line in path.read_bytes().splitlines()[1:] if line.endswith(b"}")]
            entries = [json.loads(line.split(b" ", 1)[1]) for line in lines]
            outcomes = [seconds_of(entry) for entry in entries if entry["type"] == "outcome"]
            recorded[path.name] = outcomes
            seen["episodes in flight at kills"] += 1
            seen["turns on disk at kills"] += len(outcomes)
            seen["turns being sampled at kills"] += len(entries) == 2 * len(outcomes)


def seconds_of(turn: dict[str, Any]) -> Seconds:
    return turn["generate_s"], turn["tool_s"], turn["wait_s"]


def count_repeated(folder: Path, recorded: dict[str, list[Seconds]]) -> int:
    """Return the number of turns that were on disk at a kill and are others in the end: clocks show no time twice."""
    num_repeated = 0
    with RunStore.open(folder / "run.db") as store:
        for trajectory in store.trajectories(phase=PHASE):
            before = recorded.get(TurnLog(folder).path_of(trajectory.id).name, [])
            after = [seconds_of(turn.model_dump()) for turn in trajectory.turns]
            num_repeated += sum(one not in after for one in before)
    return num_repeated


def say(text: str) -> None:
    """Tell the person who waits."""
    print(text, file=sys.stderr, flush=True)


def what_is_left(folder: Path) -> dict[str, Any]:
    """Everything of a run that must not depend on kills."""
    with RunStore.open(folder / "run.db") as store:
        rows = [row.id for row in store.rows(phase=PHASE)]
        assert len(rows) == len(set(rows)), "a trajectory is stored twice"
        trajectories = {
            one.id: (
                hashlib.sha256(pack_ledger(one.ledger)).hexdigest(),
                one.verdict.kind,
                one.stop_reason,
                one.final_patch,
            )
            for one in store.trajectories(phase=PHASE)
        }
        num_turns = sum(row.num_turns for row in store.rows(phase=PHASE))
        names = [name for name in store.metric_names(PHASE) if not name.endswith("_s")]
        metrics = {name: store.metrics(PHASE, name) for name in names}
        groups = {(group.step, group.id): group.status for group in store.groups(phase=PHASE)}
    state = folder / "checkpoints" / state_name(PHASE)
    weights = hashlib.sha256((state / "model" / "model.safetensors").read_bytes()).hexdigest()
    (optimizer,) = (state / "training").glob("*.distcp")
    digest = hashlib.sha256(optimizer.read_bytes()).hexdigest()
    return {
        "trajectories": trajectories,
        "metrics": metrics,
        "groups": groups,
        "num_turns": num_turns,
        "weights": weights,
        "optimizer": digest,
    }


def assert_equal(got: dict[str, Any], wanted: dict[str, Any]) -> None:
    for name, value in wanted.items():
        assert got[name] == value, f"{name} differ from those of the unbroken run: {got[name]!r}, {value!r}"


# --- a tiny run in a fork of this process: no import, no sandbox, a fraction of a second -----------------------------


def tiny_start(root: Path) -> Start:
    """Teach a tiny model by a scripted teacher, so that its groups are mixed; runs are forks of this process."""
    tokenizer = train_tokenizer(TEXTS, 420, 40)
    config = MODEL.model_copy(update={"vocab_size": len(tokenizer)})
    base = root / "base"
    base.mkdir()
    save_checkpoint(create_model(config), tokenizer, base / "checkpoints" / "base")
    with open_tiny(base) as run:
        collect = CollectConfig(select=TrainingSelection(num_tasks=4), num_samples=12, max_per_task=12)
        kept = collect_successes(run, PolicyRef("teacher"), collect, "teacher")
        optimizer = OptimizerConfig(learning_rate=1e-2, weight_decay=0.0)
        sft = SftConfig(optimizer=optimizer, batch_size=8, num_epochs=25)
        samples = supervised_samples(kept, sft)
        fit_samples(run.checkpoint("base"), run.checkpoint("sft"), samples, sft, run.store, run.progress)

    def start(folder: Path) -> int:
        pid = os.fork()
        if pid:
            return pid
        status = 1
        try:
            if not (folder / "checkpoints" / "sft").exists():
                temporary = folder / f"sft-{os.getpid()}"
                shutil.copytree(base / "checkpoints" / "sft", temporary)
                (folder / "checkpoints").mkdir(exist_ok=True)
                temporary.rename(folder / "checkpoints" / "sft")
            with open_tiny(folder, base) as run:
                for _ in RLLoop(run, RL, "sft").iterations():
                    pass
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)

    return start


@contextmanager
def open_tiny(folder: Path, base: Path | None = None) -> Iterator[Run]:
    """A run over four tiny tasks in ``folder``, with the tokenizer of ``base``."""
    path = folder / "run.db"
    renderer = ChatRenderer(load_tokenizer((base or folder) / "checkpoints" / "base"))
    pool = LocalPool(
        ROLLOUT,
        lambda: ScriptedBackend(scripted_answer()),
        lambda _: TaskLayers(folder, folder),
        renderer,
        turn_log=TurnLog(folder / TURNS_FOLDER),
    )
    tasks = {f"tiny-{number}": scripted_task(f"tiny-{number}") for number in range(4)}
    with RunStore.open(path) if path.exists() else RunStore.create(path) as store:
        yield Run(folder, store, pool, tasks)


# --- the command with real tasks -------------------------------------------------------------------------------------


def real_start(arguments: argparse.Namespace) -> Start:
    command = [sys.executable, "-c", "from repairgym.cli.main import main; main()", "train", "rl"]

    def start(folder: Path) -> int:
        call = [*command, str(arguments.tasks), str(folder), str(arguments.start), *REAL]
        return subprocess.Popen(call, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL).pid

    return start


if __name__ == "__main__":
    main()
