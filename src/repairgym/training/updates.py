"""The policy updates of an RL stage with their saved state, in one process or in those of torchrun.

Reads samples; changes the model and its state folder. Invariants: an update is saved once its caller has noted what it
needs to note, so nothing of a saved update is missing elsewhere; one process, the leader, samples
and knows the run; the others get each iteration's samples from it and make their share of the same update.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from repairgym.config.models import VllmSamplerConfig
from repairgym.config.recipes import RlConfig
from repairgym.errors import ConfigError
from repairgym.inference.loading import load_tokenizer
from repairgym.inference.vllm.weights import Probe
from repairgym.learning.checkpoints import MODEL_FOLDER, STATE_FILE, load_training_state, save_training_state
from repairgym.learning.export import save_model
from repairgym.learning.learned_tokens import LearnedTokens
from repairgym.learning.learner import Learner, release_memory
from repairgym.learning.rl import PolicyTrainer
from repairgym.learning.samples import Sample, text_sample
from repairgym.learning.weight_loading import open_model
from repairgym.training.processes import assign

_Portion = tuple[list[Sample], list[Sample], float]
_END: _Portion = ([], [], -1.0)
"""Sent instead of samples when there is nothing more to learn."""


@dataclass(frozen=True)
class UpdateWork:
    """The updates of one stage as work for several processes."""

    start: Path
    """Model folder to begin with."""
    state: Path
    config: RlConfig

    def lead(self) -> Updates:
        """The leader's updates; the others follow them."""
        assign(self)
        return Updates(self)

    def follow(self) -> None:
        """Take part in the leader's updates until it closes them."""
        Updates(self).follow()


class Updates:
    """Model, optimizer and state folder of one stage; every process makes one (`UpdateWork`)."""

    def __init__(self, work: UpdateWork) -> None:
        """Load model folder ``start``, or resume from ``state`` if it is saved."""
        start, state, config = work.start, work.state, work.config
        self._state, self._save_every = state, config.save_every
        self._tokenizer = load_tokenizer(start)
        algorithm = config.algorithm
        reference = open_model(start) if algorithm.needs_reference else None
        self._trainer = PolicyTrainer(open_model(start), algorithm, reference=reference)
        self._probe_ids = _probe_ids(config, len(self._tokenizer))
        self.probe: Probe | None = None
        """Log-probabilities of a fixed sequence under the saved weights; None where no server has to be compared."""
        self._world = self._trainer.learner.world
        if self._world.size > 1 and config.perturbation.type != "none":
            raise ConfigError(
                f"rl.perturbation.type={config.perturbation.type!r} changes whole weights, and {self._world.size} "
                "processes hold parts of them; train in one process, or set rl.perturbation.type='none'"
            )
        self.num_done = 0
        # The leader decides: it is about to write what the others would look for.
        if self._world.broadcast((state / STATE_FILE).is_file()):
            self.num_done = int(load_training_state(self._trainer.learner, state)["num_done"])
            # The model folder may be newer than the state, or older after a kill between the two.
            self._publish()
        else:
            self._save()

    def lead(self, samples: Sequence[Sample], imitated: Sequence[Sample], coefficient: float) -> dict[str, float]:
        """One iteration's update by all processes, not saved yet; returns its metrics (`PolicyTrainer.update`)."""
        return self._update(self._world.broadcast((list(samples), list(imitated), coefficient)))

    @property
    def learner(self) -> Learner:
        """Model and optimizer, to change between an update and its `commit`; in one process only."""
        return self._trainer.learner

    @property
    def learned(self) -> list[LearnedTokens]:
        """Tokens that the newest update learned."""
        return self._trainer.learned

    def commit(self) -> None:
        """Publish the update, and save it where it is time to; the next iteration begins."""
        self.num_done += 1
        if self.num_done % self._save_every:
            self._publish()
        else:
            self._save()

    def follow(self) -> None:
        """Take part in the leader's updates until it closes."""
        while (portion := self._world.broadcast(_END))[2] >= 0.0:
            self._update(portion)
            self.commit()
        self._save_rest()

    def close(self) -> None:
        """Save the last updates, let the followers end, and let go of the model; the leader calls it."""
        self._world.broadcast(_END)
        self._save_rest()
        del self._trainer
        release_memory()

    def _update(self, portion: _Portion) -> dict[str, float]:
        metrics = self._trainer.update(*portion)
        release_memory()
        return metrics

    def _save(self) -> None:
        save_training_state(self._trainer.learner, self._state, {"num_done": self.num_done})
        self._publish()

    def _save_rest(self) -> None:
        if self.num_done % self._save_every:
            save_training_state(self._trainer.learner, self._state, {"num_done": self.num_done})

    def _publish(self) -> None:
        """Write the model folder that samples the next episodes."""
        save_model(self._trainer.learner, self._tokenizer, self._state / MODEL_FOLDER)
        self._measure_probe()

    def _measure_probe(self) -> None:
        """All processes take part: with several, none holds the whole model."""
        if self._probe_ids:
            (measured,) = self._trainer.learner.measure([text_sample(self._probe_ids)])
            self.probe = Probe(self._probe_ids, tuple(measured.log_prob[1:].tolist()))


def _probe_ids(config: RlConfig, vocab_size: int) -> tuple[int, ...]:
    """Random tokens, the same in every process and after every resume; none where nothing has to be compared."""
    if not isinstance(config.sampler, VllmSamplerConfig):
        return ()
    return tuple(np.random.default_rng(0).integers(vocab_size, size=config.sampler.num_probe_tokens).tolist())
