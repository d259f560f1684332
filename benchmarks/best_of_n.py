"""Compares a run of `repairgym solve` with the expectation of best-of-n with a stop over independent chains.

Usage: python benchmarks/best_of_n.py TASKS SOLVE_RUN ROLLOUT_RUN [--chains 4]

Reads graded solutions (`repairgym solve --grade`) and a rollout of the same policy and tasks under another seed. The
expectation is exact: the mean over all orders of the stored chains, each stopped at its first visible pass. Prints
means with 95 % bootstrap intervals over tasks.
"""

from __future__ import annotations

import argparse
import itertools
import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from repairgym.evaluation.bootstrap import bootstrap_spread
from repairgym.records import Task, TestOutcome, Trajectory, VerdictKind
from repairgym.rollout.store import RunStore
from repairgym.tasks.store import TaskStore


class Chain(NamedTuple):
    """What a stop and an evaluation see of a chain."""

    is_seen_to_pass: bool
    is_right: bool
    num_tokens: int


def read_chain(trajectory: Trajectory, task: Task) -> Chain:
    """Return the chain of a trajectory that was graded by hidden tests."""
    verdict = trajectory.verdict
    outcomes = [verdict.tests[name].outcome for name in task.visible_tests if name in verdict.tests]
    passes = len(outcomes) == len(task.visible_tests) and set(outcomes) == {TestOutcome.PASSED}
    is_seen = passes and bool(trajectory.final_patch) and verdict.kind is not VerdictKind.EXPLOITED
    return Chain(is_seen, verdict.kind is VerdictKind.PASSED, int(trajectory.ledger.is_action.sum()))


def stop(chains: Sequence[Chain]) -> tuple[float, float]:
    """Return whether the first visible pass of ``chains`` is right, and the tokens until then."""
    for number, chain in enumerate(chains, 1):
        if chain.is_seen_to_pass:
            return float(chain.is_right), float(sum(it.num_tokens for it in chains[:number]))
    return 0.0, float(sum(it.num_tokens for it in chains))


def expectation(chains: Sequence[Chain], num: int) -> tuple[float, float]:
    """Return the mean of `stop` over all orders of ``num`` of ``chains``."""
    solved, tokens = zip(*map(stop, itertools.permutations(chains, num)), strict=True)
    return float(np.mean(solved)), float(np.mean(tokens))


def show(name: str, values: Mapping[str, float]) -> None:
    """Print a mean with its interval."""
    numbers = list(values.values())
    largest = max(1.0, *map(abs, numbers))
    spread = bootstrap_spread(numbers, bounds=(-largest if min(numbers) < 0 else 0.0, largest))
    print(f"{name}: {np.mean(numbers):.4g} ({spread.ci_low:.4g} to {spread.ci_high:.4g}), {len(values)} tasks")


def main() -> None:
    """Read both runs and print the comparison."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("tasks", "solved", "rollout"):
        parser.add_argument(name, type=Path)
    parser.add_argument("--chains", type=int, default=4)
    args = parser.parse_args()
    tasks = {task.id: task for task in TaskStore(args.tasks).load()}
    chains = defaultdict(list)
    with RunStore.open(args.rollout / "run.db", is_read_only=True) as store:
        for trajectory in store.trajectories():
            chains[trajectory.task_id].append(read_chain(trajectory, tasks[trajectory.task_id]))
    rows = [json.loads(file.read_text()) for file in sorted((args.solved / "solutions").glob("*.json"))]
    got = {row["task_id"]: float((row["evaluation"] or {}).get("kind") == "passed") for row in rows}
    spent = {row["task_id"]: float(row["spending"]["num_sampled_tokens"]) for row in rows}
    if got.keys() != chains.keys():
        raise SystemExit(f"{len(got)} tasks are solved, {len(chains)} rolled out; select the same ones")
    expected = {name: expectation(chains[name], args.chains) for name in got}
    one = {name: float(np.mean([chain.is_right for chain in chains[name]])) for name in got}
    show("one chain", one)
    show(f"expected best of {args.chains} with a stop", {name: value for name, (value, _) in expected.items()})
    show("solve", got)
    show("solve - expected", {name: got[name] - expected[name][0] for name in got})
    show("solve - one chain", {name: got[name] - one[name] for name in got})
    show("tokens of one chain", {name: float(np.mean([it.num_tokens for it in chains[name]])) for name in got})
    show("tokens, expected", {name: tokens for name, (_, tokens) in expected.items()})
    show("tokens of solve", spent)
    num_wrong = sum(bool(row["patch"]) and not got[row["task_id"]] for row in rows)
    print(f"false accepts: {num_wrong} of {sum(bool(row['patch']) for row in rows)} patches")


if __name__ == "__main__":
    main()
