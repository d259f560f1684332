"""Your package in, a trained and evaluated agent out: `python examples/your_package.py PACKAGE [FOLDER]`.

PACKAGE is a name in the catalogue, or in your own catalogue (`--catalogue mine.toml`, see docs/howto/make-tasks.md).
The defaults are small, about two minutes on two cores, and show the way; more tasks, episodes and iterations give a
better agent. `repairgym view FOLDER` shows every episode.
"""

import argparse

import repairgym


def main() -> None:
    """Build tasks, imitate a teacher, train by RL, and compare on functions that training never saw."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("package", nargs="?", default="texttable")
    parser.add_argument("folder", nargs="?", default="runs/your-package")
    parser.add_argument("--catalogue", default="", help="TOML file that describes your packages")
    parser.add_argument("--tasks", type=int, default=16, help="tasks to build")
    parser.add_argument("--iterations", type=int, default=2, help="iterations of RL")
    args = parser.parse_args()

    print("1. break the package in many ways; keep the bugs that its tests find")
    built = repairgym.build_tasks(
        f"{args.folder}/tasks", packages=[args.package], num_tasks=args.tasks, catalogue=args.catalogue
    )
    tasks = repairgym.split_tasks(built)
    train = [task for task in tasks if task.split == "train"]
    print(f"   {len(train)} tasks to train on, {len(tasks) - len(train)} to test on")

    with repairgym.open_run(args.folder, tasks) as run:
        print("2. a scripted teacher repairs the training tasks; the base model imitates it")
        lessons = repairgym.run_episodes(run, repairgym.load_policy("teacher"), train, num_samples=4, phase="teacher")
        student = repairgym.train_sft(run, lessons)

        print("3. the student learns from its own attempts")
        trained = repairgym.train_rl(run, start="sft", num_iterations=args.iterations, num_groups=4)

        print("4. both are tested on the functions that training never saw")
        for policy in (student, trained):
            print(f"   {policy.name}: Pass@1 {repairgym.evaluate(run, policy, num_samples=4):.0%}")
        print(f"the trained model: {run.checkpoint('rl')}; every episode: repairgym view {args.folder}")


if __name__ == "__main__":  # workers are new interpreters that import this file
    main()
