"""Contamination probes: does a policy know held-out code, and does it solve older tasks better than newer ones?

Reads functions, a likelihood and verdicts with dates. Makes margins: how much more likely a function is than itself
with its local names exchanged, which no corpus has. Natural code has a positive margin without having been seen, so
that held-out functions are compared with control functions that cannot have been seen. Guarantees: a function and its
controls have the same words in the same numbers; packages are the unit of intervals where each side has three or more.
"""

import ast
import builtins
import hashlib
import math
import random
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from scipy import stats

from repairgym.errors import InputError
from repairgym.evaluation.bootstrap import bootstrap_spread
from repairgym.evaluation.pass_at_k import TaskVerdicts, success_rates
from repairgym.records import Record, Task

LogProb = Callable[[str], float]
"""Text -> its mean log-probability per token."""
_LEVEL = 0.95
_MIN_UNITS = 3
_MIN_NAMES = 2


class Function(Record):
    """A function of a task's gold code."""

    package: str
    text: str


class Probe(Record):
    """Comparison of held-out with control functions, or of older with newer tasks."""

    what: str
    num_held_out: int
    num_control: int
    num_units: int
    """Packages of both sides where they are the unit, else functions or tasks."""
    held_out: float
    control: float
    difference: float
    ci_low: float
    ci_high: float
    """95 % interval: of margins Welch's (1947), of rates that of two score intervals (Newcombe 1998)."""

    @property
    def sentence(self) -> str:
        """Say what the interval allows to say."""
        if self.ci_low > 0.0:
            interval = f"95 % {self.ci_low:+.4g} to {self.ci_high:+.4g}"
            return f"{self.what}: a sign of contamination ({self.difference:+.4g}, {interval})"
        bound = f"an effect above {self.ci_high:.4g} is excluded"
        return f"{self.what}: no sign of contamination; {bound}"


def functions_of(tasks: Iterable[Task]) -> list[Function]:
    """Return the functions that gold changes, each once, whole and without indentation."""
    rows: dict[str, Function] = {}
    for task in tasks:
        for path, text in task.gold_files.items():
            before = task.base_files.get(path)
            if path.endswith(".py") and text is not None and before is not None:
                for source in _changed_functions(before, text):
                    rows.setdefault(source, Function(package=task.provenance.package, text=source))
    return sorted(rows.values(), key=lambda row: hashlib.sha256(row.text.encode()).hexdigest())


def _changed_functions(before: str, after: str) -> list[str]:
    try:
        known = set(_functions(before))
        return [source for source in _functions(after) if source not in known]
    except (SyntaxError, ValueError):
        return []


def _functions(text: str) -> list[str]:
    nodes = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    return [_dedented(ast.get_source_segment(text, node, padded=True) or "") for node in nodes]


def _dedented(source: str) -> str:
    width = len(source) - len(source.lstrip(" "))
    return "\n".join(line[width:] if not line[:width].strip() else line for line in source.splitlines())


def renamed(source: str, generator: random.Random) -> str | None:
    """Return a function with its local names exchanged, none staying; None with fewer than two of them."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return None
    places = list(_name_places(tree))
    local = sorted({name for name, _, _, is_bound in places if is_bound and not hasattr(builtins, name)})
    if len(local) < _MIN_NAMES or any(isinstance(node, ast.Global | ast.Nonlocal) for node in ast.walk(tree)):
        return None
    order = list(local)
    generator.shuffle(order)
    # A cycle moves every name.
    targets = {name: order[(place + 1) % len(order)] for place, name in enumerate(order)}
    lines = [line.encode() for line in source.splitlines()]
    for name, line, column, _ in sorted(set(places), key=lambda place: (place[1], place[2]), reverse=True):
        if name in targets:
            row = lines[line - 1]
            if row[column : column + len(name.encode())] == name.encode():
                lines[line - 1] = row[:column] + targets[name].encode() + row[column + len(name.encode()) :]
    return b"\n".join(lines).decode()


def _name_places(tree: ast.AST) -> Iterable[tuple[str, int, int, bool]]:
    """Yield name, line, column and whether this place binds it, of variables and parameters."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            yield node.id, node.lineno, node.col_offset, isinstance(node.ctx, ast.Store)
        elif isinstance(node, ast.arg):
            yield node.arg, node.lineno, node.col_offset, True


def margin(function: Function, log_prob: LogProb, num_renamings: int) -> float | None:
    """Return the log-probability per token over that of the mean of its controls; None without controls."""
    generator = random.Random(hashlib.sha256(function.text.encode()).digest())
    drawn = [renamed(function.text, generator) for _ in range(num_renamings)]
    controls = {text for text in drawn if text and text != function.text}
    if not controls:
        return None
    return log_prob(function.text) - statistics.fmean(log_prob(text) for text in sorted(controls))


