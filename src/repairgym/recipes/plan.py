"""The plan of a demo for its wall-clock budget: sizes, evaluations, and when RL has to stop.

Reads a `DemoConfig` and what the run has measured so far; makes a `Plan`. Invariant: everything but the number of RL
iterations follows from the config alone; that number depends on the machine's speed.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, get_args

from repairgym.config.recipes import CollectConfig, DemoConfig, EvaluationConfig
from repairgym.config.tasks import MadeSource
from repairgym.records import Record
from repairgym.rollout.names import BASE, CONTINUED, MUTATIONS, OWN, RELEASES, RFT, RL, SFT, TEACHER, eval_phase
from repairgym.rollout.store import RunStore
from repairgym.tasks.layers.catalogue import load_catalogue

REFERENCE_MINUTES = 13.0
"""The sizes in `DemoConfig` are for this budget; others scale with it."""
FULL_CONTROL_MINUTES = 40.0
"""Below this budget RL has few iterations and needs the time: groups without signal are not replaced; no validation, no
checkpoints, no lower temperatures and no Pass@k of the start are evaluated; the continued-training control (nearly as
long as RL itself) is left out; the base is compared on `EvaluationConfig.num_control_tasks` tasks instead of all; what
is built, collected and compared is `_SHORT_SHARE` of its size; an iteration takes steps of `_SHORT_BATCH_SIZE`."""
_SHORT_SHARE = 2 / 3
_SHORT_BATCH_SIZE = 32
"""Trajectories of one optimizer step: two or three steps per iteration instead of one (paper B: 2 to 8). Two iterations
of one step each, in the warm-up, are together one full step."""
SCRIPTS = ("random", "submit-at-once")
_SCRIPT_COST = 0.3
"""Cost of a scripted episode: no tokens, few test runs."""
_LONG_COST = 1.5
"""Cost of an episode after RL: it tests and continues where the start gave up."""
_CONTINUED_SHARE = 0.75
"""Of RL's seconds that the continued control takes: RL's processor seconds, on all processors all the time."""
_MARGIN = 1.1
"""Collection and evaluation both meet their tasks for the first time: 0.85 to 1.0 times as long where measured."""
_OVERHEAD_S = 25.0
"""Starting processes, writing the report."""
_LEAST_LIMITS = {"train": 24, "validation": 8, "test": 16}
_LEAST_SELECTION = {"num_tasks": 12}
_LEAST_EVALUATION = {
    "num_tasks": 16,
    "num_control_tasks": 8,
    "num_start_tasks": 8,
    "num_release_tasks": 2,
    "num_main_samples": 1,
    "num_checkpoints": 0,
}
"""Sizes that follow the budget, and their lower bounds."""
AnyRecord = TypeVar("AnyRecord", bound=Record)


@dataclass(frozen=True)
class EvalStage:
    """One evaluation on the test mutations."""

    name: str
    checkpoint: str
    """Empty: a scripted policy of the stage's name."""
    num_tasks: int
    num_samples: int
    temperature: float = 1.0
    cost: float = 1.0
    """Seconds per episode in units of the start's."""


