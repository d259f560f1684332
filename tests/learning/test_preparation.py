"""Truncated and masked importance sampling by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from repairgym.config.algorithms import MaskCorrectionConfig, TruncateCorrectionConfig
from repairgym.learning.preparation import correct

SAMPLER = np.array([-2.0, -2.0, -2.0], np.float32)
LEARNER = SAMPLER + np.log(np.array([1.0, 4.0, 0.25], np.float32))


def test_truncation_bounds_the_ratio_from_above() -> None:
    got = correct(LEARNER, SAMPLER, TruncateCorrectionConfig(max_ratio=2.0))
    assert got.factor == pytest.approx([1.0, 2.0, 0.25], rel=1e-6)
    assert got.is_bounded.tolist() == [False, True, False]


def test_masking_leaves_out_ratios_outside_the_bounds() -> None:
    got = correct(LEARNER, SAMPLER, MaskCorrectionConfig(min_ratio=0.5, max_ratio=5.0))
    assert got.factor == pytest.approx([1.0, 4.0, 0.0], rel=1e-6)
    assert got.is_bounded.tolist() == [False, False, True]


def test_the_ratio_of_a_sequence_is_the_product_of_its_tokens() -> None:
    got = correct(LEARNER[:2], SAMPLER[:2], TruncateCorrectionConfig(level="sequence", max_ratio=3.0))
    assert got.ratio == pytest.approx([4.0, 4.0], rel=1e-6)
    assert got.factor.tolist() == [3.0, 3.0]
    assert correct(LEARNER, SAMPLER, MaskCorrectionConfig(level="sequence")).factor == pytest.approx(
        [1.0] * 3, rel=1e-6
    )


@pytest.mark.parametrize("config", [TruncateCorrectionConfig(), MaskCorrectionConfig(level="sequence")])
def test_equal_policies_are_not_corrected(config: TruncateCorrectionConfig | MaskCorrectionConfig) -> None:
    got = correct(SAMPLER, SAMPLER, config)
    assert got.factor.tolist() == [1.0, 1.0, 1.0]
    assert not got.is_bounded.any()


def test_a_long_sequence_that_has_moved_far_stays_finite() -> None:
    far = correct(np.full(5000, -1.0), np.full(5000, -2.0), TruncateCorrectionConfig(level="sequence"))
    assert far.factor.tolist() == [2.0] * 5000
    assert math.isfinite(far.ratio.max())
