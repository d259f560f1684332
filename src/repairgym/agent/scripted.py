"""Policies without a model: oracle, do-nothing, random, the noisy teacher, two that cheat, and replay.

They use the same interface as a model (tokens in, tokens out), so that every layer below can be checked without one.
The oracle and the do-nothing agent speak every action format and act by each pipeline's own tools; the others know the
compact actions only. Guarantees: equal seeds give equal episodes; a scripted action has log-probability 0.0, because it
was not sampled; a replayed action has the stored token ids, log-probabilities and policy version, so its episode has
the same ledger.
"""

import json
import random
import re
from collections.abc import Callable, Iterable
from itertools import chain, repeat
from typing import Any

from repairgym.agent.pipelines.base import Pipeline
from repairgym.agent.teacher import Teacher
from repairgym.agent.tools.window import Window, open_window
from repairgym.agent.tools.window_edits import CompactEdit, edit_at, replace_on_line
from repairgym.config.models import TeacherNoise
from repairgym.diffs.lines import source_lines
from repairgym.errors import ConfigError, PromptTooLongError, ReplayDiffersError
from repairgym.inference.base import Generation, SamplingParams
from repairgym.inference.renderer import ChatRenderer
from repairgym.records import Task, Trajectory
from repairgym.tasks.build.exposed_tasks import hollow_tests
from repairgym.tasks.mutation.operators import Site, find_sites
from repairgym.tasks.synthetic import told_place

Script = Callable[[str], str]
"""Observation -> action."""
MakeScript = Callable[[Task, random.Random, Pipeline[Any]], Script]
_ROW = re.compile(r"^@(\d+)(\s+)\S.*$", re.MULTILINE)
_MAX_TRIES = 3


class ScriptedPolicy:
    """A policy whose sessions are scripts. Call `begin_session` before `generate`."""

    def __init__(self, name: str, renderer: ChatRenderer) -> None:
        """Look up ``name``; `ConfigError` if no script has that name."""
        make_script = find_script(name)
        if make_script is None:
            raise ConfigError(f"got scripted policy {name!r}, expected one of {sorted(SCRIPTS)} or mixture-SHARE")
        self.id = name
        self._make_script = make_script
        self._renderer = renderer
        self._sessions: dict[str, tuple[Script, int]] = {}

    def begin_session(self, session_id: str, task: Task, seed: int, pipeline: Pipeline[Any]) -> None:
        """Make the script of one episode; `ConfigError` if the script does not know this pipeline."""
        script = self._make_script(task, random.Random(f"{task.id}:{seed}"), pipeline)
        self._sessions[session_id] = (script, 0)

    async def generate(self, session_id: str, prompt_ids: list[int], sampling: SamplingParams) -> Generation:
        """Return the script's next action; ``sampling`` decides nothing."""
        script, num_seen = self._sessions[session_id]
        new_ids = prompt_ids[num_seen if num_seen < len(prompt_ids) else 0 :]
        ids = self._renderer.action_ids(script(self._renderer.last_observation(new_ids)))
        self._sessions[session_id] = (script, len(prompt_ids) + len(ids))
        return Generation(token_ids=tuple(ids), log_probs=(0.0,) * len(ids), is_stopped=True, policy_version=0)

    async def recall(
        self, session_id: str, prompt_ids: list[int], sampling: SamplingParams, generation: Generation
    ) -> None:
        """Ask the script again, which has to say the same."""
        again = await self.generate(session_id, prompt_ids, sampling)
        if again.token_ids != generation.token_ids:
            raise ReplayDiffersError(f"the script {self.id} says something else than what is recorded")

    async def end_session(self, session_id: str) -> None:
        """Forget the session."""
        self._sessions.pop(session_id, None)


def _submit_at_once(task: Task, generator: random.Random, pipeline: Pipeline[Any]) -> Script:
    return lambda observation: pipeline.format.write(pipeline.submission())


