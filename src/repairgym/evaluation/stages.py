"""Names of evaluation phases (``eval/<stage>/<test set>``), their order and their labels.

Reads and makes names only. A stage is a policy at one moment of a run, or a control: ``base``, ``sft``, ``rft`` (where
RL starts), ``rl-step-0010``, ``rl``; ``rft-t0.5`` (the start at another temperature), ``sft-continued`` (as much
further supervised training), ``random``, ``submit-at-once``; ``rft-pass-at-k`` is the start with many samples on a part
of the tasks, for Pass@k alone.
"""

import re
from typing import NamedTuple

from repairgym.rollout.names import BASE, CONTINUED, OWN, RFT, RL, SFT, TEACHER
from repairgym.rollout.names import MUTATIONS as MUTATIONS
from repairgym.rollout.names import RELEASES as RELEASES
from repairgym.rollout.names import VALIDATION as VALIDATION

START = "rft"
TREATMENT = "rl"
MANY_SAMPLES = "rft-pass-at-k"

TEST_SET_LABELS = {
    MUTATIONS: "held-out mutation tasks",
    VALIDATION: "validation tasks",
    "test": "held-out tasks",
    RELEASES: "real release-pair tasks",
}

_FIXED = {
    "submit-at-once": (0, "submits at once"),
    "random": (1, "random actions"),
    "base": (2, "base model"),
    "sft": (3, "SFT"),
    START: (4, "RFT (start of RL)"),
    MANY_SAMPLES: (4, "RFT, many samples"),
    CONTINUED: (6, "SFT continued"),
    TREATMENT: (8, "RL"),
}
PURPOSES = {
    BASE: "Puts the model of before this run into its folder, or trains one from scratch.",
    "tasks": "Makes tasks out of packages and certifies them; each has a known repair.",
    TEACHER: "A script that knows the repair solves training tasks; SFT imitates its episodes.",
    OWN: "The model tries training tasks; RFT imitates the tries that passed.",
    SFT: "Supervised fine-tuning on the teacher's successes.",
    RFT: "Supervised fine-tuning on the model's own successes; RL starts here.",
    RL: "Each step samples groups and updates the weights. Steps count from 0: step 0 is the first iteration.",
    CONTINUED: "Further supervised training for as long as RL took: a control.",
}
"""Name of a phase -> what it does, in a sentence for people; evaluations have none."""
_TEMPERATURE = re.compile(r"(.+)-t(\d+(?:\.\d+)?)")
_STEP = re.compile(r"(.+)-step-(\d+)")


class EvalPhase(NamedTuple):
    """A stage and the test set of its evaluation."""

    stage: str
    test_set: str

    @property
    def order(self) -> tuple[str, tuple[int, int, str]]:
        """Sort key: by test set, then in the order of training."""
        return self.test_set, stage_order(self.stage)


def parse_eval_phase(name: str) -> EvalPhase | None:
    """Return stage and test set of a phase name; None for other phases."""
    parts = name.split("/")
    return EvalPhase(*parts[1:]) if len(parts) == 3 and parts[0] == "eval" else None


def training_step(stage: str) -> int | None:
    """Return the iteration of a checkpoint stage: 10 for ``rl-step-0010``, 0 for the start, None for other stages."""
    if stage == START:
        return 0
    match = _STEP.fullmatch(stage)
    return int(match[2]) if match and match[1] == TREATMENT else None


def is_temperature_control(stage: str) -> bool:
    """Return True for a start policy at another sampling temperature, e.g. ``rft-t0.5``."""
    return _TEMPERATURE.fullmatch(stage) is not None


def is_checkpoint(stage: str) -> bool:
    """Return True for a policy during training; its evaluation is part of the training phase."""
    return stage != START and training_step(stage) is not None


def is_control(stage: str) -> bool:
    """Return True for a stage, other than the start, that the trained policy is compared with."""
    return is_temperature_control(stage) or (stage in _FIXED and stage not in (START, TREATMENT, MANY_SAMPLES))


def stage_label(stage: str) -> str:
    """Return the stage as text for people."""
    if stage in _FIXED:
        return _FIXED[stage][1]
    if match := _TEMPERATURE.fullmatch(stage):
        return f"{match[1].upper()} at temperature {match[2]}"
    if match := _STEP.fullmatch(stage):
        return f"{match[1].upper()} after {int(match[2])} iterations"
    return stage


def stage_order(stage: str) -> tuple[int, int, str]:
    """Return a sort key: controls without a model first, then the order of training."""
    if stage in _FIXED:
        return (_FIXED[stage][0], 0, stage)
    if is_temperature_control(stage):
        return (5, 0, stage)
    step = training_step(stage)
    return (7, step, stage) if step is not None else (9, 0, stage)


def label_of_test_set(test_set: str) -> str:
    """Return the test set as text for people."""
    return TEST_SET_LABELS.get(test_set, test_set)


def phase_label(name: str) -> str:
    """Return a phase as text for people."""
    phase = parse_eval_phase(name)
    return f"{stage_label(phase.stage)} on {label_of_test_set(phase.test_set)}" if phase else name
