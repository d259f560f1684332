"""Hints at wasted turns: which forks follow a failure, exact records, the control, and what is imitated."""

from __future__ import annotations

from collections import Counter

import pytest

from repairgym.agent.wasted_turns import DETECTORS, wasted_turns
from repairgym.config.learning import OptimizerConfig, SftConfig
from repairgym.config.loading import load_config
from repairgym.config.recipes import CollectConfig
from repairgym.config.rounds import HintsConfig
from repairgym.config.selection import TrainingSelection
from repairgym.errors import ConfigError, TaskError
from repairgym.inference.loading import load_model, load_tokenizer
from repairgym.learning.samples import policy_sample, supervised_sample
from repairgym.ledger import UNKNOWN_VERSION
from repairgym.recipes.hints import STAGE, Forks, hints
from repairgym.records import VerdictKind
from repairgym.rollout.jobs import PolicyRef
from repairgym.training.supervised import collect_successes, fit_samples, supervised_samples

FAST = OptimizerConfig(learning_rate=1e-2, weight_decay=0.0)
CONFIG = HintsConfig(
    select=TrainingSelection(num_tasks=4),
    num_samples=12,
    num_forks=2,
    sft=SftConfig(optimizer=FAST, batch_size=8, num_epochs=2),
)


@pytest.fixture
def run(open_run, tmp_path):
    """A run that starts with a student of the teacher, which fails sometimes."""
    opened = open_run(tmp_path)
    collect = CollectConfig(select=TrainingSelection(num_tasks=4), num_samples=12, max_per_task=12)
    kept = collect_successes(opened, PolicyRef("teacher"), collect, "teacher")
    config = SftConfig(optimizer=FAST, batch_size=8, num_epochs=25)
    samples = supervised_samples(kept, config)
    fit_samples(opened.checkpoint("base"), opened.checkpoint("start"), samples, config, opened.store, opened.progress)
    return opened


def test_failures_are_forked_before_their_wasted_turns_with_and_without_a_hint(run):
    tokenizer = load_tokenizer(run.checkpoint("start"))
    target = hints(run, CONFIG)
    episodes = list(run.store.trajectories(phase=STAGE))
    chains = {it.id: it for it in episodes if it.parent is None}
    forks = [it for it in episodes if it.parent is not None]
    assert len(chains) == 48
    assert forks, "the student wastes turns"
    counts = Counter(it.parent.trajectory_id for it in forks)
    for id_, chain in chains.items():
        places = [place for place in wasted_turns(chain.turns) if place[1] > 0][: CONFIG.max_places]
        expected = 2 * CONFIG.num_forks * len(places) if chain.verdict.kind is VerdictKind.FAILED else 0
        assert counts[id_] == expected
    for fork in forks:
        parent = chains[fork.parent.trajectory_id]
        kind, arm = fork.id.rpartition("#")[0].split("/")[-2:]
        at = fork.parent.num_turns
        assert (kind, at) in list(wasted_turns(parent.turns))
        assert fork.turns[at - 1].observation == parent.turns[at - 1].observation
        assert DETECTORS[kind][1] not in tokenizer.decode(fork.ledger.token_id.tolist())
        own = [slice(*turn.action_span) for turn in fork.turns[at:]]
        versions = {int(version) for span in own for version in fork.ledger.policy_version[span]}
        assert versions == ({UNKNOWN_VERSION} if arm == "hinted" else {0})
        # Only what the fork itself sampled is learned, behind a history without the hint.
        assert supervised_sample(fork).num_learned == sum(span.stop - span.start for span in own)
        if arm == "hinted":
            with pytest.raises(ValueError, match="no sampling log-probability"):
                policy_sample(fork, 1.0)
    metrics = {name: run.store.metrics(STAGE, f"hints/{name}")[0][1] for name in ("num_places", "num_forks")}
    assert metrics["num_places"] == len(forks) / 4
    assert metrics["num_forks"] == sum(it.verdict.is_valid for it in forks)
    rates = [run.store.metrics(STAGE, f"hints/{arm}_pass_rate")[0][1] for arm in ("hinted", "unhinted")]
    for arm, rate in zip(("hinted", "unhinted"), rates, strict=True):
        of_arm = [it.verdict.kind is VerdictKind.PASSED for it in forks if f"/{arm}#" in it.id and it.verdict.is_valid]
        assert rate == sum(of_arm) / len(of_arm)
    start = load_model(run.checkpoint("start")).state_dict()
    assert any(not value.equal(start[name]) for name, value in load_model(target).state_dict().items())


def test_a_resumed_run_makes_the_same_forks(trajectory_maker):
    steps = (("edit", "@1", "x", ""), ("submit", "", "ok", ""))
    made = []
    for _ in range(2):
        forks = Forks(HintsConfig(num_samples=1, num_forks=1), ["t"], 7)
        (chain,) = forks.jobs()
        failed = trajectory_maker(chain.trajectory_id, "t", steps=steps, kind=VerdictKind.FAILED)
        states = (turn.model_copy(update={"state": f"{at}"}) for at, turn in enumerate(failed.turns))
        object.__setattr__(failed, "turns", tuple(states))
        jobs = forks.grow(failed)
        assert forks.grow(trajectory_maker("passed", "t", steps=steps)) == []
        made.append([(job.trajectory_id, job.seed, job.hint, job.group_id) for job in jobs])
        assert forks.num_jobs == 3
    assert made[0] == made[1]
    assert [id_.rpartition(":")[2] for id_, *_ in made[0]] == [
        "1/submits_untested/hinted#0",
        "1/submits_untested/unhinted#0",
    ]


def test_nothing_to_imitate_and_hints_that_nobody_would_see_are_errors(open_run, tmp_path):
    run = open_run(tmp_path)
    run.checkpoint("base").rename(run.checkpoint("start"))
    with pytest.raises(TaskError, match="nothing to imitate"):
        hints(run, HintsConfig(select=TrainingSelection(num_tasks=1), num_samples=1))
    for wrong in ("rollout.pipeline.thinking=dropped", "rollout.pipeline.context.type=elision"):
        with pytest.raises(ConfigError, match="one history"):
            load_config(HintsConfig, None, [wrong])
