"""Batches of simulated episodes: mutated and damaged functions of the corpus, and real changes.

Reads a corpus; makes `Sample` lists, here or in worker processes. Invariant: the simulated part of a batch follows from
the seed and the number of its step alone, however many processes make it.
"""

import multiprocessing
import os
import random
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from repairgym.config.recipes import PretrainingConfig
from repairgym.errors import InputError
from repairgym.inference.loading import load_tokenizer
from repairgym.inference.renderer import ChatRenderer
from repairgym.learning.samples import Sample
from repairgym.pretraining.changes import FunctionChange
from repairgym.pretraining.corpus import (
    CorpusFunction,
    corpus_functions,
    distribution_files,
    function_digest,
    load_functions,
)
from repairgym.pretraining.damage import damaged
from repairgym.pretraining.repair_episodes import Repair, play_repair
from repairgym.pretraining.synthetic import Segment, synthesize
from repairgym.process_pool import end_with_parent

NUM_VALIDATION = 300
"""Functions, and changes, that are never trained on."""
_AHEAD_PER_WORKER = 2
_CONTROL_KINDS = frozenset({"test", "undo", "submit"})


@dataclass(frozen=True)
class Corpus:
    """Functions and changes, each in a fixed random order."""

    functions: Sequence[CorpusFunction]
    changes: Sequence[Repair] = field(default=())

    @property
    def validation(self) -> "Corpus":
        """The part that is never trained on."""
        return Corpus(self.functions[:NUM_VALIDATION], self.changes[:NUM_VALIDATION])

    @property
    def train(self) -> "Corpus":
        """The rest."""
        return Corpus(self.functions[NUM_VALIDATION:], self.changes[NUM_VALIDATION:])


def load_corpus(config: PretrainingConfig, excluded: frozenset[str] = frozenset()) -> Corpus:
    """Read the functions of ``config``, those with a digest in ``excluded`` left out, and its changes.

    Raises:
        InputError: a file of them cannot be read.
    """
    if config.functions:
        read = load_functions(Path(config.functions))
        functions = [function for function in read if function_digest(function.lines) not in excluded]
    else:
        functions = installed_functions(config, excluded)
    changes = load_changes(Path(config.changes)) if config.changes else []
    random.Random(config.seed).shuffle(functions)
    random.Random(config.seed).shuffle(changes)
    return Corpus(functions, changes)


def installed_functions(config: PretrainingConfig, excluded: frozenset[str]) -> list[CorpusFunction]:
    """Return the functions of ``config.distributions``, those with a digest in ``excluded`` left out."""
    files = [file for name in config.distributions for file in distribution_files(name)]
    return list(corpus_functions(files, excluded, set(), num_workers=len(os.sched_getaffinity(0))))


def load_changes(path: Path) -> list[Repair]:
    """Read the changes that `repairgym train changes` wrote.

    Raises:
        InputError: the file cannot be read.
    """
    try:
        changes = map(FunctionChange.model_validate_json, path.read_bytes().splitlines())
        return [Repair(change.path, change.name, change.before, change.after) for change in changes]
    except (OSError, ValueError) as error:
        fault = str(error).replace("\n", ": ", 1).partition("\n")[0]
        raise InputError(
            f"{path} is no file of changes ({fault}); expected one that `repairgym train changes` wrote"
        ) from error


