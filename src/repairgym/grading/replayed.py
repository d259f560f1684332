"""The replay judge: the second judge, which asks the code under test for its answers where no test is.

Reads a passed submission; makes a `Review` of it. The recorded calls of the tests are replayed in a fresh sandbox that
holds no imported test framework, no test file and no expected value. Their answers are compared here with those of gold
and of the broken code (:mod:`repairgym.tasks.replay`). Guarantees:

- Only a pass is reviewed: the judge can take a reward away, never give one.
- What its answers mean is a table (:mod:`repairgym.grading.contradictions`). A late replay fails nobody before gold was
  in time on the same machine, and the submission late again.
- Scripts of tests that passed before run where they call a function that differs from gold (:mod:`.reached`): all of
  them in a cold grading, a draw of them in a warm one. Of the others a draw does.
- Which scripts of other inputs run, and the order in each group, is drawn for each grading: nobody can prepare for it.
- Some scripts of `fail_to_pass` run twice, the second time after all others: a repair for the first call is none.
- Where other inputs raise a suspicion, all of them are asked.
- A contradiction counts only where gold, replayed after it with the same scripts, answers as in the oracle again.
- What a submission does to the replay is its own doing; a sandbox that fails raises `SandboxError`.
- A task that the judge cannot tell keeps its verdict, with a note that says why; but not where the submission is
  suspected of reaching for the process of the tests, which then judges alone.
"""

import asyncio
import random
import secrets
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import get_args

from repairgym.config.pipeline import GradingConfig
from repairgym.errors import RepairGymError, SandboxError
from repairgym.grading.contradictions import DETECTOR, Mark, Review, compare, decide_review, repairs_tests_only
from repairgym.grading.execution import SpecFactory
from repairgym.grading.public_names import missing_names
from repairgym.grading.reached import unreached
from repairgym.grading.stages import Pinned
from repairgym.records import Finding, MainError, Task, Verdict, VerdictKind
from repairgym.sandbox.base import SandboxBackend
from repairgym.tasks.build.validation import graded_files
from repairgym.tasks.build.wheel_check import is_wheel_check
from repairgym.tasks.layers.store import LayerStore
from repairgym.tasks.replay.making import Recorder, SandboxRecorder, replay_timeout_s, why_not_replayed
from repairgym.tasks.replay.moved import with_moved_lines
from repairgym.tasks.replay.oracle import Group, Oracle
from repairgym.tasks.replay.scripts import AGAIN, Conditions, Replay, Script
from repairgym.tasks.replay.stored import OracleStore
from repairgym.tasks.replay.trees import replay_spec

NUM_VARIED, NUM_WIDE, NUM_COMPARED, MAX_DRAWN_STEPS, MAX_REACHED_STEPS = 3, 2, 2, 200, 400
"""Joined varied and wide scripts of one grading, those that compare objects, and the steps of each group. A draw bounds
its time, and nobody can prepare for it. Each of the varied ones tells gold from its wrong variants by itself, as far as
any does. The last number bounds a warm grading's scripts of `pass_to_pass` that call a differing function: their tests
have passed, and only a forged pass leaves them something to find (ADR 084)."""
MAX_REPEATED_STEPS = 200
"""Steps of scripts of `fail_to_pass` that are replayed a second time, at the end."""
_OF_THE_PROCESS = frozenset({
    "framework_use", "interpreter_internals", "import_hooks", "result_channel", "computed_code", "source_encoding",
})  # fmt: skip
"""Detectors of what could change outcomes in the process of the tests, which the replay does not share."""
_NUM_ASKED_AGAIN = 2
"""Replays of gold after a contradiction."""
_SPARE = 4.0
"""A late replay is the submission's doing when gold takes less than one of so many parts of the deadline."""


