r"""Runs the released mini-swe-agent on our tasks against `repairgym serve`, and writes what `repairgym grade` reads.

    repairgym serve --policy shell-oracle --tasks tasks port=8000 &
    python examples/mini_swe_agent.py tasks out --mini VENV/bin/mini \
        --base-url http://127.0.0.1:8000/v1 --model shell-oracle
    repairgym grade tasks out/preds.json
    repairgym trajectories import runs/mini out --tasks tasks --graded out/preds-graded

It ends with status 1 when mini failed on a task, rather than ended without a patch.
The agent works in a copy of the task's tree that is a git repository with one commit; its submission is the diff.
Commands run on this machine without a sandbox: use a scripted model, or run all of this in a container.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from repairgym.records import Task
from repairgym.tasks.build.validation import pinned_tree
from repairgym.tasks.layers.store import LayerStore
from repairgym.tasks.store import TaskStore

ENDED = ("Submitted", "LimitsExceeded")
"""How mini ends when it worked, whatever the agent achieved."""
GIT = ("git", "-c", "user.name=agent", "-c", "user.email=agent@localhost")
ENVIRONMENT = {
    "MSWEA_CONFIGURED": "true",  # no questions at the first start
    "MSWEA_COST_TRACKING": "ignore_errors",  # our models cost nothing
    "MSWEA_SILENT_STARTUP": "1",
    "MSWEA_MODEL_RETRY_STOP_AFTER_ATTEMPT": "3",  # failures on this machine are permanent
    "OPENAI_API_KEY": os.environ.get("REPAIRGYM_SERVE_TOKEN", "none"),
}


def check_out(task: Task, store: LayerStore, folder: Path) -> None:
    """Write the agent's view of a task as a repository with one commit."""
    shutil.copytree(pinned_tree(task, store), folder, symlinks=True)
    for path, text in task.base_files.items():
        file = folder / path
        if text is None:
            file.unlink(missing_ok=True)
        else:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8", newline="")
    for command in (("init", "-q"), ("add", "-A", "-f"), ("commit", "-q", "-m", "The project")):
        subprocess.run((*GIT, *command), cwd=folder, check=True)


def run_agent(task: Task, arguments: argparse.Namespace, store: LayerStore, out: Path) -> tuple[str, str]:
    """Return the patch that the agent submits for one task, and why mini failed; both may be empty."""
    trajectory = out / f"{task.id.replace('/', '_')}.traj.json"
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "project"
        check_out(task, store, folder)
        command = [arguments.mini, "-y", "--exit-immediately", "-t", task.issue, "-o", str(trajectory)]
        command += ["-m", f"openai/{arguments.model}", "-c", "mini.yaml", "-c", f"environment.cwd={folder}"]
        command += ["-c", f"model.model_kwargs.api_base={arguments.base_url}"]
        environment = {**os.environ, **ENVIRONMENT, "MSWEA_GLOBAL_CONFIG_DIR": temporary}
        # Without a terminal, mini asks nothing and prints what it does.
        done = subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if not trajectory.is_file():
        raise SystemExit(f"mini left no trajectory (exit status {done.returncode}):\n{done.stdout}\n{done.stderr}")
    document = json.loads(trajectory.read_text(encoding="utf-8"))
    trajectory.write_text(json.dumps(document | {"instance_id": task.id}, indent=1), encoding="utf-8")
    information = document["info"]
    status = information.get("exit_status")
    is_failed = done.returncode != 0 or status not in ENDED
    problem = f"{task.id}: {status}, exit status {done.returncode}\n{done.stderr[-2000:]}" if is_failed else ""
    return str(information.get("submission") or ""), problem


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--mini", required=True, help="the command of mini-swe-agent, e.g. VENV/bin/mini")
    parser.add_argument("--base-url", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--num-tasks", type=int, default=0, help="0: all")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    store, predictions, problems = LayerStore(), {}, []
    chosen = list(TaskStore(arguments.tasks).load())
    for task in chosen[: arguments.num_tasks or None]:
        patch, problem = run_agent(task, arguments, store, arguments.out)
        problems += [problem] if problem else []
        predictions[task.id] = {
            "instance_id": task.id,
            "model_name_or_path": arguments.model,
            "model_patch": patch,
        }
        print(f"{task.id}: a patch of {len(patch)} characters", flush=True)
    (arguments.out / "preds.json").write_text(json.dumps(predictions, indent=1), encoding="utf-8")
    if problems:
        raise SystemExit("\n".join([f"mini failed on {len(problems)} of {len(predictions)} tasks:", *problems]))


if __name__ == "__main__":
    main()
