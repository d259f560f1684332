"""Files of trajectories, and their import: text that can be imitated, and nothing more.

Guarantees: a file is complete or absent; an unusable document is reported, and the others are read. The ledger of an
import is the text encoded here, or the tokens of a trainer's dump where the tokenizer at hand gives its text; actions
have no policy version, so supervised training accepts them and RL rejects them; a trajectory passes only when exactly
its patch was graded here (`repairgym grade`); other splits than ``train`` have their own phase.
"""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

from repairgym.bridges.trajectories.base import Document, ExchangeTrajectory, FormatError, TrajectoryFormat, full_text
from repairgym.bridges.trajectories.dumps import keep_dumped_tokens, slime_samples
from repairgym.bridges.trajectories.formats import FORMATS, detect_format
from repairgym.bridges.trajectories.span_reader import add_spans, is_spans
from repairgym.config.commands import GradeCommandConfig
from repairgym.config.loading import load_config
from repairgym.errors import ConfigError, InputError, install_hint
from repairgym.grading.execution import GRADER_VERSION
from repairgym.grading.predictions.reading import Prediction
from repairgym.grading.predictions.results import ResultsFolder, grading_key
from repairgym.inference.renderer import ChatRenderer
from repairgym.ledger import UNKNOWN_VERSION, LedgerBuilder
from repairgym.records import StopReason, Task, Trajectory, Turn, Verdict, VerdictKind
from repairgym.rollout.store import RunStore
from repairgym.tasks.layers.atomic_write import written_whole

_LINES = ".jsonl"
_NAMED_ONLY = (".json", ".pt")
PHASE = "import"
"""Of tasks of the train split; others are in ``import/SPLIT``."""
UNKNOWN = "unknown"
"""Split of imports whose task nobody knows: they are there to be read."""
PIPELINE = "imported"
_UNUSABLE = (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, OSError, NotImplementedError)
"""Errors of a document or a file that is not what its name says."""
Found = tuple[str, str, Document | Exception]
"""Place and name of a document, and the document or the reason why there is none."""


@dataclass(frozen=True)
class BadDocument:
    """A document that was not read."""

    place: str
    reason: str


def write_trajectories(trajectories: Iterable[ExchangeTrajectory], form: TrajectoryFormat, out: Path) -> int:
    """Write ``trajectories`` to ``out``: a file, or a folder for a format of one file each; returns their number."""
    if form.write is None:
        raise ConfigError(f"the format {form.name} is only read, by import and view")
    documents = ((trajectory.id, form.write(trajectory)) for trajectory in trajectories)
    if form.suffix == _LINES:
        lines = [json.dumps(document, ensure_ascii=False) for _, document in documents]
        _write(out, "".join(f"{line}\n" for line in lines))
        return len(lines)
    count = 0
    for name, document in documents:
        _write(out / f"{quote(name, safe='')}{form.suffix}", json.dumps(document, ensure_ascii=False, indent=1) + "\n")
        count += 1
    return count


def read_trajectories(source: Path, form: TrajectoryFormat | None = None) -> Iterator[ExchangeTrajectory | BadDocument]:
    """Yield the trajectories of a file, or of all files below a folder with a suffix of a format.

    ``form`` None: detected for each document. `InputError`: no such file, or a folder without any of this kind.
    """
    for path in _files(source):
        for place, name, content in _documents_and_end(path):
            try:
                if isinstance(content, Exception):
                    raise content
                trajectory = (form or detect_format(content)).read(content, name)
            except _UNUSABLE as error:
                # Other people's files: a field of a wrong type is reported, not raised.
                yield BadDocument(place, str(error) if isinstance(error, FormatError) else f"malformed: {error!r}")
            else:
                yield trajectory


def _documents_and_end(path: Path) -> Iterator[Found]:
    """Yield the documents of a file, last the error that ends its reading; raise only what its user can mend."""
    try:
        yield from _documents(path)
    except (ConfigError, InputError):
        raise
    except _UNUSABLE as error:
        yield str(path), path.stem, error


