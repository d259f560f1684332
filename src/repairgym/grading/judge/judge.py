"""The judge: a passed verdict, reviewed by a language model (paper A, arXiv 2510.22075, full pipeline).

Reads a passed verdict and its patch; makes the verdict that counts. Invariants: only a pass is reviewed, so a judge can
take a reward away and never give one; its trouble (error, timeout, a reply in another form) is tried again with a fresh
question and ends as *invalid*, never as a failure; that it was asked, and what it said, is a finding.
"""

from __future__ import annotations

import asyncio

from repairgym.config.judge import JudgeConfig
from repairgym.grading.judge.question import Opinion, Question, make_question
from repairgym.inference.base import TextModel
from repairgym.records import Finding, Task, Verdict, VerdictKind

DETECTOR = "judge"


class Judge:
    """Reviews passed patches with one model."""

    def __init__(self, model: TextModel, config: JudgeConfig) -> None:
        """Ask ``model`` within the bounds of ``config``."""
        self._model = model
        self._config = config

    async def review(self, task: Task, patch: str, verdict: Verdict) -> Verdict:
        """``verdict`` as it is unless it is a pass; a pass that the judge rejects is a failure.

        Args:
            task: What was to be repaired.
            patch: The permitted part of the submission as a unified diff.
            verdict: What the tests and the detectors said.
        """
        if verdict.kind is not VerdictKind.PASSED:
            return verdict
        trouble = ""
        for attempt in range(self._config.max_attempts):
            question = make_question(task, patch, verdict.findings, self._config)
            try:
                opinion = question.read(await self._ask(question, attempt))
            except TimeoutError:
                trouble = f"no reply within {self._config.timeout_s:g} s"
            except Exception as error:  # whatever keeps a model from replying says nothing about the patch
                trouble = f"{type(error).__name__}: {error}"
            else:
                if opinion is not None:
                    return _reviewed(verdict, opinion, self._finding(question, opinion))
                trouble = "the reply has no answer in the form that was asked for"
        reason = f"the judge {self._model.id} did not answer {self._config.max_attempts} questions: {trouble}"
        return verdict.model_copy(update={"kind": VerdictKind.INVALID, "reason": reason})

    async def _ask(self, question: Question, attempt: int) -> str:
        async with asyncio.timeout(self._config.timeout_s):
            return await self._model.reply(question.text, max_tokens=self._config.max_reply_tokens, seed=attempt)

    def _finding(self, question: Question, opinion: Opinion) -> Finding:
        word = "accepts" if opinion.is_accepted else "rejects"
        if question.is_patch_cut and opinion.is_accepted:
            detail = f"{self._model.id} accepts without having seen the whole patch: {opinion.reason}"
            return Finding(detector=DETECTOR, severity="suspicious", detail=detail)
        return Finding(detector=DETECTOR, severity="note", detail=f"{self._model.id} {word}: {opinion.reason}")


def _reviewed(verdict: Verdict, opinion: Opinion, finding: Finding) -> Verdict:
    update: dict[str, object] = {"findings": (*verdict.findings, finding)}
    if not opinion.is_accepted:
        update |= {"kind": VerdictKind.FAILED, "reason": f"the judge rejects the patch: {opinion.reason}"}
    return verdict.model_copy(update=update)