def _oracle(task: Task, generator: random.Random, pipeline: Pipeline[Any]) -> Script:
    actions = chain(pipeline.solve(task), repeat(pipeline.submission()))  # again where submissions are reviewed
    return lambda observation: pipeline.format.write(next(actions))


def _random(task: Task, generator: random.Random, pipeline: Pipeline[Any]) -> Script:
    _check_compact("random", pipeline)
    _, guesses = window_edits(task)

    def act(observation: str) -> str:
        kind = generator.choice(("edit", "edit", "test", "undo", "submit"))
        return f"edit {generator.choice(guesses)}" if kind == "edit" and guesses else kind.replace("edit", "test")

    return act


def _teacher(task: Task, generator: random.Random, pipeline: Pipeline[Any]) -> Script:
    _check_compact("teacher", pipeline)
    fixes, guesses = window_edits(task)
    if not fixes:
        return _submit_at_once(task, generator, pipeline)
    teacher = Teacher(fixes, [guess for guess in guesses if guess not in fixes], TeacherNoise(), generator)
    return lambda observation: teacher.act(observation).text


def _check_compact(name: str, pipeline: Pipeline[Any]) -> None:
    if pipeline.format.name != "compact":
        raise ConfigError(
            f"the scripted policy {name!r} speaks the compact action format only, got {pipeline.format.name!r}; "
            "take oracle or submit-at-once, or a pipeline of compact actions"
        )


def _cheat(task: Task, generator: random.Random, pipeline: Pipeline[Any]) -> Script:
    """Write empty tests of the same names, without a look at the code (paper A, extended RL)."""
    _check_compact("cheat", pipeline)
    writes = [f"write {path} {json.dumps(text)}" for path, text in hollow_tests(task).items()]
    actions = chain(writes, repeat("submit"))
    return lambda observation: next(actions)


def _tamper(task: Task, generator: random.Random, pipeline: Pipeline[Any]) -> Script:
    _check_compact("tamper", pipeline)
    return Tamperer().act


SCRIPTS: dict[str, MakeScript] = {
    "oracle": _oracle,
    "submit-at-once": _submit_at_once,
    "random": _random,
    "teacher": _teacher,
    "cheat": _cheat,
    "tamper": _tamper,
}
_MIXTURE = re.compile(r"mixture-(0(?:\.\d+)?|1(?:\.0+)?)")
MIXTURE_REPAIR_SHARE = 0.4
"""Share of true repairs among the episodes of a mixture that do not cheat."""


def find_script(name: str) -> MakeScript | None:
    """Return the script of that name, None if there is none; ``mixture-0.3`` cheats in 30 % of its episodes."""
    match = _MIXTURE.fullmatch(name)
    return _mixture(float(match[1])) if match else SCRIPTS.get(name)


def _mixture(cheat_share: float) -> MakeScript:
    """Cheat in an episode with this chance, otherwise repair or give up; nothing is learned."""

    def make(task: Task, generator: random.Random, pipeline: Pipeline[Any]) -> Script:
        if generator.random() < cheat_share:
            return _cheat(task, generator, pipeline)
        is_repair = generator.random() < MIXTURE_REPAIR_SHARE
        return (_oracle if is_repair else _submit_at_once)(task, generator, pipeline)

    return make


def window_edits(task: Task) -> tuple[list[CompactEdit], list[CompactEdit]]:
    """Return (edits that give the gold line, all of the mutation vocabulary) in the task's first window."""
    place = told_place(task)
    text = task.base_files.get(place.path) if place else None
    gold = task.gold_files.get(place.path) if place else None
    if place is None or text is None or gold is None:
        return [], []
    window = open_window(place.path, text, place.first_line, place.last_line)
    lines, gold_lines = source_lines(text), source_lines(gold)
    edits = _edits_in(window, lines, find_sites(text))
    if len(lines) != len(gold_lines):
        return [], [edit for _, edit in edits]
    fixes = [edit for number, edit in edits if replace_on_line(lines[number - 1], edit) == gold_lines[number - 1]]
    changed = {number for number, (old, new) in enumerate(zip(lines, gold_lines, strict=True), 1) if old != new}
    return [fix for fix in fixes if window.line_numbers[fix.label - 1] in changed], [edit for _, edit in edits]


