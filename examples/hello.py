"""Load a task, run a policy, grade: `python examples/hello.py` (about a minute on two cores).

The first call downloads one small package, breaks it in a few ways and certifies each bug as a task.
"""

import sys

import repairgym


def main(folder: str = "runs/hello") -> None:
    """Run the shipped base model and a script that knows the repair on one task."""
    tasks = repairgym.build_tasks(f"{folder}/tasks", packages=["humanize"], num_tasks=2)
    task = tasks[0]
    print(f"task {task.id}: {task.issue.splitlines()[0]}")

    with repairgym.open_run(folder, tasks) as run:
        for name in ("base", "oracle"):
            policy = repairgym.load_policy(name)
            trajectories = repairgym.run_episodes(run, policy, [task], num_samples=4, phase=name)
            for trajectory in trajectories:
                print(f"{name}: {len(trajectory.turns)} turns, {trajectory.verdict.kind}: {trajectory.verdict.reason}")

    print(f"the oracle's patch:\n{trajectory.final_patch}")
    verdict = repairgym.grade(task, trajectory.final_patch)
    print(f"graded again in a fresh process and sandbox: {verdict.kind}")


if __name__ == "__main__":  # workers are new interpreters that import this file
    main(*sys.argv[1:])