@dataclass(frozen=True)
class Plan:
    """A demo config fitted to its budget."""

    config: DemoConfig
    stages: tuple[EvalStage, ...]
    """In the order in which they run; the first two are the start and the end of RL."""

    @property
    def has_continued_control(self) -> bool:
        """True when supervised training for RL's compute is one of the stages."""
        return any(stage.name == CONTINUED for stage in self.stages)

    def phases(self) -> list[str]:
        """Every phase that the demo is going to have, validation during RL apart."""
        taught = [TEACHER, SFT] if self.config.start == "teacher" else []
        names = [BASE, "tasks", *taught, OWN, RFT, RL]
        for stage in self.stages:
            names += [CONTINUED] if stage.name == CONTINUED else []
            names.append(eval_phase(stage.name, MUTATIONS))
        return names + [eval_phase(stage, RELEASES) for stage in (RFT, RL)]

    def idle_sections(self) -> dict[str, Any]:
        """Return the sections of the config that no phase of the plan reads, as pydantic's ``exclude``."""
        config = self.config
        idle: dict[str, Any] = {} if config.is_from_scratch else {"pretraining": True}
        if config.start != "teacher":
            idle |= {"teacher": True, "sft": True}
        if not config.rl.validation_every:
            idle["rl"] = {"validation"}
        tasks: dict[str, Any] = dict.fromkeys(set(get_args(MadeSource)) - set(config.tasks.sources), True)
        unbuilt = set(type(config.tasks.limits).model_fields) - set(config.tasks.splits)
        return idle | {"tasks": tasks | ({"limits": unbuilt} if unbuilt else {})}

    def evaluation_s(self, episodes_per_s: float) -> float:
        """Estimated seconds after RL, the continued control's training left out."""
        config = self.config.evaluation
        cost = sum(stage.num_tasks * stage.num_samples * stage.cost for stage in self.stages)
        cost += config.num_checkpoints * min(config.num_control_tasks, config.num_tasks) * _LONG_COST
        return _MARGIN * cost / episodes_per_s + _OVERHEAD_S

    def checkpoint_stages(self, kept: Sequence[str]) -> Iterator[EvalStage]:
        """Evaluations of checkpoints of RL, spread over those that were ``kept`` (`CHECKPOINT` and a step each)."""
        config = self.config.evaluation
        num = min(config.num_checkpoints, len(kept))
        names = sorted(kept)
        for index in range(num):
            name = names[(2 * index + 1) * len(names) // (2 * num)]
            yield EvalStage(name, name, min(config.num_control_tasks, config.num_tasks), config.num_samples)


def plan_demo(config: DemoConfig) -> Plan:
    """Sizes for ``config.minutes``: collections and evaluations grow slower than the budget, RL takes the rest."""
    factor = config.minutes / REFERENCE_MINUTES
    has_full_controls = config.minutes >= FULL_CONTROL_MINUTES
    config = config if has_full_controls else _for_short_budget(config)
    packages = config.tasks.packages or chosen_packages(config, factor)
    limits = _with_scaled(config.tasks.limits, factor, _LEAST_LIMITS)
    evaluation = _with_scaled(config.evaluation, factor, _LEAST_EVALUATION)
    fitted = config.model_copy(
        update={
            "tasks": config.tasks.model_copy(update={"packages": packages, "limits": limits}),
            "teacher": _with_fewer_tasks(config.teacher, factor),
            "own": _with_fewer_tasks(config.own, factor),
            "evaluation": evaluation,
        }
    )
    return Plan(fitted, tuple(_stages(evaluation, has_full_controls, has_teacher=config.start == "teacher")))


def _for_short_budget(config: DemoConfig) -> DemoConfig:
    splits = tuple(split for split in config.tasks.splits if split != "validation")
    limits = _with_scaled(config.tasks.limits, _SHORT_SHARE, {"train": _LEAST_LIMITS["train"]})
    controls = {"num_control_tasks": _LEAST_EVALUATION["num_control_tasks"]}
    algorithm = config.rl.algorithm
    steps = algorithm.model_copy(update={"batch_size": min(algorithm.batch_size, _SHORT_BATCH_SIZE)})
    return config.model_copy(
        update={
            "tasks": config.tasks.model_copy(update={"splits": splits, "limits": limits}),
            "own": _with_fewer_tasks(config.own, _SHORT_SHARE),
            "rl": config.rl.model_copy(update={"validation_every": 0, "max_refills": 0, "algorithm": steps}),
            "evaluation": _with_scaled(config.evaluation, _SHORT_SHARE, controls).model_copy(
                update={"num_checkpoints": 0, "temperatures": (), "is_continued_control": False}
            ),
        }
    )


def _stages(config: EvaluationConfig, has_full_controls: bool, has_teacher: bool) -> Iterator[EvalStage]:
    num_few, num = min(config.num_control_tasks, config.num_tasks), config.num_samples
    yield EvalStage(RFT, RFT, config.num_tasks, config.num_main_samples)
    yield EvalStage(RL, RL, config.num_tasks, config.num_main_samples, cost=_LONG_COST)
    if config.is_continued_control:
        yield EvalStage(CONTINUED, CONTINUED, config.num_tasks, config.num_main_samples)
    sizes = (config.num_tasks, config.num_main_samples) if has_full_controls else (num_few, num)
    for temperature in config.temperatures:
        yield EvalStage(f"{RFT}-t{temperature:g}", RFT, *sizes, temperature)
    yield EvalStage(BASE, BASE, *sizes)
    if has_teacher:
        yield EvalStage(SFT, SFT, num_few, num)
    for name in SCRIPTS:
        yield EvalStage(name, "", num_few, 1, cost=_SCRIPT_COST)
    if has_full_controls:
        num_start = min(config.num_start_tasks, config.num_tasks)
        yield EvalStage(f"{RFT}-pass-at-k", RFT, num_start, config.num_start_samples)


def chosen_packages(config: DemoConfig, factor: float) -> tuple[str, ...]:
    """The packages of a budget: below the reference, in each split those with the most tasks, at least two.

    Each package costs a trace of its suite, however few tasks are wanted of it.
    """
    packages = load_catalogue(Path(config.tasks.catalogue) if config.tasks.catalogue else None).select()
    chosen: list[str] = []
    for split in config.tasks.splits:
        ranked = sorted((p for p in packages if p.split == split), key=lambda p: (-p.num_tasks, p.name))
        chosen += [package.name for package in ranked[: _scaled(len(ranked), factor, 2) if factor < 1 else None]]
    return tuple(chosen)


def _with_fewer_tasks(config: CollectConfig, factor: float) -> CollectConfig:
    return config.model_copy(update={"select": _with_scaled(config.select, factor, _LEAST_SELECTION)})


def _with_scaled(config: AnyRecord, factor: float, least: Mapping[str, int]) -> AnyRecord:
    """Return ``config`` with the fields that ``least`` bounds scaled."""
    scaled = {name: _scaled(getattr(config, name), factor, bound) for name, bound in least.items()}
    return config.model_copy(update=scaled)


def _scaled(number: int, factor: float, least: int) -> int:
    """Linear below the reference budget, by the square root above it."""
    return max(least, round(number * (factor if factor < 1 else factor**0.5)))


class Budget:
    """The used part of the wall-clock budget, from the store alone, so that a resumed run continues the count."""

    def __init__(self, plan: Plan, store: RunStore) -> None:
        self._plan = plan
        self._store = store

    def is_rl_over(self) -> bool:
        """True when one more iteration and what follows RL do not fit into the time that is left.

        The continued control trains nearly as long as RL did, so with it RL may use little more than half of the rest.
        """
        rl_s = self.rl_s()
        next_s = rl_s / max(1, len(self._store.metrics(RL, "time/rollout_s")))
        continued_s = _CONTINUED_SHARE * (rl_s + next_s) * self._plan.has_continued_control
        following_s = self._plan.evaluation_s(self.episodes_per_s()) + continued_s
        return self.spent_s() + next_s + following_s >= 60.0 * self._plan.config.minutes

    def rl_s(self) -> float:
        """Seconds of RL iterations so far."""
        return sum(
            sum(value for _, value in self._store.metrics(RL, f"time/{part}_s")) for part in ("rollout", "update")
        )

    def spent_s(self) -> float:
        """Seconds of ended phases and RL iterations."""
        return self.rl_s() + sum(row.wall_s for row in self._store.phases() if row.status == "done")

    def episodes_per_s(self) -> float:
        """Measured where the policy collected its own rollouts."""
        wall_s = sum(row.wall_s for row in self._store.phases() if row.name == OWN)
        return max(1, len(self._store.trajectory_ids(phase=OWN))) / max(wall_s, 1e-3)
