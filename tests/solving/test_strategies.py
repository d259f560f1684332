"""Every strategy: budgets, resumption, ledgers, equal searches for equal seeds, and nothing hidden."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from repairgym.agent.allowance import Spending
from repairgym.config.loading import load_config
from repairgym.config.models import EngineConfig
from repairgym.config.pipeline import PipelineConfig
from repairgym.config.solving import SolveCommandConfig
from repairgym.errors import ConfigError, InputError
from repairgym.inference.loading import load_tokenizer
from repairgym.inference.renderer import ChatRenderer
from repairgym.records import TestOutcome, TestResult, Verdict, VerdictKind
from repairgym.rollout.jobs import PolicyRef
from repairgym.rollout.local import LocalPool
from repairgym.rollout.names import TURNS_FOLDER
from repairgym.rollout.store import RunStore
from repairgym.rollout.turn_log import TurnLog
from repairgym.solving.choice import Candidate, make_candidate
from repairgym.solving.search import TaskSearch, search
from repairgym.solving.sources import Chains
from repairgym.solving.visible import visible_view
from repairgym.tasks.build.validation import TaskLayers
from repairgym.testing.scripted import ScriptedBackend, scripted_answer, scripted_task
from repairgym.training.run import Run

NAMES = ("best_of_n", "longer", "replay", "lookahead", "beam", "best_first", "mcts")
MAX_ACTION_TOKENS = 8


class Stopped(Exception):
    """A kill between two episodes."""


def configure(name: str, *settings: str) -> SolveCommandConfig:
    config = load_config(SolveCommandConfig, None, [f"strategy.type={name}", *settings])
    limits = {"max_len_tokens": 200, "max_turns": 4, "max_action_tokens": MAX_ACTION_TOKENS}
    rollout = config.rollout.model_copy(
        update={
            "pipeline": PipelineConfig.model_validate(config.rollout.pipeline.model_dump() | limits),
            "engine": EngineConfig(num_slots=16, max_len_tokens=200),
        }
    )
    return config.model_copy(update={"rollout": rollout})


@pytest.fixture
def solve(base, tmp_path):
    """Search with a tiny model in a folder of its own; ``num_before_kill`` episodes end before it is killed."""

    def solve(config: SolveCommandConfig, folder: str = "run", num_before_kill: int | None = None, policy: str = ""):
        run_folder = tmp_path / folder
        run_folder.mkdir(exist_ok=True)
        renderer, layers = ChatRenderer(load_tokenizer(base)), TaskLayers(tmp_path, tmp_path)
        log = TurnLog(run_folder / TURNS_FOLDER)
        rollout = config.strategy.sample(config.rollout)
        pool = LocalPool(
            rollout, lambda: ScriptedBackend(scripted_answer()), lambda task: layers, renderer, turn_log=log
        )
        counts = itertools.count(1)

        def progress(phase: str, done: int, num: int, detail: str) -> None:
            if next(counts) == num_before_kill:
                raise Stopped

        view = visible_view(scripted_task())
        path = run_folder / "run.db"
        with RunStore.open(path) if path.exists() else RunStore.create(path) as store:
            run = Run(run_folder, store, pool, {}, config.seed, progress)
            ref = PolicyRef("tiny", policy or str(base))
            (solution,) = search([view], Chains(run, [view], ref, "solve/tiny", None), config)
            return solution, list(store.trajectories(phase="solve/tiny"))

    return solve


def facts(solution):
    """What of a search must not depend on time."""
    return [
        (it.id, it.parent, it.num_shared_turns, it.num_turns, it.patch, it.spending.num_sampled_tokens)
        for it in solution.candidates
    ]


@pytest.mark.parametrize("name", NAMES)
def test_a_search_keeps_its_budget_ledger_and_seed_and_resumes(solve, name):
    config = configure(name, "budget.max_sampled_tokens=90", "budget.max_test_runs=40")
    whole, trajectories = solve(config)
    spent = whole.spending
    assert spent.num_sampled_tokens < 90 + MAX_ACTION_TOKENS
    assert spent.num_test_runs <= 41
    assert whole.ended in (("budget", "chains") if name == "longer" else ("budget",))
    # Each sampled token is an action in the one candidate that sampled it, and only there.
    assert spent.num_sampled_tokens == sum(int(it.ledger.is_action.sum()) for it in trajectories)
    assert spent.num_sampled_tokens == sum(
        turn.action_span[1] - turn.action_span[0]
        for it in trajectories
        for turn in it.turns[it.parent.num_turns if it.parent else 0 :]
    )
    by_id = {it.id: it for it in trajectories}
    for it in trajectories:
        if it.parent:
            parent = by_id[it.parent.trajectory_id]
            shared = parent.turns[: it.parent.num_turns]
            assert [turn.action for turn in it.turns[: len(shared)]] == [turn.action for turn in shared]
    with pytest.raises(Stopped):
        solve(config, "killed", num_before_kill=min(2, len(whole.candidates)))
    resumed, _ = solve(config, "killed")
    assert facts(resumed) == facts(whole)


@pytest.mark.parametrize("name", ["replay", "lookahead", "mcts"])
def test_another_seed_makes_another_search(solve, name):
    setting = "strategy.num_nodes=6" if name == "lookahead" else "strategy.num_chains=4"
    first, second = (solve(configure(name, setting, f"seed={seed}"), str(seed))[0] for seed in (1, 2))
    assert [it.mean_log_prob for it in first.candidates] != [it.mean_log_prob for it in second.candidates]


def test_a_larger_budget_goes_on_where_a_smaller_one_has_stopped(solve):
    first, _ = solve(configure("best_of_n", "budget.max_sampled_tokens=20"))
    larger, trajectories = solve(configure("best_of_n", "budget.max_sampled_tokens=90"))
    assert facts(larger)[: len(first.candidates)] == facts(first)
    last = first.candidates[-1]
    assert not last.is_open or larger.candidates[len(first.candidates)].parent == last.id
    assert larger.spending.num_sampled_tokens == sum(int(it.ledger.is_action.sum()) for it in trajectories)


def test_a_stored_search_of_other_settings_is_rejected(solve):
    solve(configure("lookahead", "strategy.num_nodes=12"))
    with pytest.raises(InputError, match="another parent"):
        solve(configure("best_of_n", "strategy.num_chains=12"))


@pytest.mark.parametrize("unit", ["max_forward_tokens", "max_wall_s"])
def test_an_episode_stops_in_its_middle(solve, unit):
    bound = {"max_forward_tokens": 60, "max_wall_s": 1e-6}[unit]
    solution, (trajectory,) = solve(configure("best_of_n", f"budget.{unit}={bound}"))
    assert (solution.ended, len(trajectory.turns), trajectory.stop_reason) == ("budget", 1, "search_limit")


# --- plans over simulated episodes ---------------------------------------------------------------------------------

VIEW = visible_view(scripted_task(pass_to_pass=("test_n.py::test_n",)))
NUM_TURNS = 6


def simulate(name: str, *settings: str, right: float = 0.0, seed: int = 0) -> TaskSearch:
    """Lead a search over episodes of ``NUM_TURNS`` turns whose states are paths of two random actions each."""
    running = TaskSearch(VIEW, load_config(SolveCommandConfig, None, [f"strategy.type={name}", *settings]))
    generator = np.random.default_rng(seed)
    while running.ended is None:
        wave = []
        for step in running.plan():
            parent = running.candidates[step.parent] if step.parent is not None else None
            path = (*parent.states, parent.end_state)[: step.num_turns + 1] if parent else ("",)
            num_new = min(step.max_turns or NUM_TURNS, NUM_TURNS - step.num_turns)
            assert num_new > 0
            for _ in range(num_new):
                path = (*path, path[-1] + str(generator.integers(2)))
            wave.append(episode(running, len(wave), path, parent, step.num_turns, is_right=generator.random() < right))
        running.note(wave)
    return running


def episode(
    running: TaskSearch, number: int, path: tuple[str, ...], parent: Candidate | None, shared: int, *, is_right: bool
) -> Candidate:
    outcome = TestOutcome.PASSED if is_right else TestOutcome.FAILED
    tests = {name: TestResult(outcome=outcome) for name in VIEW.visible_tests}
    tests |= {name: TestResult(outcome=TestOutcome.PASSED) for name in VIEW.pass_to_pass}
    kind = VerdictKind.PASSED if is_right else VerdictKind.FAILED
    return make_candidate(
        VIEW,
        f"c{len(running.candidates) + number}",
        "simulated",
        running.num_waves,
        f"--- a/m.py\n+++ b/m.py\n@@ -1 +1 @@\n-x\n+{path[-1]}\n",
        Verdict(kind=kind, reason="", tests=tests, grader_version="1"),
        Spending(num_sampled_tokens=len(path) - 1 - shared, num_test_runs=1),
        parent=parent.id if parent else "",
        num_shared_turns=shared,
        num_turns=len(path) - 1,
        is_open=len(path) - 1 < NUM_TURNS,
        states=path[:-1],
        end_state=path[-1],
    )


@pytest.mark.parametrize("name", NAMES)
def test_plans_use_the_budget_and_no_more(name):
    running = simulate(name, "budget.max_test_runs=21")
    assert (running.ended, running.spending.num_test_runs) in (("budget", 21), ("chains", 1))
    assert simulate(name, "budget.max_test_runs=21").candidates == running.candidates


@pytest.mark.parametrize(
    ("name", "widths"), [("lookahead", {4}), ("beam", {4}), ("best_first", {2}), ("replay", {1}), ("mcts", {1})]
)
def test_waves_have_the_size_of_the_strategy(name, widths):
    running = simulate(name, f"strategy.num_{'chains' if widths == {1} else 'nodes'}=40")
    sizes = [sum(it.wave == wave for it in running.candidates) for wave in range(running.num_waves)]
    assert set(sizes[:-1]) == widths


def test_lookahead_goes_on_from_one_state_and_begins_again_at_the_end():
    running = simulate("lookahead", "strategy.num_nodes=28")
    by_wave = [{it.parent for it in running.candidates if it.wave == wave} for wave in range(running.num_waves)]
    assert all(len(parents) == 1 for parents in by_wave)
    assert [parents == {""} for parents in by_wave] == [True, *[False] * 5, True]


def test_best_first_never_goes_on_from_a_state_that_it_has_reached_before():
    running = simulate("best_first", "strategy.num_nodes=60")
    states = {it.id: it.end_state for it in running.candidates}
    parents = {it.parent for it in running.candidates if it.parent}
    assert len({states[id_] for id_ in parents}) == len(parents)
    reached = [it.end_state for it in running.candidates]
    assert len(reached) - len(set(reached)) > 0, "no state was reached twice"


def test_replay_begins_no_two_branches_at_one_state():
    running = simulate("replay", "strategy.branch_share=1", "strategy.num_chains=30")
    begun = [it.states[it.num_shared_turns] for it in running.candidates if it.parent]
    assert len(begun) > 20
    assert len(set(begun)) == len(begun)


def test_mcts_samples_each_state_before_it_compares_its_children():
    running = simulate("mcts", "strategy.num_chains=30")
    roots = [number for number, it in enumerate(running.candidates) if not it.parent]
    assert roots[:2] == [0, 1]
    assert any(it.num_shared_turns > 1 for it in running.candidates)


def test_a_visible_pass_ends_every_strategy():
    for name in NAMES:
        running = simulate(name, right=1.0)
        assert (running.ended, running.solution().outcome) == ("passed", "solved")


@pytest.mark.parametrize("name", NAMES)
def test_vacuous_visible_tests_stay_at_chance(name):
    """A judge that uses all that a record tells solves nearly everything with the whole task, nothing with its view."""
    num_tasks, solved = 80, {"whole": 0, "view": 0}
    for number in range(num_tasks):
        right = str(number % 4)
        gold = {"gold_files": {"m.py": f"+{right}\n"}, "fail_to_pass": ("test_h.py::test_h",)}
        task = scripted_task(f"canary-{number}", **gold, pass_to_pass=("test_m.py::test_f",))
        for kind, seen in (("whole", task), ("view", visible_view(task))):
            told = [text for text in seen.gold_files.values() if text and text.startswith("+")]
            settings = [f"strategy.type={name}", "budget.max_test_runs=12", f"seed={number}"]
            running = TaskSearch(seen, load_config(SolveCommandConfig, None, settings))
            generator = np.random.default_rng(number)
            while running.ended is None:
                wave = []
                for step in running.plan():
                    path = ("", *(str(generator.integers(4)) for _ in range(1 if step.num_turns else NUM_TURNS)))
                    is_right = not told or told[0].strip("+\n") == path[-1]
                    wave.append(episode(running, len(wave), path, None, 0, is_right=is_right))
                running.note(wave)
            solved[kind] += running.solution().patch.endswith(f"+{right}\n")
    assert solved["whole"] > solved["view"] or name == "longer"  # one chain cannot choose
    assert 0.08 < solved["view"] / num_tasks < 0.42  # 0.25, 3.5 standard errors around it


def test_branches_need_an_agent_that_can_go_on():
    with pytest.raises(ConfigError, match="cannot branch"):
        load_config(
            SolveCommandConfig,
            None,
            ["strategy.type=mcts", "rollout.agent.type=external", "rollout.agent.command=true"],
        )
