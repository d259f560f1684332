"""Denominators of losses: the weight of each token and the normalizer of an optimizer batch.

Reads the samples of one optimizer batch, weight 1 where a token is learned; makes weights w_t and a normalizer Z,
so that every policy loss is - (sum of w_t * f_t) / Z. Guarantee: the result depends on the batch alone, never on its
cut into micro-batches. With N trajectories of L_i learned tokens in T_i turns, in K groups:

============  =========================  ==========  ===============================================================
name          weight of a token          Z           source
============  =========================  ==========  ===============================================================
token         1                          sum of L_i  DAPO (arXiv 2503.14476, equation 8) as it is computed everywhere
group         1 / learned tokens of its  K           the same equation as it reads: an expectation over problems
              group                                  (paper B, arXiv 2508.03501, equation 8)
trajectory    1 / L_i                    N           GRPO (arXiv 2402.03300, equation 3), GSPO
turn          1 / (T_i * tokens of its   N           GRPO over turns (paper B, equation 7)
              turn)
constant      1                          N * budget  Dr. GRPO (arXiv 2503.20783)
mode          first token of a turn:     N           DeGRPO (Thinkless, arXiv 2505.13379), whose answers have one turn
              alpha / T_i; the others:
              1 / (L_i - T_i)
============  =========================  ==========  ===============================================================

A trajectory whose history forked is several samples with one id: L_i, T_i and N count it once.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from repairgym.config.algorithms import Denominator
from repairgym.learning.samples import Sample


def weigh(
    samples: Sequence[Sample],
    denominator: Denominator,
    max_action_tokens: int | None = None,
    mode_weight: float = 1.0,
) -> tuple[list[Sample], float]:
    """Return one optimizer batch in its order, weighted by the module's table, and the normalizer.

    ``max_action_tokens`` is the budget of *constant*, ``mode_weight`` the alpha of *mode*.
    """
    learned = [sample for sample in samples if sample.num_learned]
    num_trajectories = len({_trajectory_key(sample) for sample in learned})
    match denominator:
        case "token":
            return list(samples), float(sum(sample.num_learned for sample in learned))
        case "constant":
            if max_action_tokens is None:
                raise ValueError("the denominator 'constant' needs max_action_tokens, the budget of an episode")
            return list(samples), float(num_trajectories * max_action_tokens)
        case "group":
            keys = [sample.group_id or _trajectory_key(sample) for sample in learned]
            return _divided(samples, _token_counts(learned, keys)), float(len(set(keys)))
        case "trajectory":
            keys = [_trajectory_key(sample) for sample in learned]
            return _divided(samples, _token_counts(learned, keys)), float(num_trajectories)
        case "turn":
            return _divided(samples, _turn_divisors(learned)), float(num_trajectories)
        case "mode":
            return _divided(samples, _mode_divisors(learned, mode_weight)), float(num_trajectories)


def cut_to_budget(samples: Sequence[Sample], token_budget: int) -> list[Sample]:
    """Return samples in their order up to ``token_budget`` learned tokens; the last is cut, later ones are left out.

    C3PO (Ring-lite, arXiv 2506.14731, section 3.2). With the budget as normalizer every optimizer step has the same
    scale, whatever the lengths.
    """
    chosen = []
    num_left = token_budget
    for sample in samples:
        if num_left <= 0:
            break
        positions = np.flatnonzero(sample.weight)
        if len(positions) > num_left:
            weight = sample.weight.copy()
            weight[positions[num_left:]] = 0.0
            sample = replace(sample, weight=weight)
        chosen.append(sample)
        num_left -= len(positions)
    return chosen


def _trajectory_key(sample: Sample) -> str:
    return sample.trajectory_id or f"#{id(sample)}"


def _token_counts(samples: Sequence[Sample], keys: Sequence[str]) -> dict[int, np.ndarray]:
    """By sample: [tokens] number of learned tokens of all samples with the same key."""
    counts: Counter[str] = Counter()
    for sample, key in zip(samples, keys, strict=True):
        counts[key] += sample.num_learned
    return {id(sample): np.full(len(sample), counts[key]) for sample, key in zip(samples, keys, strict=True)}


def _turn_divisors(samples: Sequence[Sample]) -> dict[int, np.ndarray]:
    """By sample: [tokens] learned turns of the trajectory times learned tokens of the token's turn."""
    counts: dict[str, Counter[int]] = {}
    turns = {id(sample): _turns(sample) for sample in samples}
    for sample in samples:
        counts.setdefault(_trajectory_key(sample), Counter()).update(turns[id(sample)][sample.weight != 0.0].tolist())
    divisors = {}
    for sample in samples:
        own = counts[_trajectory_key(sample)]
        divisors[id(sample)] = np.array([len(own) * own.get(int(turn), 1) for turn in turns[id(sample)]])
    return divisors


def _mode_divisors(samples: Sequence[Sample], mode_weight: float) -> dict[int, np.ndarray]:
    """By sample: [tokens] learned turns over the weight for first tokens of turns, else the number of other tokens.

    A turn whose first token is not learned has no choice of a mode.
    """
    is_mode, num_modes, num_others = dict[int, np.ndarray](), Counter[str](), Counter[str]()
    for sample in samples:
        turns, is_learned = _turns(sample), sample.weight != 0.0
        is_first = np.append(True, turns[1:] != turns[:-1]) if sample.turn is not None else is_learned.cumsum() == 1
        is_mode[id(sample)] = is_first & is_learned
        num_first = int(is_mode[id(sample)].sum())
        num_modes[_trajectory_key(sample)] += num_first
        num_others[_trajectory_key(sample)] += sample.num_learned - num_first
    keys = {id(sample): _trajectory_key(sample) for sample in samples}
    return {
        place: np.where(first, num_modes[keys[place]] / mode_weight, max(1, num_others[keys[place]]))
        for place, first in is_mode.items()
    }


def _turns(sample: Sample) -> np.ndarray:
    return np.zeros(len(sample), np.int32) if sample.turn is None else sample.turn


def _divided(samples: Sequence[Sample], divisors: dict[int, np.ndarray]) -> list[Sample]:
    return [
        replace(sample, weight=(sample.weight / divisors[id(sample)]).astype(np.float32))
        if id(sample) in divisors
        else sample
        for sample in samples
    ]
