"""Chains through the pool, the tools and the grader; their costs; patches of a file."""

from __future__ import annotations

import json

import pytest

from repairgym.agent.allowance import Spending
from repairgym.config.models import Price
from repairgym.config.solving import SolveCommandConfig
from repairgym.grading.predictions.reading import read_predictions
from repairgym.inference.loading import load_tokenizer
from repairgym.inference.renderer import ChatRenderer
from repairgym.rollout.jobs import PolicyRef
from repairgym.rollout.local import LocalPool
from repairgym.rollout.store import RunStore
from repairgym.solving.search import search
from repairgym.solving.sources import Chains
from repairgym.solving.spending import spending_of, total
from repairgym.solving.visible import visible_view
from repairgym.tasks.build.validation import TaskLayers
from repairgym.testing.scripted import ScriptedBackend, scripted_answer, scripted_task
from repairgym.training.run import Run


@pytest.fixture
def sample(base, tmp_path):
    """Search with a scripted policy over a store that stays between calls; returns solution, messages and ids run."""

    def sample(policy: str, config: SolveCommandConfig):
        renderer, layers = ChatRenderer(load_tokenizer(base)), TaskLayers(tmp_path, tmp_path)
        pool = LocalPool(config.rollout, lambda: ScriptedBackend(scripted_answer()), lambda task: layers, renderer)
        path = tmp_path / "run.db"
        views = [visible_view(scripted_task(), is_gold_kept=True)]
        messages = []
        with RunStore.open(path) if path.exists() else RunStore.create(path) as store:
            before = store.trajectory_ids(phase="solve")
            run = Run(tmp_path, store, pool, {}, 0, lambda *parts: messages.append(parts))
            (solution,) = search(views, Chains(run, views, PolicyRef(policy), "solve", None), config)
            return solution, messages, store.trajectory_ids(phase="solve") - before

    return sample


def test_an_oracle_solves_at_the_first_chain(sample):
    solution, messages, ran = sample("oracle", SolveCommandConfig())
    assert (solution.outcome, len(solution.candidates), len(ran)) == ("solved", 1, 1)
    assert "+    return a <= b" in solution.patch
    assert messages == [("solve", 1, 1, "")]


def test_a_resumed_search_repeats_nothing_and_takes_a_larger_budget(sample):
    first, _, ran = sample("submit-at-once", SolveCommandConfig())
    assert (first.outcome, len(ran)) == ("abstained", 4)
    again, _, ran = sample("submit-at-once", SolveCommandConfig())
    assert (again, ran) == (first, set())
    larger = SolveCommandConfig.model_validate({"strategy": {"type": "best_of_n", "num_chains": 6}})
    longer, _, ran = sample("submit-at-once", larger)
    assert (longer.candidates[:4], len(ran)) == (first.candidates, 2)


def test_costs_follow_from_the_trajectory(trajectory_maker):
    trajectory = trajectory_maker()
    price = Price(input_usd=1.0, output_usd=10.0)
    spent = spending_of(trajectory, price)
    spans = [turn.action_span for turn in trajectory.turns]
    num_sampled = sum(end - start for start, end in spans)
    assert (spent.num_sampled_tokens, spent.num_forward_tokens) == (num_sampled, len(trajectory.ledger))
    assert spent.num_test_runs == 2  # one turn, and the final run
    assert spent.wall_s == pytest.approx(0.35)
    assert spent.cost_usd == pytest.approx((sum(start for start, _ in spans) + 10 * num_sampled) / 1e6)
    assert spending_of(trajectory, None).cost_usd == 0.0


def test_chains_of_a_wave_share_their_seconds():
    waves = [(0, Spending(wall_s=1.0, num_test_runs=1)), (0, Spending(wall_s=3.0)), (1, Spending(wall_s=2.0))]
    assert total(waves) == Spending(wall_s=5.0, num_test_runs=1)


def test_a_file_may_hold_several_patches_of_an_instance(tmp_path):
    path = tmp_path / "preds.jsonl"
    rows = [{"instance_id": "a", "model_name_or_path": "m", "model_patch": text} for text in ("x", "y", "x")]
    path.write_text("".join(json.dumps(row) + "\n" for row in [*rows, {"instance_id": "b"}]))
    file = read_predictions(path, has_several=True)
    assert [prediction.model_patch for prediction in file.predictions] == ["x", "y", "x"]
    assert [entry.kind for entry in file.rejected] == ["malformed"]
    assert read_predictions(path).predictions == ()
