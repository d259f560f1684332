"""Perturbation of the weights towards the best checkpoints, where validation no longer improves (after MENTOR).

Reads stored validations and the checkpoints that they were made with; changes a learner between an update and its save.
Guarantees: whether, to what and by how much follow from what is stored before the iteration, the seed and the
iteration alone, so a killed run that makes the update again makes the same one; the optimizer begins again behind it.
"""

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch

from repairgym.config.exploration import PerturbationConfig
from repairgym.errors import ConfigError
from repairgym.inference.loading import load_model
from repairgym.learning.learner import Learner
from repairgym.learning.samples import Sample
from repairgym.training.run import Run

SCORE = "validation/pass_at_1"
KEPT_SHARE = "perturbation/kept_share"
"""Metric of an iteration whose update was followed by a perturbation: a of w <- a w + (1 - a) w'."""
_OUTPUT_PROJECTIONS = ("mlp.down_proj", "mlp.fc2", "mlp.dense_4h_to_h")
"""Layers whose inputs are the units of a feed-forward layer behind its activation, by the ends of their names."""
_NUM_SAMPLES = 16
"""Sequences on which dormant units are counted."""


def step_checkpoint(phase: str, num_done: int) -> str:
    """Return the name of the checkpoint that a stage keeps with a validation."""
    return f"{phase}-step-{num_done:04d}"


def is_plateau(scores: Sequence[tuple[int, float]], step: int, done: Collection[int], patience: int) -> bool:
    """Return True where the validation of ``step`` is at least the ``patience``-th without a better one.

    ``scores``: (step, score) of validations; counted are those behind the first best one and behind the last of the
    perturbations ``done``, whose weights the next validation shows first.
    """
    known = [(number, score) for number, score in scores if number <= step]
    if not known or known[-1][0] != step:
        return False
    best = max(known, key=lambda it: (it[1], -it[0]))[0]
    since = max([best, *(number for number in done if number < step)])
    return sum(number > since for number, _ in known) >= patience


class Perturbation:
    """The perturbations of one stage."""

    def __init__(self, config: PerturbationConfig, run: Run, phase: str, start: str) -> None:
        """``start``: the checkpoint of iteration 0."""
        self._config = config
        self._run = run
        self._phase = phase
        self._start = start

    def apply(self, learner: Learner, samples: Sequence[Sample], step: int) -> dict[str, float]:
        """Perturb behind the update of iteration ``step`` if the validation before it ended a plateau; return metrics.

        Raises:
            ConfigError: no feed-forward layer of the model is known.
        """
        dormant = dormant_share(learner, samples, self._config.dormant_threshold)
        metrics = {"policy/dormant_share": dormant}
        store = self._run.store
        scores = store.metrics(self._phase, SCORE)
        done = [number for number, _ in store.metrics(self._phase, KEPT_SHARE)]
        if not is_plateau(scores, step, done, self._config.patience):
            return metrics
        config = self._config
        kept = min(max(config.min_kept, 1.0 - config.dormant_rate * dormant), config.max_kept)
        seed = torch.Generator().manual_seed(self._run.seed * 1_000_003 + step)
        perturb(learner, self._best([it for it in scores if it[0] <= step]), kept, seed)
        text = f"iteration {step}: {1.0 - kept:.2f} of the weights drawn around the best checkpoints"
        self._run.progress(self._phase, 0, 0, text)
        return metrics | {KEPT_SHARE: kept}

    def _best(self, scores: Sequence[tuple[int, float]]) -> list[Path]:
        """Return the folders of the checkpoints with the best validations, of equal ones the latest."""
        ranked = sorted(scores, key=lambda it: (it[1], it[0]), reverse=True)[: self._config.num_best]
        names = [step_checkpoint(self._phase, number) if number else self._start for number, _ in ranked]
        return [self._run.checkpoint(name) for name in names]


def perturb(learner: Learner, folders: Sequence[Path], kept: float, generator: torch.Generator) -> None:
    """Set each parameter to ``kept`` w + (1 - ``kept``) w' and clear the optimizer's moments.

    w' is drawn from the normal distribution with mean and population deviation of the parameter in the model folders.
    """
    states = [load_model(folder).state_dict() for folder in folders]
    with torch.no_grad():
        for name, parameter in learner.model.named_parameters():
            values = torch.stack([state[name] for state in states])
            noise = torch.randn(parameter.shape, generator=generator)
            drawn = values.mean(dim=0) + values.std(dim=0, correction=0) * noise
            parameter.copy_(kept * parameter + (1.0 - kept) * drawn.to(parameter.device, parameter.dtype))
    learner.optimizer.reset()


def dormant_share(learner: Learner, samples: Sequence[Sample], threshold: float) -> float:
    """Return the share of units of feed-forward layers that are dormant on the first of ``samples``; 0 without any.

    A unit is dormant when its mean |activation| over the tokens is at most ``threshold`` of the mean of its layer.

    Raises:
        ConfigError: the model's feed-forward layers have names that are not known.
    """
    shown = [sample for sample in samples if sample.num_learned][:_NUM_SAMPLES]
    with _summed_activations(learner.model) as sums:
        if not sums:
            raise ConfigError(
                f"rl.perturbation counts units of layers that end in {', '.join(_OUTPUT_PROJECTIONS)}, and "
                f"{type(learner.model).__name__} has none; set rl.perturbation.type='none'"
            )
        if shown:
            learner.measure(shown)
    if not shown:
        return 0.0
    is_dormant = torch.cat([total <= threshold * total.mean() for total in sums.values()])
    return float(is_dormant.float().mean())


@contextmanager
def _summed_activations(model: torch.nn.Module) -> Iterator[dict[str, torch.Tensor]]:
    """Yield layer -> sum of |activation| of each of its units ([units]), which grows with each forward pass."""
    sums: dict[str, torch.Tensor] = {}

    def hook_of(name: str) -> torch.utils.hooks.RemovableHandle:
        layer = model.get_submodule(name)
        weight = layer.weight
        assert isinstance(weight, torch.Tensor)
        sums[name] = torch.zeros(weight.shape[1], device=weight.device)

        def add(_: torch.nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
            sums[name] += inputs[0].detach().float().abs().reshape(-1, weight.shape[1]).sum(dim=0)

        return layer.register_forward_pre_hook(add)

    names = [name for name, _ in model.named_modules() if name.endswith(_OUTPUT_PROJECTIONS)]
    handles = [hook_of(name) for name in names]
    try:
        yield sums
    finally:
        for handle in handles:
            handle.remove()