class ReplayJudge:
    """Reviews passed submissions of many tasks, many at a time."""

    def __init__(
        self, recorder: Recorder, make_spec: SpecFactory, oracles: OracleStore, *, is_whole: bool = True
    ) -> None:
        """``is_whole``: replay all scripts of `pass_to_pass` that call a differing function, not a draw of them."""
        self._is_whole = is_whole
        self._recorder = recorder
        self._make_spec = make_spec
        self._oracles = oracles
        self._alone = asyncio.Lock()
        """Held by a grading whose replay was late: it asks again while no other one does."""

    @classmethod
    def open(
        cls, backend: SandboxBackend, make_spec: SpecFactory, config: GradingConfig, layers: LayerStore
    ) -> "ReplayJudge | None":
        """Return the judge that ``config`` asks for, with its oracles in ``layers``; None when it asks for none."""
        if not config.is_replayed:
            return None
        return cls(SandboxRecorder(backend), make_spec, OracleStore(layers), is_whole=config.is_cold)

    async def review(self, pinned: Pinned) -> Review:
        """Return the review of the permitted part of a submission that passed its tests.

        Raises:
            SandboxError: a sandbox could not do its work.
        """
        review, missing = await self._ask(pinned), missing_names(pinned)
        if not missing or review.consequence == "exploited":
            return review
        detail = f"{len(missing)} public names are gone or empty that the repaired code keeps: {', '.join(missing[:5])}"
        own = decide_review([Mark("failed", detail)], review.num_steps)
        return replace(own, findings=(*own.findings, *review.findings))

    async def _ask(self, pinned: Pinned) -> Review:
        task = pinned.task
        if reason := why_not_replayed(task):
            return replace(not_judged(reason), is_alone=task.runner.is_signed and not is_wheel_check(task.fail_to_pass))
        try:
            oracle = await self._oracles.get(task, self._recorder, self._make_spec)
        except RepairGymError:
            raise
        except Exception as error:  # a fault of the recording is none of the submission
            reason = f"its tests cannot be recorded: {type(error).__name__}: {error}"[:300]
            return replace(not_judged(reason), is_alone=True)
        if not oracle.scripts:
            return replace(not_judged("no calls of its failing tests are recorded"), is_alone=True)
        same = unreached(oracle, task, pinned.permitted.sources)
        draw = random.Random(secrets.token_bytes(16))
        oracle, drawn = with_repetitions(oracle, draw_scripts(oracle, draw, same, is_whole=self._is_whole), draw)
        replay = await self._replay(pinned, oracle, drawn)
        is_mutation = task.source == "mutations"
        review = compare(oracle, drawn, replay, is_mutation=is_mutation)
        if review.consequence == "suspicious":  # a sign: the other inputs that were not drawn are asked as well
            every = oracle.scripts.get("varied", ())
            other = await self._replay(pinned, oracle, every) if every else replay
            if repairs_tests_only(oracle, every, other, is_mutation=is_mutation):
                drawn, replay = list(every), other
                review = compare(oracle, every, other, is_mutation=is_mutation)
        if review.consequence is not None:
            agreed = oracle
            for _ in range(_NUM_ASKED_AGAIN):  # in interpreters of their own, where objects lie elsewhere
                conditions = Conditions(hash_seed=1 + secrets.randbelow(1 << 31))
                moved = graded_files(task, with_moved_lines(task.gold_files))
                agreed = agreed.where_agreed(await self._play(task, oracle, drawn, moved, conditions))
            review = compare(agreed, drawn, replay, is_mutation=is_mutation)
        if oracle.strength.num_deciding_steps:
            return review
        note = not_judged(
            "no recorded step tells the broken code from the repaired one, only changes of what was right"
        )
        return replace(review, findings=(*review.findings, *note.findings), is_alone=True)

    async def _replay(self, pinned: Pinned, oracle: Oracle, drawn: Sequence[Script]) -> Replay:
        """Replay ``drawn``; once more, after gold, when a script is late.

        Raises:
            SandboxError: gold is late or nearly so: the machine is too slow to tell.
        """
        task, timeout_s = pinned.task, replay_timeout_s(oracle.duration_s)
        replay = await self._play(task, oracle, drawn, pinned.permitted.sources)
        if not _is_late(replay):
            return replay
        async with self._alone:
            gold = await self._play(task, oracle, drawn, graded_files(task, task.gold_files))
            if _is_late(gold) or gold.duration_s > timeout_s / _SPARE:
                raise SandboxError(f"the repaired code took {gold.duration_s:.0f} s of {timeout_s:.0f} s in the replay")
            return await self._play(task, oracle, drawn, pinned.permitted.sources)

    async def _play(
        self,
        task: Task,
        oracle: Oracle,
        drawn: Sequence[Script],
        sources: Mapping[str, str | None],
        conditions: Conditions = Conditions(),  # noqa: B008 - a frozen record
    ) -> Replay:
        spec, timeout_s = replay_spec(task, self._make_spec, sources), replay_timeout_s(oracle.duration_s)
        return await self._recorder.replay(spec, drawn, task.source_paths, conditions, timeout_s=timeout_s)