def _files(source: Path) -> list[Path]:
    if source.is_file():
        return [source]
    # Other files end with .json and .pt, too, so logs of Inspect and dumps of slime are named one by one.
    suffixes = (*(form.suffix for form in FORMATS.values() if form.suffix not in _NAMED_ONLY), "trajectory.json")
    paths = sorted(path for path in source.rglob("*") if path.is_file() and path.name.endswith(suffixes))
    if not paths:
        raise InputError(f"{source} holds no trajectory; expected a file, or a folder with *{', *'.join(suffixes)}")
    return paths


def _documents(path: Path) -> Iterator[Found]:
    """Yield (place, name, document), with an error in place of a document that is not one."""
    if path.suffix == ".parquet":
        yield from _rows(path)
        return
    if path.suffix == ".pt":
        yield from slime_samples(path)
        return
    if path.suffix == ".eval":
        raise InputError(f"{path} is packed; unpack it: inspect log convert {path} --to json --output-dir logs")
    text = path.read_text(encoding="utf-8", errors="replace")
    name = path.name
    for suffix in (".traj.json", ".traj", ".trajectory.json", ".json"):
        name = name.removesuffix(suffix)
    if path.suffix == _LINES:
        # JSON leaves the line separators of Unicode as they are, so they end no line here.
        lines = [(number, _object(line)) for number, line in enumerate(text.split("\n"), 1) if line.strip()]
        yield from _traces(path, [(f"{path}, line {n}", d) for n, d in lines if d and is_spans(d)])
        for number, document in lines:
            if not is_spans(document):
                yield f"{path}, line {number}", f"{name}-{number}", _or_error(document)
        return
    whole = _object(text)
    if whole and is_spans(whole):
        yield from _traces(path, [(str(path), whole)])
    elif whole and {"eval", "samples"} <= set(whole):
        for number, sample in enumerate(whole["samples"] or (), 1):
            is_named = isinstance(sample, Mapping) and "id" in sample
            place = f"{path}, sample {sample['id'] if is_named else f'number {number}'}"
            yield place, name, sample if is_named else FormatError("a sample without id")
    else:
        yield str(path), path.parent.name if name == "trajectory" else name, _or_error(whole)


def _or_error(document: Document | None) -> Document | Exception:
    return FormatError("not a JSON object") if document is None else document


def _traces(path: Path, messages: Iterable[tuple[str, Document]]) -> Iterator[Found]:
    """Yield the traces of ``messages`` (place, message), and an error for each message that is malformed."""
    traces: dict[str, dict[str, Any]] = {}
    for place, message in messages:
        try:
            add_spans(traces, message)
        except _UNUSABLE as error:
            yield place, path.stem, error
    yield from ((f"{path}, trace {trace_id}", trace_id, trace) for trace_id, trace in traces.items())


def _rows(path: Path) -> Iterator[Found]:
    try:
        from pyarrow import parquet
    except ImportError:
        raise ConfigError(f"{path} needs pyarrow: {install_hint('datasets')}") from None
    for number, row in enumerate(parquet.read_table(path).to_pylist(), 1):
        yield f"{path}, row {number}", f"{path.stem}-{number}", row


def _object(text: str) -> dict[str, Any] | None:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _write(path: Path, text: str) -> None:
    with written_whole(path) as stream:
        # A lone surrogate, of a file that is no UTF-8, becomes JSON's own escape of it.
        stream.write(text.encode(errors="backslashreplace"))


class Gradings:
    """A results folder of `repairgym grade`."""

    def __init__(self, folder: Path) -> None:
        """Read its configuration; `InputError` where ``folder`` is no results folder."""
        path = folder / "config.toml"
        if not path.is_file():
            raise InputError(f"{folder} has no config.toml; expected the results folder of repairgym grade")
        self._config = load_config(GradeCommandConfig, path, []).grading
        self._results = ResultsFolder(folder)

    def verdict(self, task: Task, patch: str) -> Verdict | None:
        """Return the verdict on this patch; None when exactly this patch was not graded."""
        prediction = Prediction(instance_id=task.id, model_name_or_path="", model_patch=patch)
        result = self._results.load(prediction, grading_key(task, patch, self._config))
        return result.verdict if result else None


