"""Sweeps: child runs of a command with drawn settings, one or some at a time, resumable.

Reads a `SweepConfig`. Makes ``runs/NNN`` (the child's run folder), ``logs/NNN.log`` and a line of ``results.jsonl`` for
each ended child. Guarantees: child N of a sweep has the same settings however often the sweep is stopped, and whatever
the number of runs; a child that a kill of the sweep left over ends before it is continued in its own folder; a line is
written after its child ended, so that a torn one means a child that runs again; a line holds all that its child adds to
the comparison, so that its run folder may go.
"""

import fcntl
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed, wait
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from pydantic import ValidationError

from repairgym.analysis.sweeps import SweepRun
from repairgym.config.sweep import RUN, ChoiceConfig, Distribution, IntConfig, LogUniformConfig, Setting, SweepConfig
from repairgym.errors import ConfigError, InputError, Interrupted, ModelFolderError
from repairgym.evaluation.pass_at_k import TaskVerdicts, pass_at_1, verdicts_by_task
from repairgym.evaluation.runs import choose_phase
from repairgym.evaluation.variance import RecipeComparison, compare_recipes
from repairgym.records import VerdictKind
from repairgym.rollout.store import RunStore
from repairgym.sandbox.guest.syscalls import set_parent_death_signal
from repairgym.sizing.shapes import read_shape
from repairgym.tasks.layers.atomic_write import append_line

RESULTS_FILE, RESULT_FILE = "results.jsonl", "result.json"
_CLI = (sys.executable, "-c", "import sys; sys.argv[0] = 'repairgym'; from repairgym.cli.main import main; main()")
_USAGE_CODES = (2, 3)
"""A child that ends so was called wrongly, and all others are."""
_INTERRUPTED = 130
_MAX_WAIT_S = 60.0
_FORWARDS_OF_LEARNING = 3.0
"""Forward and backward pass of a learned token, in forward passes."""
Report = Callable[[int, int, str], None]
"""Ended runs, all runs, and a line about the rest."""


def planned_runs(config: SweepConfig) -> list[SweepRun]:
    """Return the runs of a sweep with their settings and seeds, without values.

    Raises:
        ConfigError: there is nothing to draw and no arm.
    """
    if not config.settings and not config.arms:
        raise ConfigError("the sweep has no settings to draw and no arms; give settings.* or arms.*")
    points = (
        [(name, {}) for name in config.arms]
        if config.arms
        else [("", draw_settings(config, number)) for number in range(config.num_runs)]
    )
    # Seeds are the outer loop, so that a sweep stopped early has compared all points.
    return [
        SweepRun(number=number, arm=arm, settings=settings, seed=config.seed + repeat)
        for number, (repeat, (arm, settings)) in enumerate(
            (repeat, point) for repeat in range(config.num_seeds) for point in points
        )
    ]


def draw_settings(config: SweepConfig, number: int) -> dict[str, Setting]:
    """Return the settings of draw ``number``: the same for every number of runs."""
    generator = np.random.default_rng([config.seed, number])
    return {name: _draw(distribution, generator) for name, distribution in config.settings.items()}


def _draw(distribution: Distribution, generator: np.random.Generator) -> Setting:
    if isinstance(distribution, ChoiceConfig):
        return distribution.values[int(generator.integers(len(distribution.values)))]
    if isinstance(distribution, IntConfig):
        return int(generator.integers(distribution.low, distribution.high, endpoint=True))
    if isinstance(distribution, LogUniformConfig):
        low, high = np.log([distribution.low, distribution.high])
        return _rounded(float(np.exp(generator.uniform(low, high))))
    return _rounded(float(generator.uniform(distribution.low, distribution.high)))


def _rounded(value: float) -> float:
    return float(f"{value:.6g}")


def overrides_of(run: SweepRun, config: SweepConfig) -> list[str]:
    """Return the overrides that a child gets."""
    seed = [f"{config.seed_setting}={run.seed}"] if config.seed_setting else []
    return [*(config.arms[run.arm] if run.arm else map(_override, run.settings.items())), *seed]


def _override(setting: tuple[str, Setting]) -> str:
    name, value = setting
    return f"{name}={str(value).lower() if isinstance(value, bool) else value}"


def child_words(run: SweepRun, config: SweepConfig, folder: Path) -> list[str]:
    """Return the words of a child's command, without the interpreter's."""
    return [*_placed(config.command or config.program, _place(folder, run)), *overrides_of(run, config)]