class BatchSource:
    """The batches of a run."""

    def __init__(self, config: PretrainingConfig, corpus: Corpus, renderer: ChatRenderer) -> None:
        """``corpus``: the part to train on."""
        self._config = config
        self._corpus = corpus
        self._renderer = renderer

    def batch(self, step: int, num_steps: int, num_tokens: int) -> list[Sample]:
        """Return simulated episodes of about ``num_tokens`` tokens for optimizer step ``step``."""
        config = self._config
        generator = random.Random(f"{config.seed}:{step}")
        multi = config.multi_bug_share if step < num_steps * (1 - config.final_share) else 0.0
        samples: list[Sample] = []
        num_done = 0
        while num_done < num_tokens:
            segments = self.episode(multi, generator)
            sample = weighted_sample(segments, self._renderer, config) if segments else None
            if sample is not None and len(sample) <= config.model.max_len_tokens:
                samples.append(sample)
                num_done += len(sample)
        return samples

    def episode(self, multi_bug_share: float, generator: random.Random) -> list[Segment] | None:
        """Return one episode; None where the draw cannot be played."""
        config, corpus = self._config, self._corpus
        roll = generator.random() if config.change_share or config.damage_share else 1.0
        if roll < config.change_share:
            change = corpus.changes[generator.randrange(len(corpus.changes))]
            return play_repair(change, config.noise, generator)
        function = corpus.functions[generator.randrange(len(corpus.functions))]
        if roll < config.change_share + config.damage_share:
            broken = damaged(function, generator)
            repair = Repair(function.path, function.name, broken, function.lines) if broken else None
            return play_repair(repair, config.noise, generator) if repair else None
        num_bugs = generator.randint(2, 4) if generator.random() < multi_bug_share else 1
        return synthesize(function, min(num_bugs, max(1, len(function.sites) // 2)), config.noise, generator)


def num_corrected_tokens(config: PretrainingConfig) -> int:
    """Return the tokens of a batch that corrections have, in the steps that have some."""
    return round(config.batch_tokens * config.corrections.token_share)


class Schedule:
    """The steps of a run; a time limit may make them fewer while batches are made."""

    def __init__(self, config: PretrainingConfig) -> None:
        """Cover ``config.num_tokens``."""
        self._config = config
        self.num_steps = config.num_tokens // config.batch_tokens
        self.corrected_from = self._first_corrected()
        """From this step on batches leave room for corrections; ``num_steps`` without corrections."""

    def shorten(self, num_steps: int, num_done: int) -> None:
        """End after ``num_steps`` steps, if that is earlier; what is left keeps the last share of the shorter run."""
        self.num_steps = min(self.num_steps, max(num_steps, num_done))
        if self.corrected_from > num_done:
            self.corrected_from = max(self._first_corrected(), num_done)

    def num_tokens(self, step: int) -> int:
        """Return the tokens of a step's simulated episodes."""
        left = num_corrected_tokens(self._config) if step >= self.corrected_from else 0
        return self._config.batch_tokens - left

    def _first_corrected(self) -> int:
        share = 1 - self._config.final_share if self._config.corrections.token_share > 0 else 1.0
        return round(self.num_steps * share)


def batches(
    source: BatchSource,
    config: PretrainingConfig,
    tokenizer: Path,
    first: int,
    schedule: Schedule,
    excluded: frozenset[str] = frozenset(),
) -> Iterator[list[Sample]]:
    """Yield the batches of the steps from ``first`` on, made by ``config.num_workers`` processes (0: here).

    ``excluded``: digests of functions that the source's corpus leaves out, and so must that of each process. A schedule
    that becomes shorter counts for the batches that are not yet made: workers are two batches ahead at most.
    """
    steps = _steps(first, schedule)
    if not config.num_workers:
        for step in steps:
            yield source.batch(step, schedule.num_steps, schedule.num_tokens(step))
        return
    spawning = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(config.num_workers, spawning, _open_worker, (config, tokenizer, excluded))
    waiting: deque[Future[list[Sample]]] = deque()
    try:
        for step in steps:
            waiting.append(pool.submit(_batch_of_worker, step, schedule.num_steps, schedule.num_tokens(step)))
            if len(waiting) > _AHEAD_PER_WORKER * config.num_workers:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)


def _steps(first: int, schedule: Schedule) -> Iterator[int]:
    step = first
    while step < schedule.num_steps:
        yield step
        step += 1


_worker: list[BatchSource] = []
"""In a worker process: its source."""


def _open_worker(config: PretrainingConfig, tokenizer: Path, excluded: frozenset[str]) -> None:
    end_with_parent()
    corpus = load_corpus(config, excluded).train
    _worker.append(BatchSource(config, corpus, ChatRenderer(load_tokenizer(tokenizer))))


def _batch_of_worker(step: int, num_steps: int, num_tokens: int) -> list[Sample]:
    return _worker[0].batch(step, num_steps, num_tokens)


def weighted_sample(segments: Sequence[Segment], renderer: ChatRenderer, config: PretrainingConfig) -> Sample:
    """An episode as tokens; guesses and typos weigh nothing."""
    ids: list[int] = []
    weights: list[float] = []
    for segment in segments:
        if segment.kind == "context":
            new = renderer.observation_ids(segment.text, ids[-1]) if ids else renderer.open_ids(segment.text)
            weight = config.context_weight
        else:
            new = renderer.action_ids(segment.text)
            weight = 1.0 if segment.kind == "fix" else config.control_weight * (segment.kind in _CONTROL_KINDS)
        ids += new
        weights += [weight] * len(new)
    weights[0] = 0.0
    token_id = np.asarray(ids, dtype=np.int32)
    return Sample(token_id, np.asarray(weights, dtype=np.float32), np.zeros(len(ids), dtype=np.float32))
