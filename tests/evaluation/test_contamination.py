"""Contamination probes: a policy that knows held-out code shows, one that does not shows nothing."""

from __future__ import annotations

import ast
import math
import random
from pathlib import Path

import pytest
from scipy import stats

from repairgym.errors import InputError
from repairgym.evaluation.bootstrap import bootstrap_spread
from repairgym.evaluation.contamination import (
    Function,
    functions_of,
    margin,
    model_log_prob,
    probe_dates,
    probe_recall,
    renamed,
)
from repairgym.inference.loading import load_model, load_tokenizer, save_checkpoint
from repairgym.records import Task, VerdictKind

SOURCE = """def joined(parts, separator):
    result = []
    for part in parts:
        result.append(str(part).strip())
    return separator.join(result)"""


def test_names_are_exchanged_and_attributes_and_calls_are_not():
    text = renamed(SOURCE, random.Random(0))
    assert text is not None
    assert text != SOURCE
    tree = ast.parse(text)
    assert {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)} == {"append", "strip", "join"}
    local = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)} - {"str"}
    assert local == {"parts", "separator", "result", "part"}
    assert "str(" in text
    assert len(text.splitlines()) == len(SOURCE.splitlines())


@pytest.mark.parametrize("source", ["def f(x):\n    return x", "def f(:", "def f(a, b):\n    global a\n    return b"])
def test_code_without_names_to_exchange_has_no_control(source: str):
    assert renamed(source, random.Random(0)) is None


def functions(package: str, num: int) -> list[Function]:
    text = SOURCE.replace("joined", "joined_{}")
    return [Function(package=f"{package}{n % 5}", text=text.format(f"{package}_{n}")) for n in range(num)]


def test_a_policy_that_knows_the_code_is_found_and_another_is_not():
    held_out, control = functions("a", 30), functions("b", 30)
    known = {function.text for function in held_out}

    def log_prob(text: str) -> float:
        noise = random.Random(text).gauss(0.0, 0.1)
        natural = 0.3 if text in known | {function.text for function in control} else 0.0
        return natural + noise - 2.0

    honest = probe_recall(held_out, control, log_prob, 3)
    assert honest.ci_low < 0.0 < honest.ci_high
    assert "no sign" in honest.sentence
    assert honest.num_units == 10
    recalled = probe_recall(held_out, control, lambda text: log_prob(text) + 0.5 * (text in known), 3)
    assert recalled.ci_low > 0.3
    assert "a sign of contamination" in recalled.sentence
    assert margin(Function(package="p", text="def f(x):\n    return x"), log_prob, 3) is None
    with pytest.raises(InputError, match="got 30 held-out and 2 control functions"):
        probe_recall(held_out, control[:2], log_prob, 3)


def test_functions_are_those_that_gold_changes(task: Task):
    before = SOURCE.replace("strip()", "rstrip()") + "\n\n\ndef other():\n    return 1\n"
    changed = task.model_copy(
        update={"base_files": {"a.py": before}, "gold_files": {"a.py": before.replace("rstrip()", "strip()")}}
    )
    assert [function.text for function in functions_of([changed, changed])] == [SOURCE]
    assert functions_of([changed.model_copy(update={"base_files": {"a.py": "def f(:"}})]) == []


def test_older_tasks_are_compared_with_newer_ones(task: Task):
    passed, failed = [VerdictKind.PASSED] * 2, [VerdictKind.FAILED] * 2
    tasks, verdicts = {}, {}
    for number in range(40):
        day = "2024-05-01T00:00:00Z" if number < 20 else "2026-01-01"
        provenance = task.provenance.model_copy(update={"package": f"p{number % 2}"})
        tasks[str(number)] = task.model_copy(update={"created_at": day, "provenance": provenance})
        verdicts[str(number)] = passed if number < 18 or number > 37 else failed
    probe = probe_dates(verdicts, tasks, "2025-01-01")
    assert (probe.num_held_out, probe.num_control) == (20, 20)
    assert probe.difference == pytest.approx(0.8)
    assert 0.4 < probe.ci_low < 0.5  # Welch says 0.60: 18 of 20 and 2 of 20 have more to miss
    with pytest.raises(InputError, match="40 tasks up to 2026-06-01 and 0 newer ones"):
        probe_dates(verdicts, tasks, "2026-06-01")


