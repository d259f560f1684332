"""A recorder for tests: it runs nothing, and answers from a function of the files in the sandbox."""

from collections.abc import Callable, Mapping, Sequence

from repairgym.errors import SandboxError
from repairgym.records import TestRequest
from repairgym.sandbox.base import SandboxSpec
from repairgym.tasks.replay.scripts import AGAIN, Conditions, Observation, Recording, Replay, Script

Answers = Callable[[Mapping[str, str | None], Conditions], Mapping[str, Sequence[Observation]]]
"""Files and conditions -> observations by script id."""


class ScriptedRecorder:
    """Gives one recording, and replays by a function; the first ``num_failures`` replays fail."""

    def __init__(self, recording: Recording, answers: Answers, num_failures: int = 0) -> None:
        self._recording = recording
        self._answers = answers
        self.num_failures = num_failures
        self.requests: list[TestRequest] = []
        self.replayed: list[tuple[SandboxSpec, Conditions]] = []
        """Every replay so far."""

    async def record(self, spec: SandboxSpec, request: TestRequest, max_tests: int = 0) -> Recording:
        """Return the scripts of the recording that belong to the tests or files of ``request``."""
        self.requests.append(request)
        wanted = request.test_ids
        scripts = (
            script
            for script in self._recording.scripts
            if script.id in wanted or script.id.partition("::")[0] in wanted
        )
        return Recording(tuple(scripts), {})

    async def replay(
        self,
        spec: SandboxSpec,
        scripts: Sequence[Script],
        source_paths: Sequence[str],
        conditions: Conditions = Conditions(),  # noqa: B008 - a frozen record
        *,
        timeout_s: float,
    ) -> Replay:
        """Return the answers to ``scripts``.

        Raises:
            SandboxError: ``num_failures`` times.
        """
        if self.num_failures > 0:
            self.num_failures -= 1
            raise SandboxError("told to fail")
        self.replayed.append((spec, conditions))
        answers = self._answers(spec.files, conditions)
        # A script that is asked again is answered as the first time, unless there is an own answer.
        names = {script.id: script.id if script.id in answers else script.id.removesuffix(AGAIN) for script in scripts}
        given = {script_id: tuple(answers[name]) for script_id, name in names.items() if name in answers}
        return Replay(given, {script_id: "died" for script_id in names if script_id not in given}, 0.01)
