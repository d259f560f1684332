"""Packing changes the work, never the numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, PreTrainedModel

from repairgym.config.learning import ComputeConfig
from repairgym.learning.packing import tree_attention
from repairgym.learning.packing.batching import (
    MIN_SAVED_TOKENS,
    cut_runs,
    grow,
    lexicographic_order,
    pack,
    shared_lengths,
)
from repairgym.learning.packing.forward import Scorer, score
from repairgym.learning.samples import Sample

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
    scorer = Scorer(model)
    for batch in pack(samples, max_tokens, is_sharing=scorer.is_sharing):
        part = score(scorer, batch, compute)
        loss = (part.log_prob * part.weight * part.advantage).sum()
        loss.backward()
        total += float(loss.detach())
    return total, {name: parameter.grad.clone() for name, parameter in model.named_parameters()}


def assert_gradients_equal(got: Gradients, want: Gradients) -> None:
    for name, gradient in want.items():
        scale = float(gradient.abs().max())
        assert torch.allclose(got[name], gradient, rtol=1e-5, atol=2e-5 * scale), name


def mixed_samples(make_group: MakeGroup) -> list[Sample]:
    groups = [make_group(1, 60, (5, 30, 31, 12, 70)), make_group(2, 33, (9, 10)), make_group(3, 90, (20, 25, 21))]
    lone = make_group(4, 15, (40,))
    tiny_prefix = make_group(5, 3, (11, 12))
    return [sample for group in [*groups, lone, tiny_prefix] for sample in group]


def branching_samples(make_group: MakeGroup) -> list[Sample]:
    """Two members share learned tokens, one is the start of another, one stands twice."""
    first, second, third = make_group(7, 40, (60, 20, 30))
    ids = np.concatenate([first.token_id[:75], second.token_id[40:]])
    weight = np.concatenate([first.weight[:75], second.weight[40:]])
    fork = Sample(ids, weight, np.zeros(len(ids), np.float32), -0.7, "group7")
    start = Sample(first.token_id[:70], first.weight[:70], first.old_log_prob[:70], 0.3, "group7")
    return [first, second, third, fork, start, replace(third, advantage=2.0)]


@pytest.mark.parametrize("max_tokens", [4096, 300, 100])
@pytest.mark.parametrize(("head_chunk_tokens", "head_chunk_vocab"), [(4096, 4096), (7, 50)])
def test_values_and_gradients_equal_separate_full_forwards(
    make_model: Callable[[int], PreTrainedModel],
    make_group: MakeGroup,
    max_tokens: int,
    head_chunk_tokens: int,
    head_chunk_vocab: int,
) -> None:
    samples = mixed_samples(make_group) + branching_samples(make_group)
    want, want_gradients = full_forwards(make_model(0), samples)
    compute = ComputeConfig(head_chunk_tokens=head_chunk_tokens, head_chunk_vocab=head_chunk_vocab)
    got, got_gradients = packed(make_model(0), samples, max_tokens, compute)
    assert got == pytest.approx(want, rel=1e-5)
    assert_gradients_equal(got_gradients, want_gradients)


def test_other_architectures_are_packed_too(make_group: MakeGroup) -> None:
    """Llama through the forest, GPT-2 (learned positions, a tied head) too; what brings its own attention, apart."""
    samples = branching_samples(make_group)
    llama = LlamaConfig(
        vocab_size=120, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        intermediate_size=64,
    )  # fmt: skip
    gpt2 = GPT2Config(vocab_size=120, n_embd=32, n_layer=2, n_head=2, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)
    for model in (LlamaForCausalLM(llama), GPT2LMHeadModel(gpt2)):
        want = full_forwards(model, samples)
        got = packed(model, samples, 4096, ComputeConfig())
        assert got[0] == pytest.approx(want[0], rel=1e-5)
        assert_gradients_equal(got[1], want[1])
    model = GPT2LMHeadModel(gpt2)
    model._supports_attention_backend = False
    want, got = full_forwards(model, samples), packed(model, samples, 4096, ComputeConfig())
    assert_gradients_equal(got[1], want[1])


def test_the_bias_of_fused_kernels_says_the_same(
    make_model: Callable[[int], PreTrainedModel], make_group: MakeGroup
) -> None:
    """The mask of an accelerator, computed here: it is defined on every device."""
    shape = tree_attention.forest_shape((5, 3), (-1, 0), torch.device("cpu"))
    bias = tree_attention.causal_lower_right(3, 8)
    query, key = torch.randn(1, 4, 3, 8), torch.randn(1, 2, 8, 8)
    attend = partial(torch.nn.functional.scaled_dot_product_attention, query, key, key, enable_gqa=True)
    assert shape.masks[0] is None
    assert torch.allclose(attend(attn_mask=shape.masks[1]), attend(attn_mask=bias), atol=1e-6)


@pytest.mark.parametrize("parents", [(-1, -1, -1, -1, -1), (-1, -1, 1, -1, 2), (-1, 0, 0, -1, 3)])
def test_segments_without_a_parent_may_be_computed_together(parents: tuple[int, ...]) -> None:
    """Values and gradients are those of the calls one by one, also next to segments with parents."""
    lengths = (9, 10, 4, 10, 3)
    results = []
    for is_batched in (False, True):
        shape = tree_attention.forest_shape(lengths, parents, torch.device("cpu"), is_batched=is_batched)
        assert bool(shape.calls) == is_batched
        torch.manual_seed(0)
        query, key, value = (torch.randn(1, heads, 36, 8, requires_grad=True) for heads in (4, 2, 2))
        module = torch.nn.Module()
        out, _ = tree_attention.tree_attention(module, query, key, value, None, forest=shape)
        (out * torch.randn(out.shape)).sum().backward()
        results.append((out, query.grad, key.grad, value.grad))
    for alone, together in zip(*results, strict=True):
        assert alone is not None
        assert together is not None
        assert torch.allclose(alone, together, atol=1e-5)


def test_each_distinct_token_is_computed_once(make_group: MakeGroup) -> None:
    group = make_group(1, 60, (25, 26, 27))
    (batch,) = pack(group, 4096)
    assert batch.num_tokens == sum(sample.num_to_compute for sample in group) - 2 * 60
    assert sum(part.num_tokens for part in pack(group, 4096, is_sharing=False)) == batch.num_tokens + 2 * 60
    (forked,) = pack(branching_samples(make_group), 4096)
    distinct = {tuple(s.token_id[: end + 1]) for s in branching_samples(make_group) for end in range(s.num_to_compute)}
    # Places to part that save less than a segment costs are computed twice.
    assert len(distinct) <= forked.num_tokens < len(distinct) + MIN_SAVED_TOKENS
    assert len(forked.target) < len(forked.learned)


def test_micro_batches_keep_the_budget_and_every_learned_token(make_group: MakeGroup) -> None:
    samples = mixed_samples(make_group)
    longest = max(len(sample) for sample in samples)
    for max_tokens in (4096, 500, 150):
        batches = pack(samples, max_tokens)
        assert sum(len(batch.learned) for batch in batches) == sum(s.num_learned for s in samples)
        assert max(batch.num_tokens for batch in batches) <= max(max_tokens, longest)
    assert len(pack(samples, 4096)) == 1


def test_a_full_micro_batch_ends_between_groups(make_group: MakeGroup) -> None:
    samples = make_group(1, 50, (20, 20, 20)) + make_group(2, 50, (20, 20, 20))
    batches = pack(samples, 190)
    assert [len(batch.samples) for batch in batches] == [3, 3]


def test_nothing_shared_is_packed_like_plain_packing(make_group: MakeGroup) -> None:
    """So it cannot be slower: the same segments in the same micro-batches."""
    samples = [make_group(seed, 1, (30 + seed,))[0] for seed in range(6)]
    for shared, plain in zip(pack(samples, 100), pack(samples, 100, is_sharing=False), strict=True):
        assert torch.equal(shared.ids, plain.ids)
        assert (shared.lengths, shared.parents) == (plain.lengths, plain.parents)


def test_entropy_is_that_of_the_distribution(model: PreTrainedModel, make_group: MakeGroup) -> None:
    (sample,) = make_group(1, 10, (6,))
    (batch,) = pack([sample], 4096)
    logits = model(torch.from_numpy(sample.token_id).long()[None]).logits[0, :-1]
    want = torch.distributions.Categorical(logits=logits).entropy()[torch.from_numpy(sample.weight[1:] > 0)]
    for chunk_vocab in (4096, 32):
        part = score(Scorer(model), batch, ComputeConfig(head_chunk_vocab=chunk_vocab))
        assert torch.allclose(part.entropy, want, atol=1e-5)


def test_bfloat16_autocast_is_close_and_keeps_float32_results(model: PreTrainedModel, make_group: MakeGroup) -> None:
    (batch,) = pack(make_group(1, 40, (5, 6)), 4096)
    exact = score(Scorer(model), batch, ComputeConfig()).log_prob
    rough = score(Scorer(model), batch, ComputeConfig(is_bf16=True)).log_prob
    assert rough.dtype is torch.float32
    assert 0 < float((exact - rough).detach().abs().mean()) < 0.1


SEQUENCES = st.lists(
    st.lists(st.integers(0, 2), min_size=1, max_size=12).map(lambda ids: np.array(ids, np.int32)),
    min_size=1,
    max_size=12,
)


@given(SEQUENCES, st.integers(1, 6))
@settings(max_examples=150, deadline=None)
def test_paths_spell_the_sequences(sequences: list[np.ndarray], min_saved_tokens: int) -> None:
    ordered = [sequences[at] for at in lexicographic_order(sequences)]
    shared = shared_lengths(ordered, min_saved_tokens)
    forest = grow(ordered, shared)
    for sequence, path in zip(ordered, forest.paths, strict=True):
        assert np.concatenate([forest.segments[at].tokens for at in path]).tolist() == sequence.tolist()
        for before, at in zip((-1, *path), path, strict=False):
            assert forest.segments[at].parent == before < at
        positions = [forest.segments[at].position for at in path]
        assert positions == [0, *np.cumsum([len(forest.segments[at].tokens) for at in path])[:-1]]
    num_tokens = sum(len(segment.tokens) for segment in forest.segments)
    assert num_tokens == sum(map(len, ordered)) - int(shared.sum())
    distinct = {tuple(sequence[: end + 1].tolist()) for sequence in ordered for end in range(len(sequence))}
    assert num_tokens >= len(distinct)
    if min_saved_tokens == 1:
        assert num_tokens == len(distinct)


@given(SEQUENCES, st.integers(1, 40))
@settings(max_examples=100, deadline=None)
def test_runs_keep_the_budget_and_hold_every_sequence_once(sequences: list[np.ndarray], max_tokens: int) -> None:
    ordered = [sequences[at] for at in lexicographic_order(sequences)]
    shared = shared_lengths(ordered, 1)
    lengths = np.array([len(sequence) for sequence in ordered])
    runs = cut_runs(lengths, shared, max_tokens)
    assert [at for run in runs for at in range(run.start, run.stop)] == list(range(len(ordered)))
    for run in runs:
        forest = grow(ordered[run], shared[run])
        size = sum(len(segment.tokens) for segment in forest.segments)
        assert size <= max_tokens or run.stop - run.start == 1


def test_a_branch_that_saves_little_is_not_made() -> None:
    start = list(range(40))
    ordered = [np.array(start + tail, np.int32) for tail in ([50, 51, 52], [50, 51, 60], [70, 71, 72])]
    assert shared_lengths(ordered, 16).tolist() == [0, 40, 40]
    assert shared_lengths(ordered, 1).tolist() == [0, 42, 40]


def test_tokens_behind_the_last_learned_one_are_not_computed(model: PreTrainedModel, make_group: MakeGroup) -> None:
    """A last observation teaches nothing; without it one sample is the beginning of the other."""
    (whole,) = make_group(8, 20, (30,))
    end = whole.num_to_compute
    weight = np.where(np.arange(len(whole)) < 40, whole.weight, np.float32(0.0))
    samples = [replace(whole, token_id=whole.token_id.copy()), replace(whole, weight=weight)]
    behind = np.random.default_rng(0).integers(0, 120, (2, 25))
    longer = [
        replace(
            sample,
            **{name: np.append(array, array.dtype.type(0).repeat(25)) for name, array in sample.arrays().items()},
        )
        for sample in samples
    ]
    for sample, observation in zip(longer, behind, strict=True):
        sample.token_id[len(whole) :] = observation
    assert sum(batch.num_tokens for batch in pack(longer, 10_000)) == end
    assert sum(batch.num_tokens for batch in pack(longer, 10_000, is_sharing=False)) == end + samples[1].num_to_compute
    total, gradients = packed(model, longer, 10_000, ComputeConfig())
    want_total, want = full_forwards(model, longer)
    assert total == pytest.approx(want_total, rel=1e-5)
    assert_gradients_equal(gradients, want)
