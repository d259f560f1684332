"""Self-distillation: the policy with feedback in its context teaches the policy without (SDPO, arXiv 2601.20802).

Reads policy samples with the feedback that their teacher reads (`Sample.hint`); makes advantages of tokens. The
gradient of KL(pi(.|x, y<t) || pi(.|x, f, y<t)) with a fixed teacher is that of a policy gradient whose advantage is
log pi(y_t|x, f, y<t) - log pi(y_t|x, y<t) (the paper's equation for sampled tokens). Guarantees: every learned token
was sampled without the feedback, from the history that the loss conditions on; nothing is ever sampled behind a hint,
and its tokens are never learned; the teacher does not change during an update.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from repairgym.config.algorithms import SelfDistillationAdvantageConfig
from repairgym.learning.learner import Learner
from repairgym.learning.packing.forward import Scorer
from repairgym.learning.samples import Sample
from repairgym.sizing.positions import exact_positions


def with_teacher(
    samples: Sequence[Sample],
    learner: Learner,
    config: SelfDistillationAdvantageConfig,
    start: Scorer | None = None,
) -> tuple[list[Sample], dict[str, float]]:
    """Add the teacher's gain to the advantage of each learned token; return the samples, in their order, and metrics.

    ``start`` is the model that the run began with, which `teacher="start"` asks; None: the present one. A hint that
    leaves no room for the sequence in the model's context teaches nothing, and is counted.
    """
    room = exact_positions(learner.model.config.to_dict())
    usable = [at for at, s in enumerate(samples) if s.hint and s.num_learned and _fits(s, room)]
    measured = learner.measure(
        [_behind_hint(samples[at]) for at in usable], start if config.teacher == "start" else None
    )
    taught, gains = list(samples), [np.zeros(0, np.float32)]
    for at, scores in zip(usable, measured, strict=True):
        sample = samples[at]
        is_learned = sample.weight != 0.0
        gain = np.where(is_learned, scores.log_prob[len(sample.hint) :] - sample.old_log_prob, np.float32(0.0))
        gain = gain.clip(-config.max_gain, config.max_gain).astype(np.float32)
        gains.append(gain[is_learned])
        taught[at] = replace(sample, advantage=np.float32(sample.advantage) + gain)
    every = np.concatenate(gains)
    num_hints = sum(bool(sample.hint) for sample in samples)
    return taught, {
        "distillation/num_taught": float(len(usable)),
        "distillation/num_too_long": float(num_hints - len(usable)),
        "distillation/gain_mean": float(every.mean()) if len(every) else 0.0,
        "distillation/gain_abs": float(np.abs(every).mean()) if len(every) else 0.0,
    }


def _fits(sample: Sample, room: int | None) -> bool:
    return room is None or len(sample.hint) + sample.num_to_compute <= room


def _behind_hint(sample: Sample) -> Sample:
    """Return the sequence behind its hint, for scores only."""
    zeros = np.zeros(len(sample.hint), np.float32)
    return Sample(
        np.concatenate([np.array(sample.hint, np.int32), sample.token_id]),
        np.concatenate([zeros, sample.weight]),
        np.concatenate([zeros, sample.old_log_prob]),
        group_id=sample.group_id,
        trajectory_id=sample.trajectory_id,
    )
