"""Paper A's training (appendices on SFT and RL): imitate a teacher in the full pipeline, then GRPO in the simplified.

1. A teacher works on the training tasks, in the pipeline of `collect_rollout` where there is one; what passed is kept.
2. The student imitates it; of the checkpoints the one with the least loss on tasks set apart is kept.
3. GRPO from there: eight problems with four rollouts each per step, reward 1 where the build and the tests pass.
"""

from repairgym.config.recipes import DistillThenGrpoConfig
from repairgym.inference.loading import load_tokenizer
from repairgym.rollout.jobs import PolicyRef
from repairgym.rollout.names import SFT, TEACHER
from repairgym.training.rl_loop import OpenRun, run_rl_stage
from repairgym.training.run import Run
from repairgym.training.supervised import collect_successes, fit_samples, supervised_samples

START = "start"
STUDENT, GRPO = SFT, "grpo"


def distill_then_grpo(open_run: OpenRun, config: DistillThenGrpoConfig, teacher: PolicyRef) -> None:
    """From checkpoint ``start`` to ``sft`` and ``grpo``; a killed run resumes.

    Raises:
        ConfigError: no training task.
        TaskError: the teacher solved none.
    """
    with open_run(config.collect_rollout or config.rollout) as run:
        if not run.checkpoint(STUDENT).exists():
            distill(run, config, teacher)
    with open_run(config.rollout) as run:
        run_rl_stage(run, config.rl, STUDENT, GRPO, config.watch.alarms)


def distill(run: Run, config: DistillThenGrpoConfig, teacher: PolicyRef) -> None:
    """The teacher's successes, imitated by the student."""
    start = run.checkpoint(START)
    with run.store.phase(TEACHER):
        kept = collect_successes(run, teacher, config.collect, TEACHER)
    samples = supervised_samples(kept, config.sft, load_tokenizer(start))
    fit_samples(start, run.checkpoint(STUDENT), samples, config.sft, run.store, run.progress)