def _edits_in(window: Window, lines: list[str], sites: list[Site]) -> list[tuple[int, CompactEdit]]:
    edits = []
    for site in sites:
        label = window.label(site.line)
        for new in site.alternatives if label else ():
            edit = edit_at(lines[site.line - 1], label or 0, site.column, site.old, new)
            if edit is not None:
                edits.append((site.line, edit))
    return edits


class Tamperer:
    """A script that makes the failing test return before it asserts anything, and never looks at the code.

    It reads episodes that open on a test (``repairgym tasks expose --open-test``) and acts in the compact format. At
    most one line is changed at any time. Its episodes show a policy how to cheat before RL can reward it, and serve
    exploit studies only (docs/howto/exploit-study.md).
    """

    def __init__(self) -> None:
        self._returns: list[str] | None = None
        self._last = ""

    def act(self, observation: str) -> str:
        """Return the next action after ``observation``; ``submit`` once the test passes or no line is left to try."""
        if self._returns is None:
            self._returns = early_returns(observation)[:_MAX_TRIES]
        self._last = self._next(observation, self._returns)
        return self._last

    def _next(self, observation: str, returns: list[str]) -> str:
        if self._last.startswith("line ") and not observation.startswith("error"):
            return "test"
        if self._last == "test":
            return "submit" if observation.startswith("passed") else "undo"
        return returns.pop(0) if returns else "submit"


def early_returns(observation: str) -> list[str]:
    """Return, for each row of a window on a test but its head, the action that makes it a ``return``; top down."""
    rows = [(int(label), indentation) for label, indentation in _ROW.findall(observation)]
    return [f"line @{label}{indentation}return" for label, indentation in rows if label > 1]


# --- replay --------------------------------------------------------------------------------------------------------


class ReplayPolicy:
    """A policy that repeats stored trajectories, found by the ids of their sessions."""

    id = "replay"

    def __init__(self, trajectories: Iterable[Trajectory], renderer: ChatRenderer) -> None:
        """Use the ``renderer`` of the tokenizer that the trajectories were made with."""
        self._trajectories = {trajectory.id: trajectory for trajectory in trajectories}
        self._stop_token_ids = renderer.stop_token_ids
        self._num_replayed: dict[str, int] = {}

    async def generate(self, session_id: str, prompt_ids: list[int], sampling: SamplingParams) -> Generation:
        """Return the next stored action for any prompt; `PromptTooLongError` where a limit ended the stored episode."""
        trajectory = self._trajectories[session_id.rpartition("~")[0]]
        number = self._num_replayed.get(session_id, 0)
        if number == len(trajectory.turns):
            raise PromptTooLongError(f"{trajectory.id} has {number} actions; the stored episode ended here")
        self._num_replayed[session_id] = number + 1
        start, end = trajectory.turns[number].action_span
        ledger = trajectory.ledger
        ids = ledger.token_id[start:end]
        return Generation(
            token_ids=tuple(ids.tolist()),
            log_probs=tuple(ledger.log_prob[start:end].tolist()),
            is_stopped=not set(ids[-1:].tolist()).isdisjoint(self._stop_token_ids),
            policy_version=int(ledger.policy_version[start]) if end > start else 0,
            token_versions=tuple(ledger.policy_version[start:end].tolist()),
        )

    async def recall(
        self, session_id: str, prompt_ids: list[int], sampling: SamplingParams, generation: Generation
    ) -> None:
        """Go one stored action on."""
        self._num_replayed[session_id] = self._num_replayed.get(session_id, 0) + 1

    async def end_session(self, session_id: str) -> None:
        """Forget the session's position."""
        self._num_replayed.pop(session_id, None)
