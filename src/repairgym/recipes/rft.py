"""Rejection fine-tuning (paper B, section 4.2): the policy's own successes, imitated.

1. Run the start policy ten times on every training task.
2. Keep what passed; exploited is not passed, equal action sequences count once, a task has a cap.
3. Imitate it: actions that could not be parsed stay in the context and are not learned.
"""

from pathlib import Path

from repairgym.config.recipes import RftCommandConfig
from repairgym.inference.loading import load_tokenizer
from repairgym.rollout.jobs import PolicyRef
from repairgym.rollout.names import RFT
from repairgym.training.run import Run
from repairgym.training.supervised import collect_successes, fit_samples, supervised_samples

START = "start"
STAGE = RFT


def rft(run: Run, config: RftCommandConfig, policy: PolicyRef | None = None) -> Path:
    """From checkpoint ``start`` of ``run`` to checkpoint ``rft``; returns its folder.

    ``policy`` is the start model behind a server; None: it runs in the workers.

    Raises:
        ConfigError: no training task.
        TaskError: nothing passed.
    """
    start, target = run.checkpoint(START), run.checkpoint(STAGE)
    with run.store.phase(config.phase):
        kept = collect_successes(run, policy or run.policy(START), config.collect, config.phase)
    samples = supervised_samples(kept, config.rft, load_tokenizer(start))
    fit_samples(start, target, samples, config.rft, run.store, run.progress)
    return target
