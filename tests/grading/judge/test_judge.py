"""The judge: it can take a pass away and never give one; its trouble is invalid, never a failure."""

import asyncio
from pathlib import Path

import pytest

from repairgym.config.judge import JudgeConfig
from repairgym.config.pipeline import GradingConfig
from repairgym.errors import ConfigError, IndexUnavailableError
from repairgym.grading.grader import Grader
from repairgym.grading.judge import Judge, open_judge
from repairgym.records import VerdictKind
from repairgym.sandbox.base import SandboxSpec
from repairgym.sandbox.cache import ExecutionCache
from repairgym.testing.scripted_model import ScriptedTextModel
from repairgym.testing.scripted_sandbox import ScriptedBackend
from repairgym.testing.scripted_task import scripted_answer

CONFIG = JudgeConfig(is_enabled=True, timeout_s=0.02)
GOLD = "def f(a, b):\n    return a <= b\n"
ACCEPT, REJECT = "Hm.\n{code} accept: it repairs the comparison", "{code} reject: it drops a check"


def grade(task, model, files=None, config=CONFIG):
    grader = Grader(
        ScriptedBackend(scripted_answer()),
        lambda task, files: SandboxSpec(environment=Path("/env"), tree=Path("/tree"), files=files),
        GradingConfig(judge=config),
        ExecutionCache(),
        Judge(model, config),
    )
    return asyncio.run(grader.grade(task, {"m.py": GOLD} if files is None else files))


def test_an_accepted_pass_stays_one_and_says_who_accepted(task):
    verdict = grade(task, ScriptedTextModel([ACCEPT]))
    assert verdict.kind is VerdictKind.PASSED
    (finding,) = verdict.findings
    assert (finding.detector, finding.severity) == ("judge", "note")
    assert finding.detail == "scripted accepts: it repairs the comparison"


def test_a_rejected_pass_is_a_failure_with_the_reason(task):
    verdict = grade(task, ScriptedTextModel([REJECT]))
    assert (verdict.kind, verdict.reason) == (VerdictKind.FAILED, "the judge rejects the patch: it drops a check")
    assert verdict.reward == 0.0


@pytest.mark.parametrize("files", [{}, {"m.py": GOLD + "import os\nos._exit(0)\n"}])
def test_only_a_pass_is_reviewed(task, files):
    model = ScriptedTextModel([ACCEPT])
    assert grade(task, model, files).kind in (VerdictKind.FAILED, VerdictKind.EXPLOITED)
    assert model.questions == []


def test_the_judge_sees_the_permitted_part(task):
    model = ScriptedTextModel([ACCEPT])
    grade(task, model, {"m.py": GOLD, "conftest.py": "SECRET = 1\n"})
    (question,) = model.questions
    assert "-    return a < b\n+    return a <= b\n" in question
    assert "SECRET" not in question
    assert "note: protected_file conftest.py" in question


@pytest.mark.parametrize(
    ("trouble", "reason"),
    [
        ("accept", "the reply has no answer in the form that was asked for"),
        (None, "no reply within 0.02 s"),
        (IndexUnavailableError("server said 500"), "IndexUnavailableError: server said 500"),
    ],
)
def test_trouble_is_tried_again_and_ends_as_invalid(task, trouble, reason):
    model = ScriptedTextModel([trouble])
    verdict = grade(task, model)
    assert verdict.kind is VerdictKind.INVALID
    assert verdict.reason == f"the judge scripted did not answer 3 questions: {reason}"
    assert len(set(model.questions)) == 3
    with pytest.raises(ValueError, match="no reward"):
        _ = verdict.reward
    assert grade(task, ScriptedTextModel([trouble, trouble, ACCEPT])).kind is VerdictKind.PASSED


def test_accepting_what_was_not_shown_whole_is_suspicious(task):
    config = CONFIG.model_copy(update={"max_patch_chars": 40})
    verdict = grade(task, ScriptedTextModel([ACCEPT]), config=config)
    assert verdict.kind is VerdictKind.PASSED
    assert [one.severity for one in verdict.findings] == ["suspicious"]
    assert grade(task, ScriptedTextModel([REJECT]), config=config).kind is VerdictKind.FAILED


def test_a_judge_is_off_by_default_and_never_silently():
    assert open_judge(JudgeConfig()) is None
    assert not GradingConfig().judge.is_enabled
    with pytest.raises(ConfigError, match=r"grading\.judge\.model is empty"):
        open_judge(JudgeConfig(is_enabled=True))
    with pytest.raises(ConfigError, match="nothing here opens a judge"):
        Grader(
            ScriptedBackend(scripted_answer()), lambda task, files: None, GradingConfig(judge=CONFIG), ExecutionCache()
        )
