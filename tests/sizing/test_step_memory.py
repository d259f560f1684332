"""Memory of a training step against what torch's own tracker of FSDP2 counted, and against counted activations."""

from __future__ import annotations

import pytest

from repairgym.sizing.shapes import ModelShape
from repairgym.sizing.step_memory import Share, step_parts

SHAPE = ModelShape(24, 512, 8, 4, 64, 1536, 2048, is_tied=True)


@pytest.mark.parametrize(("num_processes", "counted_mb"), [(2, 675.2), (4, 368.9)])
def test_the_peak_is_what_torch_counts(num_processes: int, counted_mb: float) -> None:
    """By FSDPMemTracker of torch 2.13: the second micro-batch of 64 tokens, float32, activation checkpointing."""
    parts = step_parts(SHAPE, Share(num_processes, 64, 64, is_bf16=False))
    assert sum(parts.values()) / 1e6 == pytest.approx(counted_mb, rel=0.01)


@pytest.mark.parametrize(("lora_rank", "counted"), [(0, 6528), (8, 5560)])
def test_activations_are_what_autograd_keeps(lora_rank: int, counted: int) -> None:
    """Floats per token and layer that `saved_tensors_hooks` saw in a model of this width, rotary tables left out."""
    shape = ModelShape(2, 256, 6, 2, 64, 640, 512)
    share = Share(1, 512, 512, lora_rank, is_bf16=False, is_checkpointing=False)
    assert step_parts(shape, share)["activations of layers"] / (2 * 512 * 4) == counted
    again = Share(1, 512, 512, lora_rank, is_bf16=False)
    assert step_parts(shape, again)["activations of layers"] == 2 * 512 * 4 * 256


def test_only_what_is_sharded_falls_with_the_number_of_processes() -> None:
    two, four = (step_parts(SHAPE, Share(number, 64, 64)) for number in (2, 4))
    assert {name for name in two if four[name] == two[name] / 2} == {"weights and moments", "gradients"}


def test_a_reference_is_weights_without_moments_and_is_sharded() -> None:
    for num_processes in (1, 4):
        without, with_it = (step_parts(SHAPE, Share(num_processes, 64, 64, has_reference=has)) for has in (False, True))
        assert with_it == {**without, "reference": 4 * SHAPE.num_parameters / num_processes}


def test_weights_in_16_bits_are_copied_in_one_process_only() -> None:
    one, two = (step_parts(SHAPE, Share(number, 64, 64)) for number in (1, 2))
    assert one["16-bit weights"] == 2 * SHAPE.num_layers * SHAPE.layer_parameters
    assert "16-bit weights" not in two