@dataclass
class Imported:
    """Counts and errors of an import."""

    num_stored: int = 0
    num_known: int = 0
    """Already in the run."""
    verdicts: Counter[str] = field(default_factory=Counter)
    bad: list[BadDocument] = field(default_factory=list)


def import_trajectories(
    documents: Iterable[ExchangeTrajectory | BadDocument],
    store: RunStore,
    tasks: Mapping[str, Task] | None,
    renderer: ChatRenderer,
    gradings: Gradings | None = None,
) -> Imported:
    """Store the trajectories of ``tasks``; returns the others with the reason. Without tasks it stores all."""
    result = Imported()
    for document in documents:
        if isinstance(document, BadDocument):
            result.bad.append(document)
        elif tasks is not None and document.instance_id not in tasks:
            result.bad.append(BadDocument(document.id, f"{document.instance_id!r} is none of the {len(tasks)} tasks"))
        else:
            task = tasks[document.instance_id] if tasks is not None else None
            split = task.split if task else UNKNOWN
            phase = PHASE if split == "train" else f"{PHASE}/{split}"
            trajectory = to_trajectory(document, task, renderer, gradings)
            is_new = store.add_trajectory(trajectory, phase=phase, step=0, split=split)
            result.num_stored += is_new
            result.num_known += not is_new
            result.verdicts[trajectory.verdict.kind.value] += is_new
    return result


def to_trajectory(
    imported: ExchangeTrajectory, task: Task | None, renderer: ChatRenderer, gradings: Gradings | None = None
) -> Trajectory:
    """Make the record of an imported trajectory; without a task it has no verdict."""
    ledger = LedgerBuilder()
    turns = keep_dumped_tokens(imported, renderer, ledger) or _encode(imported, renderer, ledger)
    name = imported.id if imported.id == imported.instance_id else f"{imported.instance_id}/{imported.id}"
    verdict = gradings.verdict(task, imported.patch) if gradings and task else None
    reason = "imported and not graded here; give the results folder of repairgym grade"
    return Trajectory(
        id=f"{PHASE}/{imported.agent or 'chat'}/{name}",
        task_id=imported.instance_id,
        group_id=f"{PHASE}/{imported.instance_id}",
        pipeline=PIPELINE,
        policy_id=imported.model or imported.agent or PIPELINE,
        sandbox_backend="none",
        turns=tuple(turns),
        ledger=ledger.build(),
        stop_reason=_stop_reason(imported),
        final_files={},
        final_patch=imported.patch,
        verdict=verdict or Verdict(kind=VerdictKind.INVALID, reason=reason, grader_version=GRADER_VERSION),
        seed=0,
    )


def _encode(imported: ExchangeTrajectory, renderer: ChatRenderer, ledger: LedgerBuilder) -> list[Turn]:
    """Append the text to ``ledger`` as tokens of the tokenizer at hand; return its turns."""
    if imported.opening:  # a trace may hold answers only
        ledger.append_context(renderer.conversation_ids(imported.opening))
    turns: list[Turn] = []
    for number, step in enumerate(imported.steps):
        text = full_text(step)
        ids = renderer.action_ids(text)
        span = ledger.append_action(ids, [0.0] * len(ids), UNKNOWN_VERSION)
        if number + 1 < len(imported.steps):
            ledger.append_context(renderer.observation_ids(step.observation, stop_id=ids[-1]))
        call = step.calls[0] if step.calls else None
        turns.append(
            Turn(
                action=text,
                tool=call.name if call else None,
                arguments=call.arguments if call else {},
                observation=step.observation,
                action_span=span,
                tool_s=step.duration_s,
            )
        )
    return turns


def _stop_reason(imported: ExchangeTrajectory) -> StopReason:
    """Map our own values to themselves; others write ``Submitted``, ``submitted (exit_cost)`` or names of limits."""
    if imported.exit_status in {reason.value for reason in StopReason}:
        return StopReason(imported.exit_status)
    is_submitted = "submitted" in imported.exit_status.lower() or (not imported.exit_status and bool(imported.patch))
    return StopReason.SUBMITTED if is_submitted else StopReason.TURN_LIMIT
