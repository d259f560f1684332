"""The same tensors for our losses and for those of TRL and verl, and a table of how far they are apart.

Needs `requirements-parity.txt`; run with `make parity`. Everything is float64, so that what differs is the algorithm.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch

from repairgym.config.algorithms import LossConfig, ReferenceKlConfig
from repairgym.learning.denominators import weigh
from repairgym.learning.losses import policy_loss
from repairgym.learning.packing.forward import TokenScores
from repairgym.learning.samples import Sample

ROWS, WIDTH, GROUP_SIZE = 12, 24, 4
Pair = tuple[torch.Tensor, torch.Tensor]
"""A loss and its gradient."""
_TABLE: list[tuple[str, float, float]] = []


@dataclass
class Case:
    """Twelve trajectories in three groups, some of whose tokens are observations; all tensors [rows, width]."""

    mask: torch.Tensor
    log_prob: torch.Tensor
    old: torch.Tensor
    reference: torch.Tensor
    advantage: torch.Tensor
    value: torch.Tensor
    old_value: torch.Tensor
    target: torch.Tensor
    group_size: int = GROUP_SIZE
    groups: np.ndarray = field(default_factory=lambda: np.repeat(np.arange(ROWS // GROUP_SIZE), GROUP_SIZE))

    def samples(self) -> list[Sample]:
        """The rows as samples: one context token, then the row; the masked tokens are context."""
        made = []
        for row in range(len(self.mask)):
            weight = np.append(0.0, self.mask[row].numpy()).astype(np.float32)
            ids = np.zeros(len(weight), np.int32)
            made.append(Sample(ids, weight, np.zeros(len(weight), np.float32), 1.0, str(self.groups[row])))
        return made

    def ours(
        self, config: LossConfig, kl: ReferenceKlConfig | None = None, factor: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Our loss and its gradient by ``log_prob`` [rows, width]; ``factor`` is a correction for the sampler."""
        weighed, normalizer = weigh(self.samples(), config.denominator, getattr(config, "max_action_tokens", None))
        weight = torch.tensor(np.stack([sample.weight[1:] for sample in weighed])).double()
        at = self.mask > 0
        log_prob = self.log_prob.clone().requires_grad_()
        row = torch.arange(len(self.mask))[:, None].expand_as(at)[at]
        scores = TokenScores(
            log_prob[at],
            torch.zeros(int(at.sum())),
            self.old[at],
            self.advantage[at],
            (weight if factor is None else weight * factor)[at],
            torch.unique(row, return_inverse=True)[1],
            self.reference[at],
            self.old_value[at],
            self.target[at],
            self.value[at],
        )
        loss = policy_loss(config, kl)(scores, normalizer).loss
        loss.backward()
        assert log_prob.grad is not None
        return loss.detach(), log_prob.grad


def make_case(seed: int, spread: float = 0.3) -> Case:
    generator = torch.Generator().manual_seed(seed)

    def normal() -> torch.Tensor:
        return torch.randn(ROWS, WIDTH, generator=generator, dtype=torch.float64)

    length = torch.randint(4, WIDTH + 1, (ROWS, 1), generator=generator)
    is_observation = torch.rand(ROWS, WIDTH, generator=generator) < 0.25
    mask = ((torch.arange(WIDTH) < length) & ~is_observation).double()
    mask[:, 0] = 1.0
    old = -normal().abs() - 0.1
    advantage = torch.randn(ROWS, 1, generator=generator, dtype=torch.float64).expand(ROWS, WIDTH)
    return Case(mask, old + spread * normal(), old, old + 0.2 * normal(), advantage, normal(), normal(), normal())


@pytest.fixture(params=[0, 1, 2])
def case(request: pytest.FixtureRequest) -> Case:
    return make_case(request.param)


@pytest.fixture
def rewards(case: Case) -> torch.Tensor:
    """[rows] of 0, 0.5 and 1, unequal in each group."""
    generator = torch.Generator().manual_seed(int(case.mask.sum()))
    drawn = torch.randint(0, 3, (ROWS,), generator=generator).double() / 2
    drawn[::GROUP_SIZE], drawn[1::GROUP_SIZE] = 0.0, 1.0
    return drawn


@pytest.fixture
def compare() -> Callable[[str, Pair, Pair], None]:
    return check_equal


def check_equal(name: str, ours: Pair, theirs: Pair, tolerance: float = 1e-6) -> None:
    """Equal losses and gradients, relative to the largest gradient; the differences go to the table."""
    loss_gap = float((ours[0] - theirs[0]).abs() / theirs[0].abs().clamp(min=1e-3))
    gradient_gap = float((ours[1] - theirs[1]).abs().max() / theirs[1].abs().max().clamp(min=1e-12))
    _TABLE.append((name, loss_gap, gradient_gap))
    assert loss_gap < tolerance, f"{name}: losses {float(ours[0])} and {float(theirs[0])}"
    assert gradient_gap < tolerance, f"{name}: gradients differ by {gradient_gap:.1e} of the largest"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if not _TABLE:
        return
    terminalreporter.section("parity: largest relative difference over the cases")
    terminalreporter.write_line(f"{'what':44} {'value':>9} {'gradient':>9}")
    for name in dict.fromkeys(row[0] for row in _TABLE):
        rows = [row for row in _TABLE if row[0] == name]
        terminalreporter.write_line(f"{name:44} {max(r[1] for r in rows):9.1e} {max(r[2] for r in rows):9.1e}")
