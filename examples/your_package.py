"""Your repository in, a trained and evaluated agent out: `python examples/your_package.py SOURCE [FOLDER]`.

SOURCE is a git repository (path or URL), your catalogue file (`*.toml`, see docs/howto/make-tasks.md) or a package of
the shipped catalogue. The defaults are small, about two minutes on two cores; more tasks, episodes and iterations give
a better agent. `repairgym view FOLDER` shows every episode.
"""

import argparse
import json
from pathlib import Path

import repairgym


def describe(args: argparse.Namespace) -> str:
    """Return a catalogue file for the git repository ``args.source``: its newest commit is what gets broken."""
    url = str(Path(args.source).resolve()) if Path(args.source).exists() else args.source
    name = Path(args.source).resolve().name.removesuffix(".git")
    entry = {"name": name, "split": "train", "url": url, "root": "src" if args.sources[0].startswith("src/") else ""}
    entry |= {"sources": args.sources, "tests": args.tests, "requirements": args.requirements}
    path = Path(args.folder, "catalogue.toml")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("[[repository]]\n" + "".join(f"{key} = {json.dumps(value)}\n" for key, value in entry.items()))
    return str(path)


def main() -> None:
    """Build tasks, imitate a teacher, train by RL, and compare on functions that training never saw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", nargs="?", default="texttable")
    parser.add_argument("folder", nargs="?", default="runs/your-package")
    parser.add_argument("--sources", nargs="+", default=["src/**/*.py"], help="git: files that may be broken")
    parser.add_argument("--tests", nargs="+", default=["tests/test_*.py"], help="git: fast test files")
    parser.add_argument("--requirements", nargs="*", default=[], help="git: what the tests need beyond pytest")
    parser.add_argument("--tasks", type=int, default=16, help="tasks to build")
    parser.add_argument("--iterations", type=int, default=2, help="iterations of RL")
    args = parser.parse_args()
    is_git = Path(args.source).is_dir() or "://" in args.source
    catalogue = describe(args) if is_git else args.source if args.source.endswith(".toml") else ""

    print("1. break the code in many ways; keep the bugs that its tests find")
    packages = [] if catalogue else [args.source]
    built = repairgym.build_tasks(f"{args.folder}/tasks", packages, num_tasks=args.tasks, catalogue=catalogue)
    tasks = repairgym.split_tasks(built)
    train = [task for task in tasks if task.split == "train"]
    print(f"   {len(train)} tasks to train on, {len(tasks) - len(train)} to test on")
    with repairgym.open_run(args.folder, tasks) as run:
        print("2. a scripted teacher repairs the training tasks; the base model imitates it")
        lessons = repairgym.run_episodes(run, repairgym.load_policy("teacher"), train, num_samples=4, phase="teacher")
        student = repairgym.train_sft(run, lessons)
        print("3. the student learns from its own attempts, and both are tested on functions that training never saw")
        trained = repairgym.train_rl(run, start="sft", num_iterations=args.iterations, num_groups=4)
        for stage, policy in (("sft", student), (f"rl-{args.iterations}", trained)):
            print(f"   {stage}: Pass@1 {repairgym.evaluate(run, policy, num_samples=4, stage=stage):.0%}")
        print(f"the trained model: {run.checkpoint('rl')}; every episode: repairgym view {args.folder}")


if __name__ == "__main__":  # workers are new interpreters that import this file
    main()
