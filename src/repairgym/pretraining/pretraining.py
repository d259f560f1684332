"""Pre-training of a small base: tokenizer and model, from scratch, on simulated repairs of corpus functions.

Reads a corpus (`batches.load_corpus`); makes a model folder with ``manifest.json`` (config, training log) and
``functions.bin`` (digest of every function used, so that a test can show that nothing held out was seen), and a
resumable state next to it while it runs. Invariants: the data of step k follows from the seed and k, and, in the last
share, from the weights at the last save (`corrections`); functions in ``excluded`` never appear.
"""

import json
import random
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from repairgym.config.learning import SftConfig
from repairgym.config.models import TeacherNoise
from repairgym.config.recipes import PretrainingConfig
from repairgym.inference.loading import create_model, load_tokenizer, save_checkpoint
from repairgym.inference.renderer import ChatRenderer
from repairgym.inference.tokenizer import train_tokenizer
from repairgym.learning.checkpoints import STATE_FILE, load_training_state, save_training_state
from repairgym.learning.distributed.fsdp import training_device
from repairgym.learning.samples import Sample
from repairgym.learning.sft import SftTrainer
from repairgym.pretraining.batches import BatchSource, Corpus, Schedule, batches, load_corpus, num_corrected_tokens
from repairgym.pretraining.corpus import function_digest
from repairgym.pretraining.repair_actions import repair_actions
from repairgym.pretraining.repair_episodes import play_repair
from repairgym.pretraining.simulated_search import Corrections
from repairgym.pretraining.synthetic import Segment, synthesize
from repairgym.training.run import Progress, no_progress
from repairgym.training.run_settings import FREE, check_config

NUM_TIMED_STEPS = 60
"""With a time limit: steps that use up the batches made ahead, then as many to measure."""
DIGEST_CHARS = 16
"""Characters of a function's digest that the manifest keeps: 64 bits."""
_TOKENIZER_FOLDER = "tokenizer"
"""In the folder of the saved state; complete when there is a state."""


def pretrain(
    config: PretrainingConfig,
    folder: Path,
    progress: Progress = no_progress,
    *,
    excluded: frozenset[str] = frozenset(),
) -> None:
    """Train from scratch into ``folder``; a killed call resumes from its last saved state.

    Raises:
        InputError: it was begun with another ``config``.
    """
    progress("corpus", 0, 0, "reading functions")
    corpus = load_corpus(config, excluded)
    training = _Pretraining(config, corpus, folder.with_name(f"{folder.name}-state"), progress)
    training.run(excluded)
    training.publish(folder)


class _Pretraining:
    """The state of one run: weights, optimizer, data, log."""

    def __init__(self, config: PretrainingConfig, corpus: Corpus, state: Path, progress: Progress) -> None:
        self._config = config
        self._progress = progress
        self._state = state
        self._validation, self._train = corpus.validation, corpus.train
        self._tokenizer = _tokenizer(config, self._train, state)
        self._schedule = Schedule(config)
        model_config = config.model.model_copy(update={"vocab_size": len(self._tokenizer), "seed": config.seed})
        model: Any = create_model(model_config)  # transformers' types of `to` take no name of a device
        self._model: PreTrainedModel = model.to(training_device())
        sft = SftConfig(optimizer=config.optimizer, compute=config.compute)
        self._trainer = SftTrainer(self._model, sft, num_steps=self._schedule.num_steps)
        self._log = _resume(self._trainer, state, config)
        self._renderer = ChatRenderer(self._tokenizer)
        self._probes = {name: made for name, made in _probes(self._validation, self._renderer).items() if made}
        self._corrections = Corrections(
            config.corrections, self._model, self._renderer, config.model.max_len_tokens // 2, config.seed
        )

    def run(self, excluded: frozenset[str]) -> None:
        """Train to the end, from the last saved state on; ``excluded`` are left out of the corpus."""
        config, first = self._config, self._trainer.learner.optimizer.num_done
        source = BatchSource(config, self._train, self._renderer)
        made = batches(source, config, self._state / _TOKENIZER_FOLDER, first, self._schedule, excluded)
        clock = [time.monotonic()]
        for step, samples in enumerate(made, first):
            self._progress("base", step + 1, self._schedule.num_steps, self._step(step, samples))
            clock.append(time.monotonic())
            if config.time_limit_s is not None and step + 1 - first == 2 * NUM_TIMED_STEPS:
                step_s = (clock[-1] - clock[NUM_TIMED_STEPS]) / NUM_TIMED_STEPS
                num_left = int((config.time_limit_s - (clock[-1] - clock[0])) / step_s)
                self._schedule.shorten(step + 1 + num_left, step + 1)
                self._trainer.learner.optimizer.shorten(self._schedule.num_steps)
            if step + 1 >= self._schedule.num_steps:
                break

    def _step(self, step: int, samples: list[Sample]) -> str:
        """Train one step; save where it is time to. Returns what a person wants to read of it."""
        config = self._config
        corrections = self._corrections if step >= self._schedule.corrected_from else None
        if corrections and (corrections.is_empty or step % config.save_every_steps == 0):
            self._progress("base", step, self._schedule.num_steps, "searching for errors to correct")
            corrections.refresh(self._train.functions, step)
        if corrections:
            samples = corrections.batch(step, num_corrected_tokens(config)) + samples
        metrics = self._trainer.step(samples)
        detail = f"loss {metrics['train/loss']:.3f}"
        if (step + 1) % config.save_every_steps == 0 or step + 1 == self._schedule.num_steps:
            detail += self._measure(step + 1, metrics["train/loss"], corrections)
            extra = {"log": json.dumps(self._log), "config": config.model_dump_json()}
            save_training_state(self._trainer.learner, self._state, extra)
        return detail

    def _measure(self, num_steps: int, loss: float, corrections: Corrections | None) -> str:
        entry: dict[str, Any] = {"step": num_steps, "loss": loss}
        self._log.append(entry)
        detail = ""
        for name, probes in self._probes.items():
            exact, text = probe_accuracy(self._model, probes)
            entry |= {f"{name}exact_fix": exact, f"{name}text": text}
            detail += f", {name}exact fix {exact:.0%}, text {text:.0%}"
        if corrections is None:
            return detail
        score = corrections.score(self._validation.functions)
        entry["search"] = score.model_dump(mode="json")
        return f"{detail}, search {score.solved_within[8]:.0%}, errors {score.error_rate:.0%}"

    def publish(self, folder: Path) -> None:
        """Write the model folder; the saved state is removed."""
        # Half the size to ship; training and inference load it as float32.
        model: Any = self._model
        model = model.to("cpu", torch.bfloat16)
        sha256 = save_checkpoint(model, self._tokenizer, folder)
        manifest = {
            "weights_sha256": sha256,
            "config": self._config.model_dump(mode="json"),
            "num_functions": len(self._train.functions),
            "num_changes": len(self._train.changes),
            "num_parameters": sum(parameter.numel() for parameter in model.parameters()),
            "log": self._log,
        }
        (folder / "manifest.json").write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")
        texts = [function.lines for function in self._train.functions]
        texts += [lines for change in self._train.changes for lines in (change.before, change.after)]
        digests = sorted({function_digest(lines)[:DIGEST_CHARS] for lines in texts})
        (folder / "functions.bin").write_bytes(bytes.fromhex("".join(digests)))
        shutil.rmtree(self._state, ignore_errors=True)