def _placed(words: Sequence[str], place: Path) -> list[str]:
    return [word.replace(RUN, str(place)) for word in words]


def read_results(folder: Path) -> dict[int, SweepRun]:
    """Return number -> ended run; a later line of one run counts, and a torn line does not."""
    try:
        lines = (folder / RESULTS_FILE).read_text(encoding="utf-8", errors="replace").splitlines()
    except FileNotFoundError:
        return {}
    results = {}
    for line in lines:
        try:
            run = SweepRun.model_validate_json(line)
        except ValidationError:
            continue
        results[run.number] = run
    return results


def run_sweep(config: SweepConfig, folder: Path, report: Report) -> list[SweepRun]:
    """Run what has not ended well yet, and return all ended runs; a child that failed before is tried again.

    Values are those of the present ``metric`` and ``window``, also of children that ended under another one.

    Raises:
        ConfigError: a child rejects its command or settings, or the folder's runs are numbered by another plan.
        Interrupted: the child was interrupted; the same call resumes.
    """
    plan, results = planned_runs(config), read_results(folder)
    for run in plan:
        if (ended := results.get(run.number)) and (ended.arm, ended.settings, ended.seed) != _point(run):
            raise ConfigError(
                f"run {run.number} of {folder} has another point than this plan gives it: with num_seeds above 1 a "
                "sweep cannot grow by num_runs; give the old num_runs, or name another folder"
            )
    waiting = [run for run in plan if run.number not in results or results[run.number].status != "done"]
    num_left, started = len(waiting), time.monotonic()
    report(len(plan) - num_left, len(plan), "")
    try:
        with closing(_run_children(waiting, config, folder)) as children:
            for number, ended in enumerate(children, 1):
                _append(folder / RESULTS_FILE, ended.model_dump_json())
                results[ended.number] = ended
                num_left -= ended.status == "done"
                left_min = (time.monotonic() - started) / 60.0 * (len(waiting) - number) / number
                report(len(plan) - num_left, len(plan), f"about {left_min:.0f} min left")
    except KeyboardInterrupt as error:
        raise Interrupted("interrupted; the same command resumes with the runs that had begun") from error
    report(len(plan) - num_left, len(plan), f"{num_left} failed: {folder / 'logs'}" if num_left else "")
    return [value_again(results[run.number], config, folder) for run in plan]


def _run_children(runs: Sequence[SweepRun], config: SweepConfig, folder: Path) -> Generator[SweepRun, None, None]:
    """Yield the runs as they end, ``config.num_concurrent`` at a time.

    An error, a Ctrl-C or an end of reading interrupts the others; a second Ctrl-C kills them.

    Raises:
        ConfigError: a child rejects its command or settings.
        Interrupted: a child was interrupted.
    """
    children = _Children()
    with ThreadPoolExecutor(config.num_concurrent) as executor:
        futures = [executor.submit(_run_child, run, config, folder, children) for run in runs]
        try:
            for future in as_completed(futures):
                yield future.result()
        except BaseException:
            children.end(futures)
            raise