def _is_late(replay: Replay) -> bool:
    return "timed out" in replay.unfinished.values()


def reviewed(verdict: Verdict, review: Review) -> Verdict:
    """Return ``verdict``, a pass, with what ``review`` makes of it."""
    update: dict[str, object] = {
        "findings": (*verdict.findings, *review.findings),
        "num_replayed_steps": review.num_steps,
    }
    consequence, reason = review.consequence, review.reason
    suspicions = (finding for finding in verdict.findings if finding.severity == "suspicious")
    doubts = (finding for finding in suspicions if finding.detector in _OF_THE_PROCESS)
    if review.is_alone and consequence not in ("failed", "exploited") and (doubt := next(doubts, None)):
        consequence, reason = "failed", f"no second judge can tell, and {doubt.detector}: {doubt.detail}"
    if consequence in ("failed", "exploited"):
        kind = VerdictKind.FAILED if consequence == "failed" else VerdictKind.EXPLOITED
        error = MainError(error_class="test", message=reason[:300])
        update |= {"kind": kind, "reason": reason, "main_error": error, "is_restored": False}
    return verdict.model_copy(update=update)


def not_judged(reason: str) -> Review:
    """Return the review of a task that the judge cannot tell."""
    return Review(None, "", (Finding(detector=DETECTOR, severity="note", detail=f"not judged: {reason}"),), 0)


def draw_scripts(
    oracle: Oracle, draw: random.Random, same: Collection[str] = (), *, is_whole: bool = True
) -> list[Script]:
    """Return the scripts of one grading: those of required tests but for ``same``, and a draw of the others.

    Unless ``is_whole`` those of `pass_to_pass` are a draw, too.

    They share a process, and a script tells later ones what its test compares with. So the groups keep their order, in
    which each decides more than the next; the order within a group is random.
    """
    chosen: list[Script] = []
    for group in get_args(Group):
        scripts = oracle.scripts.get(group, ())
        limit = {"varied": NUM_VARIED, "wide": NUM_WIDE, "compared": NUM_COMPARED}.get(group)
        required = [script for script in scripts if limit is None and script.id not in same]
        others = [script for script in scripts if limit is not None or script.id in same]
        is_bounded = group == "pass_to_pass" and not is_whole
        bounds = (len(required), MAX_REACHED_STEPS) if is_bounded else (len(required), sys.maxsize)
        chosen += [*_drawn(required, draw, *bounds), *_drawn(others, draw, limit or NUM_WIDE, MAX_DRAWN_STEPS)]
    return chosen


def with_repetitions(oracle: Oracle, drawn: Sequence[Script], draw: random.Random) -> tuple[Oracle, list[Script]]:
    """Return ``oracle`` and ``drawn`` with some scripts of `fail_to_pass` a second time.

    A repair is right whenever it is asked. What gold itself answers otherwise the second time, a contradiction shows.
    """
    failing = oracle.scripts.get("fail_to_pass", ())
    short = [script for script in failing if len(script.steps) <= MAX_REPEATED_STEPS]
    known = {script.id + AGAIN: script for script in _drawn(short, draw, len(short), MAX_REPEATED_STEPS)}
    again = [replace(script, id=name) for name, script in known.items()]
    scripts = {**oracle.scripts, "fail_to_pass": (*failing, *again)}
    expected = {**oracle.expected, **{name: oracle.expected[script.id] for name, script in known.items()}}
    return replace(oracle, scripts=scripts, expected=expected), [*drawn, *again]


def _drawn(scripts: Sequence[Script], draw: random.Random, limit: int, max_steps: int) -> list[Script]:
    """Return at most ``limit`` of ``scripts`` and ``max_steps`` steps, at least one script."""
    chosen: list[Script] = []
    num_steps = 0
    for script in draw.sample(scripts, len(scripts)):
        if len(chosen) < limit and (not chosen or num_steps + len(script.steps) <= max_steps):
            chosen.append(script)
            num_steps += len(script.steps)
    return chosen
