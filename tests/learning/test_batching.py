"""Prefix sharing changes the work, never the numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
from transformers import PreTrainedModel

from mendwright.config.learning import ComputeConfig
from mendwright.learning.batching import pack
from mendwright.learning.forward import score
from mendwright.learning.samples import Sample, share_prefixes

MakeGroup = Callable[..., list[Sample]]
Gradients = dict[str, torch.Tensor]


def full_forwards(model: PreTrainedModel, samples: Sequence[Sample]) -> tuple[float, Gradients]:
    """The truth: one forward per sample, transformers' own attention, log-softmax over the whole vocabulary."""
    model.set_attn_implementation("sdpa")
    model.zero_grad()
    total = 0.0
    for sample in samples:
        ids = torch.from_numpy(sample.token_id).long()
        log_probs = torch.log_softmax(model(ids[None]).logits[0], -1)[:-1].gather(1, ids[1:, None])[:, 0]
        loss = (log_probs * torch.from_numpy(sample.weight[1:])).sum() * sample.advantage
        loss.backward()
        total += float(loss.detach())
    return total, {name: parameter.grad.clone() for name, parameter in model.named_parameters()}


def packed(
    model: PreTrainedModel, samples: Sequence[Sample], max_tokens: int, compute: ComputeConfig
) -> tuple[float, Gradients]:
    model.zero_grad()
    total = 0.0
    for batch in pack(samples, max_tokens):
        losses = [(part.log_prob * part.weight * part.advantage).sum() for part in score(model, batch, compute)]
        torch.stack(losses).sum().backward()
        total += float(torch.stack(losses).sum().detach())
    return total, {name: parameter.grad.clone() for name, parameter in model.named_parameters()}


def mixed_samples(make_group: MakeGroup) -> list[Sample]:
    groups = [make_group(1, 60, (5, 30, 31, 12, 70)), make_group(2, 33, (9, 10)), make_group(3, 90, (20, 25, 21))]
    lone = make_group(4, 15, (40,))
    tiny_prefix = make_group(5, 3, (11, 12))
    return share_prefixes([sample for group in [*groups, lone, tiny_prefix] for sample in group])


@pytest.mark.parametrize("max_tokens", [4096, 300, 100])
@pytest.mark.parametrize("head_chunk_tokens", [4096, 7])
def test_values_and_gradients_equal_separate_full_forwards(
    make_model: Callable[[int], PreTrainedModel], make_group: MakeGroup, max_tokens: int, head_chunk_tokens: int
) -> None:
    samples = mixed_samples(make_group)
    want, want_gradients = full_forwards(make_model(0), samples)
    compute = ComputeConfig(head_chunk_tokens=head_chunk_tokens)
    got, got_gradients = packed(make_model(0), samples, max_tokens, compute)
    assert got == pytest.approx(want, rel=1e-5)
    for name, gradient in want_gradients.items():
        scale = float(gradient.abs().max())
        assert torch.allclose(got_gradients[name], gradient, rtol=1e-5, atol=1e-5 * scale), name


def test_each_distinct_token_is_computed_once(make_group: MakeGroup) -> None:
    group = share_prefixes(make_group(1, 60, (5, 6, 7)))
    (batch,) = pack(group, 4096)
    # 59 tokens of the prefix; its last token opens each suffix.
    assert batch.num_tokens == 59 + (6 + 7 + 8)
    assert sum(part.num_tokens for part in pack(group, 4096, is_sharing=False)) == 3 * 60 + 18


def test_micro_batches_keep_the_budget_and_every_learned_token(make_group: MakeGroup) -> None:
    samples = mixed_samples(make_group)
    for max_tokens in (4096, 500, 150):
        batches = pack(samples, max_tokens)
        assert sum(len(chunk.target) for batch in batches for chunk in batch.chunks) == sum(
            s.num_learned for s in samples
        )
        longest = max(len(sample) for sample in samples)
        for batch in batches:
            computed = batch.num_tokens + batch.num_padded_tokens
            assert computed <= max(max_tokens, longest) + 128 * len(batch.chunks)


def test_entropy_is_that_of_the_distribution(model: PreTrainedModel, make_group: MakeGroup) -> None:
    (sample,) = make_group(1, 10, (6,))
    (batch,) = pack([sample], 4096)
    (part,) = score(model, batch, ComputeConfig())
    logits = model(torch.from_numpy(sample.token_id).long()[None]).logits[0, :-1]
    want = torch.distributions.Categorical(logits=logits).entropy()[torch.from_numpy(sample.weight[1:] > 0)]
    assert torch.allclose(part.entropy, want, atol=1e-5)


def test_bfloat16_autocast_is_close_and_keeps_float32_results(model: PreTrainedModel, make_group: MakeGroup) -> None:
    samples = share_prefixes(make_group(1, 40, (5, 6)))
    (batch,) = pack(samples, 4096)
    exact = torch.cat([part.log_prob for part in score(model, batch, ComputeConfig())])
    rough = torch.cat([part.log_prob for part in score(model, batch, ComputeConfig(is_bf16=True))])
    assert rough.dtype is torch.float32
    assert 0 < float((exact - rough).detach().abs().mean()) < 0.1