class _Children:
    """The running children of a sweep, each waited for by a thread of its own."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pids: set[int] = set()
        self._signal = 0

    def call(self, words: Sequence[str], output: int, lock: int) -> tuple[int, float]:
        """Run a child to its end; return its exit code (minus the signal that ended it) and processor seconds.

        Ctrl-C reaches the child by the terminal or from here, and a kill of this process by the kernel.
        """
        with self._lock:
            if self._signal:
                return _INTERRUPTED, 0.0
            child = subprocess.Popen(
                words,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                pass_fds=(lock,),
                preexec_fn=lambda: set_parent_death_signal(signal.SIGINT),
            )
            self._pids.add(child.pid)
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # a zombie keeps its pid, so no other gets the signal
        with self._lock:
            self._pids.remove(child.pid)
            _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        return (_INTERRUPTED if self._signal else child.returncode), usage.ru_utime + usage.ru_stime

    def end(self, futures: Sequence[Future[SweepRun]]) -> None:
        """Interrupt the children and wait for their threads; a Ctrl-C meanwhile kills them."""
        for future in futures:
            future.cancel()
        while True:
            try:
                self._send(signal.SIGKILL if self._signal else signal.SIGINT)
                wait(futures)
                return
            except KeyboardInterrupt:
                continue

    def _send(self, number: int) -> None:
        with self._lock:
            self._signal = number
            for pid in self._pids:
                os.kill(pid, number)


def value_again(run: SweepRun, config: SweepConfig, folder: Path) -> SweepRun:
    """Return an ended run with the value that the present ``metric`` reads from its folder, or from its line.

    Raises:
        InputError: the folder does not have it; or it is gone, and the line was written for another metric.
    """
    place = _place(folder, run)
    if run.status != "done":
        return run
    if _has_results(place):
        return run.model_copy(update={"value": read_value(place, config)})
    if run.metric != _metric(config):
        raise InputError(
            f"{place} is gone, and the line of run {run.number} in {RESULTS_FILE} has {run.metric or 'no value'!r}; "
            f"got the metric {_metric(config)!r}"
        )
    return run


def _has_results(place: Path) -> bool:
    return (place / "run.db").is_file() or (place / RESULT_FILE).is_file()


def _has_verdicts(config: SweepConfig) -> bool:
    """Return whether arms are compared by the verdicts of an evaluation."""
    return bool(config.arms) and not config.program and ":" not in config.metric


def _metric(config: SweepConfig) -> str:
    """Return what the value of a run is, with all that decides it."""
    return f"{config.metric} (last {config.window})" if ":" in config.metric else config.metric or "only evaluation"


def compare_arms(runs: Sequence[SweepRun], config: SweepConfig, folder: Path) -> list[RecipeComparison]:
    """Return the paired difference of each arm to the reference, over the seeds that both have; the best first.

    Empty where ``metric`` is no evaluation, or the reference has not ended.
    """
    if not _has_verdicts(config):
        return []
    verdicts: dict[str, dict[int, TaskVerdicts]] = {}
    for run in runs:
        if run.status == "done":
            place = _place(folder, run)
            of_run = _read_verdicts(place, config.metric) if _has_results(place) else _unpacked(run.verdicts)
            verdicts.setdefault(run.arm, {})[run.seed] = of_run
    name = config.reference or next(iter(config.arms))
    reference, rows = verdicts.pop(name, {}), []
    for arm, of_seed in verdicts.items():
        seeds = sorted(of_seed.keys() & reference.keys())
        sides = [of_seed[seed] for seed in seeds], [reference[seed] for seed in seeds]
        with suppress(InputError):  # too few common seeds or tasks to compare
            rows.append(compare_recipes(*sides, names=(arm, name)))
    return sorted(rows, key=lambda row: -row.difference)


def _run_child(run: SweepRun, config: SweepConfig, folder: Path, children: _Children) -> SweepRun:
    place, log = _place(folder, run), folder / "logs" / f"{run.number:03d}.log"
    place.mkdir(parents=True, exist_ok=True)
    log.parent.mkdir(exist_ok=True)
    calls = [child_words(run, config, folder)]
    if config.evaluation:
        calls.append(_placed(config.evaluation, place))
    attempts = place.with_suffix(".jsonl")
    for is_evaluation, words in zip((False, True), calls, strict=False):
        words = [*(_CLI if config.command else ()), *words]
        code = _attempt(words, place, log, children, is_evaluation=is_evaluation)
        if code == _INTERRUPTED or code == -signal.SIGINT:
            raise Interrupted(f"interrupted in run {run.number}; the same command resumes with it")
        if config.command and code in _USAGE_CODES:
            tail = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-3:]
            raise ConfigError(f"run {run.number} was rejected ({' '.join(words)}): {' '.join(tail)}")
        if code:
            break
    own = [line for line in _read_attempts(attempts) if not line["is_evaluation"]]
    spent = {name: sum(line[name] for line in own) for name in ("wall_s", "cpu_s")}
    if code:
        return run.model_copy(update={"exit_code": code, "status": "failed", **spent})
    compute = next(line["compute"] for line in own if line["compute"] is not None)
    result = {"metric": _metric(config), "value": read_value(place, config)}
    if _has_verdicts(config):
        result["verdicts"] = _packed(_read_verdicts(place, config.metric))
    return run.model_copy(update={**result, **spent, **compute})


def _read_attempts(path: Path) -> Iterator[dict[str, Any]]:
    """Yield what `_attempt` noted; a torn line is left out."""
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        with suppress(ValueError):
            yield json.loads(line)


def _attempt(words: Sequence[str], place: Path, log: Path, children: _Children, *, is_evaluation: bool) -> int:
    """Call a child once, note time and compute of the attempt, and return its exit code.

    Compute is read behind the first command that ends well, before an evaluation adds to the folder.
    """
    started = time.monotonic()
    with _held(place.with_suffix(".lock")) as lock, log.open("ab") as output:
        code, cpu_s = children.call(words, output.fileno(), lock)
    line: dict[str, object] = {"is_evaluation": is_evaluation, "exit_code": code, "cpu_s": cpu_s}
    compute = None if code or is_evaluation else read_compute(place)
    line |= {"wall_s": time.monotonic() - started, "compute": compute}
    _append(place.with_suffix(".jsonl"), json.dumps(line))
    return code


@contextmanager
def _held(path: Path) -> Iterator[int]:
    """Hold a lock that a child inherits, so that a child left over by a kill ends before its folder is used again."""
    with path.open("w") as file:
        deadline = time.monotonic() + _MAX_WAIT_S
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise InputError(f"a child of a killed sweep still works on {path.stem}; stop it first") from None
                time.sleep(0.1)
        yield file.fileno()


def _point(run: SweepRun) -> tuple[str, dict[str, Setting], int]:
    return run.arm, run.settings, run.seed


def _append(path: Path, line: str) -> None:
    """Add a line, which is on the disk when this returns."""
    with path.open("ab+") as stream:
        append_line(stream.fileno(), line)
        os.fsync(stream.fileno())


def _place(folder: Path, run: SweepRun) -> Path:
    return folder / "runs" / f"{run.number:03d}"


def read_value(place: Path, config: SweepConfig) -> float:
    """Return the value of an ended child by ``config.metric``.

    Raises:
        InputError: the child's folder does not have it.
    """
    if config.program:
        return _number_of(place / RESULT_FILE, config.metric)
    phase, is_metric, name = config.metric.partition(":")
    if is_metric:
        with RunStore.open(place / "run.db", is_read_only=True) as store:
            values = [value for _, value in store.metrics(phase, name) if np.isfinite(value)]
            if not values:
                raise InputError(f"{place} has no metric {name!r} of {phase!r}; it has {store.metric_names(phase)}")
            return fmean(values[-config.window :])
    estimate = pass_at_1(_read_verdicts(place, phase), num_resamples=2)
    if estimate is None:
        raise InputError(f"{place} has no samples in {phase!r}")
    return estimate.value


def _read_verdicts(place: Path, phase: str) -> TaskVerdicts:
    with RunStore.open(place / "run.db", is_read_only=True) as store:
        return verdicts_by_task(store.rows(phase=choose_phase(store, phase)))


def _packed(verdicts: TaskVerdicts) -> dict[str, str]:
    """Return task id -> first letters of its verdicts: ``pf`` for passed and failed."""
    return {task: "".join(kind.value[0] for kind in kinds) for task, kinds in verdicts.items()}


def _unpacked(letters: Mapping[str, str]) -> TaskVerdicts:
    kinds = {kind.value[0]: kind for kind in VerdictKind}
    return {task: [kinds[letter] for letter in of_task] for task, of_task in letters.items()}


def _number_of(path: Path, key: str) -> float:
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        return float(values[key])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"{path} has no number {key!r} ({type(error).__name__}); a program writes a JSON object there, and metric "
            "names one of its keys"
        ) from error


def read_compute(place: Path) -> dict[str, float | int | None]:
    """Return tokens and floating-point operations of a child's run, as far as its folder has them."""
    if not (place / "run.db").is_file():
        try:
            known = json.loads((place / RESULT_FILE).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return {name: known.get(name) for name in ("num_tokens", "num_sampled_tokens", "flops")}
    with RunStore.open(place / "run.db", is_read_only=True) as store:
        counts = [(row.num_tokens, row.num_action_tokens) for row in store.rows()]
        phases = store.metric_phases()
        num_learned = sum(value for phase in phases for _, value in store.metrics(phase, "train/num_tokens"))
    num_tokens = sum(tokens for tokens, _ in counts)
    length = num_tokens / max(1, len(counts))
    flops = None
    for model in sorted((place / "checkpoints").glob("*/config.json"))[:1]:
        try:
            shape = read_shape(str(model.parent))
        except ModelFolderError:
            break
        flops = shape.forward_flops(num_tokens + _FORWARDS_OF_LEARNING * num_learned, length / 2.0)
    return {"num_tokens": num_tokens, "num_sampled_tokens": sum(sampled for _, sampled in counts), "flops": flops}
