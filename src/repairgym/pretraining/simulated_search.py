"""Search in simulation: a policy looks for the repair of corpus functions, edit by edit, without a sandbox.

Reads corpus functions and an `Engine`; makes `Search` records, what they say about a base (`SearchScore`), and samples
to learn from (`correction_samples`). The policy writes edits only; the rest is done for it as a careful person would:
after an edit a test run, after a failed run an undo. Invariants: the simulated tests pass exactly when the function is
as it was; the observations are those of the tools; a function's bug and message follow from the seed.
"""

import copy
import functools
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
from transformers import PreTrainedModel

from repairgym.config.models import EngineConfig
from repairgym.config.recipes import CorrectionConfig
from repairgym.inference.engine.core import Engine
from repairgym.inference.renderer import ChatRenderer
from repairgym.learning.samples import Sample
from repairgym.pretraining.corpus import CorpusFunction
from repairgym.pretraining.synthetic import SimulatedEpisode, break_function
from repairgym.records import Record

MAX_ACTION_TOKENS = 24
_EDIT = "edit"
_SEED_STRIDE = 1_000_003


@dataclass
class Search:
    """One search: the transcript as token ids, and where the policy had to decide."""

    episode: SimulatedEpisode
    fix_ids: list[int]
    """Tokens of the right action, at every decision the same."""
    token_ids: list[int]
    decisions: list[int] = field(default_factory=list)
    """Length of ``token_ids`` before each edit."""
    edits: list[str] = field(default_factory=list)
    num_errors: int = 0
    is_repaired: bool = False


class SearchScore(Record):
    """Scores of a policy's searches; shares are of all functions or of all edits."""

    num_searches: int
    solved_within: dict[int, float]
    """Number of edits -> share of functions repaired by then."""
    error_rate: float
    """Share of edits that the tool rejected."""
    repeat_rate: float
    """Edits that this search had tried before."""


def run_searches(
    engine: Engine, renderer: ChatRenderer, functions: Sequence[CorpusFunction], max_edits: int, seed: int
) -> list[Search]:
    """One search per function that can be broken; at most ``max_edits`` edits each, sampled at temperature 1."""
    generators = (random.Random(f"{seed}:{k}") for k in range(len(functions)))
    started = map(partial(_start, renderer), functions, generators)
    searches = [search for search in started if search is not None]
    waiting = list(range(len(searches)))[::-1]
    live: dict[int, int] = {}
    edit_ids = renderer.action_ids(_EDIT)[:-1]

    def submit(number: int) -> None:
        search = searches[number]
        search.decisions.append(len(search.token_ids))
        request = engine.submit(
            str(number),
            search.token_ids + edit_ids,
            max_tokens=MAX_ACTION_TOKENS,
            stop_token_ids=renderer.stop_token_ids,
            seed=(seed * _SEED_STRIDE + number) * _SEED_STRIDE + len(search.edits),
        )
        live[id(request)] = number

    while waiting or live:
        while waiting and len(live) < engine.config.num_slots:
            submit(waiting.pop())
        for request in engine.step():
            number = live.pop(id(request))
            search = searches[number]
            _answer(renderer, search, edit_ids + request.token_ids, request.is_stopped)
            room = engine.config.max_len_tokens - len(search.token_ids) - MAX_ACTION_TOKENS
            if search.is_repaired or len(search.edits) >= max_edits or room <= 0:
                engine.end_session(str(number))
            else:
                submit(number)
    return searches


def _start(renderer: ChatRenderer, function: CorpusFunction, generator: random.Random) -> Search | None:
    case = break_function(function, 1, generator)
    if case is None:
        return None
    episode = case.episode(generator)
    fix_ids = renderer.action_ids(f"edit {case.fixes[0]}")
    return Search(episode, fix_ids, renderer.open_ids(episode.opening(case.issue)))


def _answer(renderer: ChatRenderer, search: Search, action_ids: list[int], is_stopped: bool) -> None:
    """Let the environment answer an edit, then test and undo for the policy."""
    action = renderer.decode(action_ids)
    observation = search.episode.step(action)
    search.edits.append(action)
    search.token_ids += action_ids + renderer.observation_ids(observation, action_ids[-1] if is_stopped else None)
    if observation.startswith("error"):
        search.num_errors += 1
        return
    for forced in ("test", "undo"):
        search.is_repaired = search.episode.is_repaired
        observation = search.episode.step(forced)
        forced_ids = renderer.action_ids(forced)
        search.token_ids += forced_ids + renderer.observation_ids(observation, forced_ids[-1])
        if search.is_repaired:
            return


def score_searches(searches: Sequence[Search], budgets: Sequence[int] = (1, 2, 4, 8)) -> SearchScore:
    """Shares over ``searches``; ``budgets`` are numbers of edits."""
    num = max(1, len(searches))
    num_edits = max(1, sum(len(search.edits) for search in searches))
    return SearchScore(
        num_searches=len(searches),
        solved_within={
            budget: sum(search.is_repaired and len(search.edits) <= budget for search in searches) / num
            for budget in budgets
        },
        error_rate=sum(search.num_errors for search in searches) / num_edits,
        repeat_rate=sum(len(search.edits) - len(set(search.edits)) for search in searches) / num_edits,
    )


def correction_samples(searches: Sequence[Search], num_per_search: int, generator: random.Random) -> Iterator[Sample]:
    """Yield the right action after the policy's own errors (DAgger, Ross et al. 2011; the expert inverts the bug).

    ``num_per_search`` decisions of each search are kept, the first always. The samples of a search share its opening;
    only the right edit has a weight.
    """
    for number, search in enumerate(searches):
        later = search.decisions[1:]
        chosen = search.decisions[:1] + generator.sample(later, min(num_per_search - 1, len(later)))
        for position in sorted(chosen):
            ids = np.asarray(search.token_ids[:position] + search.fix_ids, dtype=np.int32)
            weight = np.zeros(len(ids), dtype=np.float32)
            weight[position:] = 1.0
            yield Sample(ids, weight, np.zeros(len(ids), dtype=np.float32), group_id=f"search-{number}")


class Corrections:
    """Searches of the policy, made again at each `refresh`, and the batches cut from them."""

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

    @property
    def is_empty(self) -> bool:
        """True before the first `refresh`."""
        return not self._searches

    @functools.cached_property
    def _engine(self) -> Engine:
        return Engine(copy.deepcopy(self._model), EngineConfig(num_slots=64, max_len_tokens=self._max_len_tokens))

    def refresh(self, functions: Sequence[CorpusFunction], step: int) -> None:
        """Search with the current weights on functions drawn for ``step``."""
        generator = random.Random(f"{self._seed}:search:{step}")
        chosen = [functions[generator.randrange(len(functions))] for _ in range(self._config.num_searches)]
        self._searches = self._search(chosen, step)

    def score(self, functions: Sequence[CorpusFunction]) -> SearchScore:
        """Score the searches of the current weights on ``functions``; every call has the same bugs."""
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