def test_sides_that_are_all_alike_prove_little(task: Task):
    passed, failed = [VerdictKind.PASSED], [VerdictKind.FAILED]
    tasks = {str(n): task.model_copy(update={"created_at": "2024-01-01" if n < 4 else "2026-01-01"}) for n in range(8)}
    same = probe_dates(dict.fromkeys(tasks, failed), tasks, "2025-01-01")
    assert same.ci_low < -0.5 < 0.5 < same.ci_high
    apart = probe_dates({name: passed if int(name) < 4 else failed for name in tasks}, tasks, "2025-01-01")
    assert (apart.difference, apart.ci_high) == (1.0, 1.0)
    assert 0.0 < apart.ci_low < 0.3
    with pytest.raises(InputError, match="one margin for all"):
        probe_recall(functions("a", 5), functions("b", 5), lambda text: 0.0, 3)
    varied = {it.text: float(at) for at, it in enumerate(functions("a", 5))}
    with pytest.raises(InputError, match="one margin for all functions of a side"):
        probe_recall(functions("a", 5), functions("b", 5), lambda text: varied.get(text, 0.0), 3)


def test_the_intervals_of_both_probes_by_hand(task: Task):
    """Margins: Welch's at 95 %. Rates: two score intervals, put together as Newcombe does."""
    held_out = {it.text: value for it, value in zip(functions("a", 5), (1.0, 2.0, 4.0, 8.0, 16.0), strict=True)}
    control = {it.text: value for it, value in zip(functions("b", 4), (0.1, 0.2, 0.3, 0.5), strict=True)}
    likely = held_out | control
    probe = probe_recall(functions("a", 5), functions("b", 4), lambda text: likely.get(text, 0.0), 1)
    sides = list(held_out.values()), list(control.values())
    expected = stats.ttest_ind(*sides, equal_var=False).confidence_interval(0.95)
    assert (probe.ci_low, probe.ci_high) == pytest.approx((expected.low, expected.high))

    days = ["2024-01-01"] * 10 + ["2026-01-01"] * 4
    tasks = {
        str(number): task.model_copy(
            update={"created_at": day, "provenance": task.provenance.model_copy(update={"package": f"p{number}"})}
        )
        for number, day in enumerate(days)
    }
    verdicts = {name: [VerdictKind.PASSED if int(name) < 6 else VerdictKind.FAILED] for name in tasks}
    found = probe_dates(verdicts, tasks, "2025-01-01")
    old, new = (bootstrap_spread(values, bounds=(0.0, 1.0)) for values in ([1.0] * 6 + [0.0] * 4, [0.0] * 4))
    assert new.ci_high == pytest.approx(1.0 - 0.025**0.25)  # the exact bound of none of four
    assert found.difference == pytest.approx(0.6)
    assert found.ci_low == pytest.approx(0.6 - math.hypot(0.6 - old.ci_low, new.ci_high))
    assert found.ci_high == pytest.approx(0.6 + (old.ci_high - 0.6))
    assert found.ci_low < 0.0


def test_the_likelihood_is_that_of_the_model(base: Path):
    import torch

    model, tokenizer = load_model(base), load_tokenizer(base)
    ids = tokenizer(SOURCE, add_special_tokens=False, return_tensors="pt")["input_ids"][:, :64]
    with torch.no_grad():
        loss = float(model(ids, labels=ids).loss)
    assert model_log_prob(base, 64)(SOURCE) == pytest.approx(-loss, abs=1e-4)


@pytest.mark.slow
def test_a_model_that_was_trained_on_the_functions_is_found(base: Path, tmp_path: Path):
    """Distinct functions with names of their own; the model learns those of one side by heart."""
    import torch

    names = random.Random(5)

    def draw(package: str, number: int) -> Function:
        a, b, c = ("".join(names.choice("abcdefgh") for _ in range(4)) for _ in range(3))
        body = f"    {c} = {a} + {b} * {number}\n    if {c} < {b}:\n        {c} = {a}\n    return {c}"
        text = f"def f{number}({a}, {b}):\n{body}"
        return Function(package=f"{package}{number % 4}", text=text)

    held_out, control = ([draw(package, number) for number in range(12)] for package in ("a", "b"))
    untrained = probe_recall(held_out, control, model_log_prob(base, 128), 3)
    assert untrained.ci_low < 0.0 < untrained.ci_high
    model, tokenizer = load_model(base), load_tokenizer(base)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    rows = [tokenizer(row.text, add_special_tokens=False, return_tensors="pt")["input_ids"] for row in held_out]
    for _ in range(30):
        for ids in rows:
            model(ids, labels=ids).loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    save_checkpoint(model, tokenizer, tmp_path / "trained")
    assert probe_recall(held_out, control, model_log_prob(tmp_path / "trained", 128), 3).ci_low > 0.0
