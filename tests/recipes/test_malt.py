"""MALT: values, samples and pairs of a tree made by hand; trees, checkpoints and their policy on a tiny model."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from repairgym.agent.review import RIGHT, ROLES, WRONG, judgement_of, review_turn
from repairgym.agent.routing import Team, read_members
from repairgym.config.learning import OptimizerConfig, SftConfig, StepDpoConfig
from repairgym.config.loading import load_config
from repairgym.config.models import EngineConfig
from repairgym.config.pipeline import PipelineConfig
from repairgym.config.rollout import RolloutConfig
from repairgym.config.rounds import MaltConfig
from repairgym.config.selection import TrainingSelection
from repairgym.errors import ConfigError, TaskError
from repairgym.inference.loading import load_model
from repairgym.ledger import UNKNOWN_VERSION, Parent
from repairgym.recipes.malt import STAGE, RoleTrees, malt, tree_metrics
from repairgym.recipes.role_credit import positives, role_nodes, role_pairs
from repairgym.records import Trajectory, VerdictKind
from repairgym.rollout.jobs import PolicyRef, make_groups, num_shared_turns

PASSED, FAILED = VerdictKind.PASSED, VerdictKind.FAILED
PIPELINE = PipelineConfig(review="actions", max_len_tokens=300, max_turns=8, max_action_tokens=8)
FAST = OptimizerConfig(learning_rate=3e-3, weight_decay=0.0)
CONFIG = MaltConfig(
    select=TrainingSelection(num_tasks=4),
    sft=SftConfig(optimizer=FAST, batch_size=8, num_epochs=2),
    step_dpo=StepDpoConfig(optimizer=FAST),
    rollout=RolloutConfig(pipeline=PIPELINE),
)


@pytest.fixture
def make_episode(trajectory_maker):
    """An episode of a reviewed pipeline; the letters stand for patch, review and refinement, empty for none."""

    def make(letters: str, kind: VerdictKind = PASSED, task_id: str = "t", name: str = "") -> Trajectory:
        patch, review, refinement = (*letters, "", "")[:3]
        steps = [("edit", patch, "@1 x", ""), ("submit", "", "failed 1 of 1: no", "")]
        if review:
            is_read = review != "?"
            steps.append(("review", review, "undone", "") if is_read else ("", "", "error: one line", "format"))
        if refinement:
            steps += [("", "", "error: one line", "format"), ("edit", refinement, "@1 y", ""), ("submit", "", "ok", "")]
        episode = trajectory_maker(name or letters, task_id, steps=steps, kind=kind)
        judged = {"judgement": RIGHT if review == "r" else WRONG}
        turns = (it.model_copy(update={"arguments": judged} if it.tool == "review" else {}) for it in episode.turns)
        return replace(episode, turns=tuple(it.model_copy(update={"state": "s"}) for it in turns))

    return make


@pytest.fixture
def tree(make_episode):
    """Patch A passes behind most refinements, B behind few; one review of A is unreadable, one end of B invalid."""
    return [
        make_episode("Arx"),
        make_episode("Ary"),
        make_episode("Arz", FAILED),
        make_episode("Awx", FAILED),
        make_episode("Awy", VerdictKind.EXPLOITED),
        make_episode("A?x"),
        make_episode("A?y"),
        make_episode("Brx", FAILED),
        make_episode("Bwx"),
        make_episode("Bwy", FAILED),
        make_episode("Brv", VerdictKind.INVALID),
        make_episode("C", FAILED),
    ]


def values(nodes, role):
    return [(node.turns[0].action, node.value) for node in nodes if node.role == role]


def test_values_by_hand_are_the_mean_verdicts_below(tree):
    nodes = role_nodes(tree)
    patches = [("edit A", 4 / 7), ("edit B", 1 / 3), ("edit C", 0.0)]
    assert values(nodes, "patcher") == patches
    reviews = [("review r", 2 / 3), ("review w", 0.0), ("edti @1", 1.0), ("review r", 0.0), ("review w", 0.5)]
    assert values(nodes, "reviewer") == reviews
    assert [value for _, value in values(nodes, "refiner")] == [1, 1, 0, 0, 0, 1, 1, 0, 1, 0]
    metrics = tree_metrics(nodes, 0.5)
    assert metrics["malt/num_reviewer_nodes"] == 5
    assert metrics["malt/reviewer_positive_share"] == 1 / 5  # the unreadable one is none, 0.5 is not above 0.5
    assert metrics["malt/patcher_positive_share"] == 1 / 3
    assert (metrics["malt/right_pass_rate"], metrics["malt/num_right_ends"]) == (2 / 4, 4)
    assert (metrics["malt/wrong_pass_rate"], metrics["malt/num_wrong_ends"]) == (1 / 4, 4)


def test_equal_tokens_behind_one_history_are_one_node(make_episode):
    nodes = role_nodes(
        [make_episode("Arx", name="1"), make_episode("Arx", FAILED, name="2"), make_episode("Arx", task_id="u")]
    )
    assert Counter(node.role for node in nodes) == dict.fromkeys(ROLES, 2)
    assert {(node.task_id, node.value) for node in nodes} == {("t", 0.5), ("u", 1.0)}


def test_a_sample_learns_its_role_behind_what_the_role_saw(tree):
    episode, nodes = tree[0], role_nodes(tree[:1])
    at = review_turn(episode.turns)
    parts = {"patcher": episode.turns[:at], "reviewer": episode.turns[at : at + 1], "refiner": episode.turns[at + 1 :]}
    learned = np.zeros(len(episode.ledger), int)
    for node in nodes:
        sample = node.sample()
        assert np.array_equal(sample.token_id, episode.ledger.token_id[: len(sample)])
        spans = [turn.action_span for turn in parts[node.role]]
        expected = np.zeros(len(sample))
        for start, end in spans:
            expected[start:end] = 1.0
        assert np.array_equal(sample.weight, expected)
        assert len(sample) == spans[-1][1]
        learned[: len(sample)] += sample.weight > 0
    assert np.array_equal(learned == 1, episode.ledger.is_action)  # every sampled token, each by one role
    refiner = nodes[2]
    unreadable = slice(*refiner.turns[0].action_span)
    assert not refiner.sample(is_format_error_masked=True).weight[unreadable].any()
    assert refiner.sample().weight[unreadable].all()


def test_positives_are_above_the_threshold_and_at_most_so_many(tree):
    nodes = role_nodes(tree)
    by_role = {role: [node for node in nodes if node.role == role] for role in ROLES}
    assert [node.turns[0].action for node in positives(by_role["patcher"], 0.5, 9)] == ["edit A"]
    assert [node.value for node in positives(by_role["reviewer"], 0.5, 9)] == [2 / 3]
    assert [node.value for node in positives(by_role["reviewer"], 0.3, 9)] == [2 / 3, 0.5]
    assert len(positives(by_role["refiner"], 0.5, 9)) == 5
    assert len(positives(by_role["refiner"], 0.5, 2)) == 2


def test_pairs_by_hand_are_positives_against_negatives_behind_one_history(tree):
    nodes = role_nodes(tree)
    by_role = {role: [node for node in nodes if node.role == role] for role in ROLES}

    def named(pairs, role):
        known = {node.token_id.tobytes(): node for node in by_role[role]}
        return [
            tuple(
                known[it.token_id.tobytes()].turns[-1 if role != "refiner" else 1].action
                for it in (p.chosen, p.rejected)
            )
            for p in pairs
        ]

    # The best review of A is unreadable, so it is neither chosen nor rejected; those of B differ by nothing above 0.5.
    assert named(role_pairs(by_role["reviewer"], 0.5, 9), "reviewer") == [("review r", "review w")]
    both = named(role_pairs(by_role["reviewer"], 0.3, 9), "reviewer")
    assert both == [("review r", "review w"), ("review w", "review r")]
    assert len(role_pairs(by_role["reviewer"], 0.3, 1)) == 1
    refined = named(role_pairs(by_role["refiner"], 0.5, 9), "refiner")
    assert refined == [("edit x", "edit z"), ("edit y", "edit z"), ("edit x", "edit y")]
    assert len(role_pairs(by_role["patcher"], 0.5, 9)) == 2


def test_a_tree_of_three_by_three_by_three_is_the_same_after_a_restart(make_episode):
    ends = []
    for _ in range(2):
        trees = RoleTrees(CONFIG, ["t"], 7)
        waiting = trees.jobs()
        kinds = Counter()
        while waiting:
            job = waiting.pop(0)
            at = job.prefix.num_turns if job.prefix else 0
            kinds[at] += 1
            # Parents are stored, so a branch holds their turns, too.
            made = make_episode(f"Ar{kinds.total()}", name=job.trajectory_id)
            parent = Parent(trajectory_id=job.prefix.trajectory.id, num_turns=at) if job.prefix else None
            waiting += trees.grow(replace(made, parent=parent, group_id=job.group_id))
        assert kinds == {0: 3, 2: 6, 3: 18}
        ends.append([(job.trajectory_id, job.seed, job.group_id) for job in trees.jobs()])
        assert len(set(ends[-1])) == trees.num_jobs == 27
        assert {group for *_, group in ends[-1]} == {f"malt/0/t#{number}" for number in range(3)}
    assert ends[0] == ends[1]
    assert trees.grow(make_episode("Arx", VerdictKind.INVALID)) == []
    assert trees.grow(make_episode("A", FAILED, name="no review")) == []


def test_trees_train_three_roles_whose_file_is_a_policy(open_taught, make_pool, tmp_path):
    run = open_taught(tmp_path)
    run.pool = make_pool(tmp_path, pipeline=PIPELINE, engine=EngineConfig(num_slots=16, max_len_tokens=300))
    run.checkpoint("sft").rename(run.checkpoint("start"))
    file = malt(run, CONFIG)
    episodes = list(run.store.trajectories(phase=STAGE))
    reviewed = [it for it in episodes if len(it.turns) > review_turn(it.turns)]
    assert reviewed
    chains = [it for it in reviewed if it.parent is None]
    # Two more reviews of each patch; two more refinements of each review, whether a patch or a branch sampled it.
    refined = [it for it in reviewed if num_shared_turns(it) <= review_turn(it.turns) < len(it.turns) - 1]
    assert len(episodes) == 12 + 2 * len(chains) + 2 * len(refined)
    assert {judgement_of(it.turns[review_turn(it.turns)]) for it in reviewed} >= {RIGHT, WRONG}
    for episode in episodes:  # a branch owns what it sampled itself
        own = [slice(*turn.action_span) for turn in episode.turns[episode.parent.num_turns if episode.parent else 0 :]]
        assert episode.ledger.is_action.sum() == sum(span.stop - span.start for span in own)
    team = read_members(file)
    assert isinstance(team, Team)
    start = load_model(run.checkpoint("start")).state_dict()
    for role in ROLES:
        num_positives = run.store.metrics(STAGE, f"malt/num_{role}_positives")[0][1]
        weights = load_model(run.checkpoint(role)).state_dict()
        assert num_positives
        assert any(not value.equal(start[name]) for name, value in weights.items())
    # The team runs: each role by its own weights, and nobody learns its tokens by policy gradients.
    jobs = make_groups("team", 0, ["test-0"], 4, 0)
    played = run.run_jobs(PolicyRef("team", router=team), jobs, phase="team")
    assert all(episode.verdict.is_valid for episode in played)
    versions = {int(it) for episode in played for it in episode.ledger.policy_version[episode.ledger.is_action]}
    assert versions == {UNKNOWN_VERSION}
    assert malt(run, CONFIG) == file  # a resumed run samples and trains nothing again
    assert len(list(run.store.trajectories(phase=STAGE))) == len(episodes)


def test_nothing_to_imitate_and_roles_without_reviews_are_errors(open_run, make_pool, tmp_path):
    run = open_run(tmp_path)
    run.pool = make_pool(tmp_path, pipeline=PIPELINE, engine=EngineConfig(num_slots=16, max_len_tokens=300))
    run.checkpoint("base").rename(run.checkpoint("start"))
    with pytest.raises(TaskError, match="nothing to imitate"):
        malt(run, CONFIG.model_copy(update={"num_patches": 1, "select": TrainingSelection(num_tasks=1)}))
    for wrong, message in {
        "rollout.pipeline.review=none": "pipeline with reviews",
        "sft.thoughts=require": "as they were sampled",
    }.items():
        with pytest.raises(ConfigError, match=message):
            load_config(MaltConfig, None, [wrong])
