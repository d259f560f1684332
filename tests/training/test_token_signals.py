"""What an update learned of each token is in the store, at the places of the ledger, and equals the samples."""

import numpy as np

from repairgym.config.learning import AlgorithmConfig, OptimizerConfig
from repairgym.config.recipes import RlConfig
from repairgym.learning.learned_tokens import LearnedTokens
from repairgym.rollout.signals import TokenSignals, pack_signals, unpack_signals
from repairgym.rollout.store import RunStore
from repairgym.training.rl_loop import RLLoop
from repairgym.training.token_signals import signals_of
from repairgym.view.reader import RunReader

ALGORITHM = AlgorithmConfig(group_size=4, batch_size=4, optimizer=OptimizerConfig(learning_rate=1e-3))
RL = RlConfig(algorithm=ALGORITHM, num_groups=2, num_groups_sampled=2, max_refills=1, max_iterations=1)


def test_an_iteration_leaves_what_it_learned_of_each_token(tmp_path, open_taught):
    run = open_taught(tmp_path)
    list(RLLoop(run, RL, "sft").iterations())
    groups = {group.id: group.status for group in run.store.groups(phase="rl")}
    assert "kept" in groups.values()
    with RunReader.read(run.folder / "run.db") as reader:
        for row in run.store.rows(phase="rl"):
            entry = reader.entry(next(member.number for member in members(reader, row) if member.id == row.id))
            signals, ledger = reader.signals(entry), reader.ledger(entry)
            assert (signals is not None) == (groups[row.group_id] == "kept"), row.id
            if signals is None:
                continue
            assert np.array_equal(signals.place, np.flatnonzero(ledger.is_action))
            assert np.array_equal(signals.old_log_prob, ledger.log_prob[signals.place])
            assert len(set(signals.advantage.tolist())) == 1
            assert (signals.advantage[0] > 0) == (row.reward == 1.0)
            assert (signals.weight > 0).all()
            assert (signals.entropy >= 0).all()
            if not signals.num_steps.any():  # the first step: learner and sampler have the same weights
                assert np.abs(np.log(signals.ratio)).max() < 1e-3


def members(reader: RunReader, row):
    return reader.members(reader.group(row.phase, row.step, row.group_id))


def test_packing_keeps_every_bit_and_goes_with_its_trajectory(tmp_path, trajectory_maker):
    values = np.array([0.5, -1.25, 3.0], np.float32)
    places = np.array([4, 5, 9], np.int32)
    signals = TokenSignals(places, values, values * 2, values * 3, values * 4, values * 5, places)
    again = unpack_signals(pack_signals(signals))
    for name in ("place", "weight", "advantage", "old_log_prob", "log_prob", "entropy", "num_steps"):
        assert np.array_equal(getattr(again, name), getattr(signals, name)), name
    with RunStore.create(tmp_path / "run.db") as store:
        store.add_trajectory(trajectory_maker("a"), phase="rl", step=0, split="train")
        store.add_signals({"a": signals, "absent": signals})
        store.add_signals({"a": signals})
        assert store._fetch("SELECT count(*) FROM signals", ()) == [(1,)]
        store.drop_steps(phase="rl", first_step=0)
        assert store._fetch("SELECT count(*) FROM signals", ()) == [(0,)]


def test_parts_of_a_forked_history_are_put_together(trajectory_maker):
    trajectory = trajectory_maker("a")
    start = trajectory.turns[0].action_span[0]
    one, zero = np.ones(1, np.float32), np.zeros(1, np.int32)
    parts = [
        LearnedTokens("a", zero, zero + offset, one * offset, one, one, one, one, steps)
        for offset, steps in ((1, 1), (0, 0))
    ]
    signals = signals_of([trajectory], [*parts, LearnedTokens("b", zero, zero, one, one, one, one, one, 0)])
    assert list(signals) == ["a"]
    assert signals["a"].place.tolist() == [start, start + 1]
    assert signals["a"].num_steps.tolist() == [0, 1]
    assert signals["a"].weight.tolist() == [0.0, 1.0]
