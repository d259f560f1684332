"""Corrections: pre-training data made of the policy's own errors.

Reads training functions and the current weights; makes samples in which the policy's own wrong edits stand before the
right one. Invariant: the samples of a step follow from the seed, the step and the weights at the last `refresh`, which
happens where the training state is saved, so a resumed run goes on with the same data.
"""

from __future__ import annotations

import copy
import functools
import random
from collections.abc import Sequence

from transformers import PreTrainedModel

from repairgym.config.models import EngineConfig
from repairgym.config.recipes import CorrectionConfig
from repairgym.inference.engine.core import Engine
from repairgym.inference.renderer import ChatRenderer
from repairgym.learning.samples import Sample
from repairgym.pretraining.corpus import CorpusFunction
from repairgym.pretraining.simulated_search import Search, SearchScore, correction_samples, run_searches, score_searches


class Corrections:
    """Searches of the policy, made anew at each `refresh`, and the batches cut from them."""

    def __init__(
        self, config: CorrectionConfig, model: PreTrainedModel, renderer: ChatRenderer, max_len_tokens: int, seed: int
    ) -> None:
        """``model`` is copied when it first searches: the engine owns what it serves, weights and cache."""
        self._config = config
        self._model = model
        self._renderer = renderer
        self._max_len_tokens = max_len_tokens
        self._seed = seed
        self._searches: list[Search] = []

    @functools.cached_property
    def _engine(self) -> Engine:
        return Engine(copy.deepcopy(self._model), EngineConfig(num_slots=64, max_len_tokens=self._max_len_tokens))

    def refresh(self, functions: Sequence[CorpusFunction], step: int) -> None:
        """Search with the current weights on functions drawn for ``step``."""
        generator = random.Random(f"{self._seed}:search:{step}")
        chosen = [functions[generator.randrange(len(functions))] for _ in range(self._config.num_searches)]
        self._searches = self._search(chosen, step)

    def score(self, functions: Sequence[CorpusFunction]) -> SearchScore:
        """How the current weights search on ``functions``; the same bugs at every call."""
        return score_searches(self._search(functions, 0))

    def batch(self, step: int, num_tokens: int) -> list[Sample]:
        """Samples with about ``num_tokens`` distinct tokens, shared openings counted once."""
        generator = random.Random(f"{self._seed}:correct:{step}")
        chosen: list[Search] = []
        size = 0
        while size < num_tokens:
            search = self._searches[generator.randrange(len(self._searches))]
            chosen.append(search)
            size += search.decisions[-1]
        return list(correction_samples(chosen, self._config.num_per_search, generator))

    def _search(self, functions: Sequence[CorpusFunction], step: int) -> list[Search]:
        self._engine.load_state(self._model.state_dict(), step)
        seed = self._seed + step
        return run_searches(self._engine, self._renderer, functions, self._config.max_edits, seed)
