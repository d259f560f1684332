"""The analysis of a run's behavior, computed once.

Reads a run store; makes one `Analysis`. Guarantees: parts that an unfinished run lacks are None or empty; text is read
one trajectory at a time; nothing is written.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from repairgym.analysis import curves, episodes
from repairgym.analysis.behavior import (
    BehaviorSummary,
    PolicyShift,
    policy_shift,
    summarize_behavior,
    tool_shares_by_step,
)
from repairgym.config.commands import AnalysisConfig
from repairgym.errors import InputError
from repairgym.evaluation.stages import TREATMENT
from repairgym.rollout.names import AUDIT, audit_phase
from repairgym.rollout.store import RunStore


@dataclass(frozen=True)
class Analysis:
    """The behavior of a run."""

    phase: str
    """Training phase."""
    behavior: list[BehaviorSummary]
    """Before and after; fewer in an unfinished run."""
    tools_by_step: dict[int, dict[str, float]]
    shift: PolicyShift | None
    reward: list[curves.Point]
    exploits: list[episodes.ExploitCount]
    """Of the audit where there is one, because training may have been graded without detectors."""
    examples: list[episodes.ExploitExample]
    gap: list[curves.GapPoint]
    """Empty without an audit."""
    trend: curves.GapTrend | None
    drift: curves.Drift | None
    log_prob_gap: list[curves.Point]
    disabled_gates: tuple[str, ...]
    """Gates that the grading of the training phase skipped."""


def training_phase(store: RunStore) -> str:
    """Return the phase that a report calls training: RL, or else the first audited phase."""
    names = [phase.name for phase in store.phases()]
    audited = [name.removeprefix(AUDIT) for name in names if name.startswith(AUDIT)]
    return TREATMENT if TREATMENT in names or not audited else audited[0]


def analyze(
    store: RunStore,
    config: AnalysisConfig,
    training: Sequence[episodes.EpisodeFacts],
    before: Sequence[episodes.EpisodeFacts],
    after: Sequence[episodes.EpisodeFacts],
) -> Analysis:
    """Analyze the episodes ``training`` of ``config.phase``, and compare those ``before`` and ``after`` (`sides`)."""
    rows, audited = store.rows(phase=config.phase), store.rows(phase=audit_phase(config.phase))
    inspected = list(episodes.read_episodes(store, phase=audit_phase(config.phase))) or list(training)
    marked = {episode.id for episode in inspected if episode.evidence}
    named = ((before, config.before), (after, config.after))
    return Analysis(
        phase=config.phase,
        behavior=[
            summarize_behavior(name or f"{config.phase}, step {some[0].step}", some) for some, name in named if some
        ],
        tools_by_step=tool_shares_by_step(training),
        shift=policy_shift(before, after, n=config.ngram, num_permutations=config.num_permutations, seed=config.seed),
        reward=curves.reward_curve(rows),
        exploits=episodes.exploits_by_step(inspected),
        examples=episodes.exploit_examples(inspected),
        gap=curves.reward_gap(rows, audited, marked),
        trend=curves.gap_trend(rows, audited),
        drift=curves.solve_rate_drift(rows),
        log_prob_gap=curves.find_metric(store, config.phase, "log_prob_gap"),
        disabled_gates=tuple(sorted({gate for episode in training for gate in episode.disabled_gates})),
    )


def analyze_run(store: RunStore, config: AnalysisConfig) -> Analysis:
    """Read and analyze a run.

    Raises:
        InputError: a phase that ``config`` names is empty.
    """
    names = {row.name for row in store.phases()} | {row.phase for row in store.rows()}
    for name in (config.phase, config.before, config.after):
        if name and name not in names:
            raise InputError(f"{store.path} has no phase {name!r}; phases are {', '.join(sorted(names)) or 'none'}")
    training = list(episodes.read_episodes(store, phase=config.phase))
    return analyze(store, config, training, *sides(store, config, training))


def sides(
    store: RunStore, config: AnalysisConfig, training: Sequence[episodes.EpisodeFacts]
) -> tuple[list[episodes.EpisodeFacts], list[episodes.EpisodeFacts]]:
    """Return the episodes before and after: named phases, or else the first and the last step of training."""
    steps = sorted({episode.step for episode in training})
    both = []
    for name, step in ((config.before, steps[:1]), (config.after, steps[1:][-1:])):
        chosen = [episode for episode in training if episode.step in step]
        both.append(list(episodes.read_episodes(store, phase=name)) if name else chosen)
    return both[0], both[1]