def _tokenizer(config: PretrainingConfig, train: Corpus, state: Path) -> PreTrainedTokenizerFast:
    if (state / STATE_FILE).is_file():
        return load_tokenizer(state / _TOKENIZER_FOLDER)
    generator = random.Random(config.seed)
    functions, changes = train.functions, train.changes
    chosen = generator.sample(functions, min(config.num_tokenizer_functions, len(functions)))
    texts = [_plain(synthesize(function, 1, config.noise, generator) or []) for function in chosen]
    if config.change_share:
        drawn = generator.sample(changes, min(config.num_tokenizer_functions, len(changes)))
        texts += [_plain(play_repair(change, config.noise, generator) or []) for change in drawn]
    tokenizer = train_tokenizer(texts, config.model.vocab_size, config.num_line_labels)
    tokenizer.save_pretrained(state / _TOKENIZER_FOLDER)
    return tokenizer


def _plain(segments: Sequence[Segment]) -> str:
    return "".join(f"user\n{s.text}\n" if s.kind == "context" else f"assistant\n{s.text}\n" for s in segments)


def _resume(trainer: SftTrainer, state: Path, config: PretrainingConfig) -> list[dict[str, Any]]:
    if not (state / STATE_FILE).is_file():
        return []
    extra = load_training_state(trainer.learner, state)
    kept = PretrainingConfig.model_validate_json(extra["config"])
    # Errors to correct are searched with the weights of each save.
    free = tuple(key for key in FREE if key != "*save_every_steps" or config.corrections.token_share == 0)
    check_config(kept, config, free, state, "resume with its own, name another model folder, or remove this one")
    log: list[dict[str, Any]] = json.loads(extra["log"])
    return log


Probe = tuple[list[int], list[int]]
"""(prompt ids, ids of the right first edit)."""


def _probes(validation: Corpus, renderer: ChatRenderer) -> dict[str, list[Probe]]:
    """Single-bug prompts with the edit that repairs them; of changes (``change_``), those of one action."""
    generator = random.Random(9)
    sure = TeacherNoise(knows_fix=1.0, mistypes=0.0)
    episodes = [synthesize(function, 1, sure, generator) for function in validation.functions]
    short = [change for change in validation.changes if len(repair_actions(change.before, change.after) or ()) == 1]
    changes = [play_repair(change, sure, generator) for change in short]
    return {"": _first_actions(episodes, renderer), "change_": _first_actions(changes, renderer)}


def _first_actions(episodes: Sequence[list[Segment] | None], renderer: ChatRenderer) -> list[Probe]:
    return [
        (renderer.open_ids(segments[0].text), renderer.action_ids(segments[1].text))
        for segments in episodes
        if segments and segments[1].kind == "fix"
    ]


@torch.no_grad()
def probe_accuracy(model: torch.nn.Module, probes: Sequence[Probe]) -> tuple[float, float]:
    """(share of exact greedy edits, share of edits whose text before the label is right), teacher-forced."""
    device = next(model.parameters()).device
    num_exact = num_text = 0
    for prompt, answer in probes:
        ids = torch.tensor([prompt + answer], device=device)
        logits = model(input_ids=ids, use_cache=False).logits[0, len(prompt) - 1 : -1]
        is_right = logits.argmax(-1) == ids[0, len(prompt) :]
        num_exact += int(is_right.all())
        num_text += int(is_right[:-2].all())
    return num_exact / max(1, len(probes)), num_text / max(1, len(probes))


def seen_functions(folder: Path) -> frozenset[str]:
    """Digests (first `DIGEST_CHARS` characters) of the functions that a base was trained on."""
    data = (folder / "functions.bin").read_bytes()
    size = DIGEST_CHARS // 2
    return frozenset(data[at : at + size].hex() for at in range(0, len(data), size))
