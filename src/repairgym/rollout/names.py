"""Names of the phases, test sets and stages of a run: one place for every layer that writes or reads them.

A phase of training is named after its stage (``sft``, ``rft``, ``rl``; its steps are iterations); an evaluation is
``eval/<stage>/<test set>``; an audit is ``audit/<phase>``.
"""

BASE = "base"
TEACHER = "teacher"
OWN = "own"
"""Episodes of the fine-tuned policy itself, from which rejection fine-tuning takes the successes."""
SFT = "sft"
RFT = "rft"
RL = "rl"
MUTATIONS = "test-mutations"
VALIDATION = "validation"
"""Test set of the validations of a training stage, whichever tasks are chosen for them."""
RELEASES = "test-releases"
CONTINUED = "sft-continued"
CHECKPOINT = "rl-step-"
ALARM_PREFIX = "alarm_"
"""Prefix of the kind of an event that an alarm wrote."""
CONFIGS_FOLDER = "configs"
UPDATE_TIME = "time/update_s"
"""Metric of the phase `RL` that has one value for each update."""
FITTED_FILE = "fitted.toml"
"""Settings that a demo ran with: those of its ``config.toml``, sized for the time budget."""
TURNS_FOLDER = "turns"
"""Folder of a run with the turns of its episodes in flight (`rollout/turn_log.py`)."""
SOLVE = "solve/"
"""Prefix of the phase of a search; its verdicts are by visible tests only."""
AUDIT = "audit/"
"""Prefix of the phase, and of the trajectory ids, of an audit."""


def eval_phase(stage: str, test_set: str) -> str:
    """The phase name of an evaluation."""
    return f"eval/{stage}/{test_set}"


def cell_stage(policy: str, environment: str) -> str:
    """Stage name of a policy in an environment of a matrix."""
    return f"{policy}@{environment}"


def audit_phase(phase: str) -> str:
    """The phase name of an audit: the submissions of ``phase``, graded again with every gate."""
    return f"{AUDIT}{phase}"


def audit_id(trajectory_id: str) -> str:
    """Id of a trajectory's audited copy."""
    return f"{AUDIT}{trajectory_id}"