def probe_recall(
    held_out: Sequence[Function], control: Sequence[Function], log_prob: LogProb, num_renamings: int
) -> Probe:
    """Compare the margins of held-out functions with those of control functions.

    Raises:
        InputError: a side has fewer than three functions with local names to exchange, or no margin differs.
    """
    sides = []
    for functions in (held_out, control):
        pairs = [(row.package, margin(row, log_prob, num_renamings)) for row in functions]
        sides.append([(package, value) for package, value in pairs if value is not None])
    if min(map(len, sides)) < _MIN_UNITS:
        raise InputError(
            f"got {len(sides[0])} held-out and {len(sides[1])} control functions with two local names or more; "
            f"expected at least {_MIN_UNITS} of each: choose more tasks"
        )
    return _probe("margin of held-out functions over control functions, nats per token", *sides)


def probe_dates(verdicts: TaskVerdicts, tasks: Mapping[str, Task], known_until: str) -> Probe:
    """Compare Pass@1 on tasks up to a day with that on newer ones; tasks without a date are left out.

    Raises:
        InputError: a side has fewer than three tasks.
    """
    rates = success_rates(verdicts)
    dated = {task: tasks[task].created_at[:10] for task in rates if task in tasks and tasks[task].created_at}
    sides: list[list[tuple[str, float]]] = [[], []]
    for task, day in sorted(dated.items()):
        sides[day > known_until].append((tasks[task].provenance.package, rates[task]))
    if min(map(len, sides)) < _MIN_UNITS:
        raise InputError(
            f"got {len(sides[0])} tasks up to {known_until} and {len(sides[1])} newer ones ({len(rates) - len(dated)} "
            f"without a date); expected at least {_MIN_UNITS} of each"
        )
    return _probe(f"Pass@1 on tasks up to {known_until} minus that on newer ones", *sides, bounds=(0.0, 1.0))


def _probe(
    what: str,
    held_out: Sequence[tuple[str, float]],
    control: Sequence[tuple[str, float]],
    *,
    bounds: tuple[float, float] | None = None,
) -> Probe:
    sides = [[value for _, value in side] for side in (held_out, control)]
    by_package = [_means(side) for side in (held_out, control)]
    units = by_package if min(map(len, by_package)) >= _MIN_UNITS else sides
    means = [statistics.fmean(values) for values in units]
    low, high = _interval(units, means, bounds)
    return Probe(
        what=what,
        num_held_out=len(sides[0]),
        num_control=len(sides[1]),
        num_units=sum(map(len, units)),
        held_out=means[0],
        control=means[1],
        difference=means[0] - means[1],
        ci_low=low,
        ci_high=high,
    )


def _interval(
    units: Sequence[Sequence[float]], means: Sequence[float], bounds: tuple[float, float] | None
) -> tuple[float, float]:
    """Return the 95 % interval of the difference of two means.

    A side whose few units agree has no spread of its own to see: within ``bounds`` it counts as what other units may
    have been, without it says nothing.
    """
    if bounds is None:
        if any(max(values) - min(values) < 1e-12 for values in units):
            raise InputError("got one margin for all functions of a side, which says nothing of others: choose more")
        interval = stats.ttest_ind(*units, equal_var=False).confidence_interval(_LEVEL)
        return float(interval.low), float(interval.high)
    left, right = (bootstrap_spread(values, bounds=bounds) for values in units)
    below = math.hypot(means[0] - left.ci_low, right.ci_high - means[1])
    above = math.hypot(left.ci_high - means[0], means[1] - right.ci_low)
    return means[0] - means[1] - below, means[0] - means[1] + above


def _means(side: Sequence[tuple[str, float]]) -> list[float]:
    values: dict[str, list[float]] = {}
    for package, value in side:
        values.setdefault(package, []).append(value)
    return [statistics.fmean(of_package) for of_package in values.values()]


def model_log_prob(folder: Path, max_len_tokens: int) -> LogProb:
    """Return the mean log-probability per token of texts under the model in ``folder``."""
    import torch

    from repairgym.inference.loading import load_model, load_tokenizer

    model, tokenizer = load_model(folder), load_tokenizer(folder)

    def log_prob(text: str) -> float:
        ids = tokenizer(text, add_special_tokens=False, return_tensors="pt")["input_ids"][:, :max_len_tokens]
        if ids.shape[1] < 2:
            return 0.0
        with torch.no_grad():
            log_probs = torch.log_softmax(model(ids[:, :-1]).logits.float(), -1)
        return float(log_probs.gather(-1, ids[:, 1:, None]).mean())

    return log_prob
