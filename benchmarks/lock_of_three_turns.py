"""One policy trained on the lock of three turns: a child of `repairgym sweep` that costs seconds.

Run: ``python benchmarks/lock_of_three_turns.py RUN [a.b=value ...]``. The settings are those of `AlgorithmConfig`, with
``num_updates`` and ``num_groups`` (of eight episodes) for the budget. The lock and the trainer are those of
`tests/learning/test_known_problems.py`; the value of a policy is exact, so that only training differs between seeds.
Writes ``RUN/result.json``: ``value`` (the last policy's), ``mean_value`` (over all checks), ``num_sampled_tokens``.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.learning.test_known_problems import GROUP_SIZE, LOCK, make_trainer, sample_episodes, update, value_of

EVERY = 4
NOT_APPLIED = ("negative_weight", "is_error_masked", "reward")
"""Settings that rollouts apply, which the lock does not have."""


def train(num_updates: int, num_groups: int, seed: int, overrides: list[str]) -> dict[str, float]:
    """Train one policy and return its values."""
    torch.set_num_threads(1)
    model, trainer = make_trainer(overrides, seed)
    generator = np.random.default_rng(seed)
    values = []
    for step in range(1, num_updates + 1):
        update(trainer, LOCK, *sample_episodes(model, LOCK, num_groups, generator))
        if step % EVERY == 0 or step == num_updates:
            values.append(value_of(model, LOCK))
    num_sampled = num_updates * num_groups * GROUP_SIZE * LOCK.num_turns
    return {"value": values[-1], "mean_value": float(np.mean(values)), "num_sampled_tokens": num_sampled}


def main() -> None:
    """Read the budget out of the overrides, train, write the result."""
    folder, *overrides = sys.argv[1:]
    own = {"num_updates": 48, "num_groups": 4, "seed": 0}
    for text in list(overrides):
        name, _, value = text.partition("=")
        if name in own:
            own[name] = int(value)
            overrides.remove(text)
        if name.partition(".")[0] in NOT_APPLIED:
            sys.exit(f"{text}: this setting acts on rollouts, and the lock has none; leave it out")
    result = train(own["num_updates"], own["num_groups"], own["seed"], overrides)
    (Path(folder) / "result.json").write_text(json.dumps(result))


if __name__ == "__main__":
    main()
