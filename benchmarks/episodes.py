"""What the episode loop costs per turn, beside the model and the commands, with many episodes in flight.

Episodes of paper B's pipeline on one event loop: the model is a pause and a ready answer, a command is a pause and
ready output, everything else is real (parsing, tools, workspace, tokenizer, ledger). The cost of a turn is the
processor's time of the loop's thread from the end of one answer to the question for the next, without what passes
inside of commands; no other episode runs meanwhile, so on an idle machine it is the wall time, too (printed beside it).
The same again with turns that are written ahead, as in a run folder, is ``logged_*``.

    python benchmarks/episodes.py --quick --json
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import tempfile
import time
from collections.abc import Iterator
from itertools import cycle
from pathlib import Path
from typing import NamedTuple

from repairgym.agent.pipelines.base import EpisodeRunner
from repairgym.agent.pipelines.registry import make_pipeline
from repairgym.agent.recording import RecordedPolicy, TurnRecorder
from repairgym.agent.tools.base import ToolContext
from repairgym.agent.tools.workspace import Workspace
from repairgym.config.pipeline import PaperBConfig
from repairgym.inference.base import Generation, SamplingParams
from repairgym.inference.loading import load_tokenizer, shipped_base
from repairgym.inference.renderer import ChatRenderer
from repairgym.records import Certificate, Environment, Provenance, Task, TestRequest, TestRun
from repairgym.rollout.turn_log import EpisodeLog, TurnLog
from repairgym.sandbox.base import ExecResult, Sandbox
from repairgym.sandbox.cache import ExecutionCache
from repairgym.testing.scripted import Files, ScriptedSandbox, ScriptedSession

MODEL_S = 0.05
COMMAND_S = 0.02
SOURCE = Path(argparse.__file__).read_text(encoding="utf-8")
"""Real code, of 2,600 lines."""
OUTPUT = b"".join(b"tests/test_values.py::test_%d PASSED\n" % number for number in range(60))
COMMANDS = (
    ("shell", "python -m pytest -q tests/test_values.py"),
    ("open", "open values.py 200"),
    ("edit", "edit 201:202 << 'EOF'\n    value_200 = 1\n    value_201 = 2\nEOF"),
    ("scroll_down", "scroll_down"),
    ("search_file", "search_file value_30"),
    ("malformed", ""),
)


class Moment(NamedTuple):
    """Or a duration, in seconds."""

    cpu_s: float
    wall_s: float

    def __sub__(self, other: Moment) -> Moment:
        return Moment(self.cpu_s - other.cpu_s, self.wall_s - other.wall_s)


def now() -> Moment:
    return Moment(time.thread_time(), time.perf_counter())


class Clock:
    """When the last answer of an episode ended, what commands took since, and the costs so far."""

    def __init__(self) -> None:
        self.answered = self.command = Moment(0.0, 0.0)
        self.kind = ""
        self.costs: list[tuple[str, Moment]] = []

    def asked(self) -> None:
        if self.kind:
            self.costs.append((self.kind, now() - self.answered - self.command))

    def answering(self, kind: str) -> None:
        self.kind, self.command, self.answered = kind, Moment(0.0, 0.0), now()


class PausingPolicy:
    """Answers with commands in turn, after a pause."""

    id = "pausing"

    def __init__(self, renderer: ChatRenderer, clock: Clock) -> None:
        self.clock = clock
        answers = [
            (kind, renderer.action_ids(f"I go on with the next step.\n\n```command\n{text}\n```" if text else "Hm."))
            for kind, text in COMMANDS
        ]
        self.answers: Iterator[tuple[str, list[int]]] = cycle(answers)

    async def generate(self, session_id: str, prompt_ids: list[int], sampling: SamplingParams) -> Generation:
        self.clock.asked()
        await asyncio.sleep(MODEL_S)
        kind, ids = next(self.answers)
        generation = Generation(token_ids=tuple(ids), log_probs=(-0.1,) * len(ids), is_stopped=True, policy_version=0)
        self.clock.answering(kind)
        return generation

    async def end_session(self, session_id: str) -> None:
        pass


class PausingSession(ScriptedSession):
    """A shell whose commands are a pause."""

    def __init__(self, clock: Clock) -> None:
        super().__init__("main")
        self.clock = clock

    async def run(self, command: str, *, timeout_s: float, stdin: bytes = b"") -> ExecResult:
        begin = now()
        await asyncio.sleep(COMMAND_S)
        self.clock.command = now() - begin
        return ExecResult(exit_status=0, stdout=OUTPUT)


class PausingSandbox(ScriptedSandbox):
    """A sandbox with such a shell."""

    def __init__(self, files: Files, clock: Clock) -> None:
        super().__init__(files, _no_tests)
        self.session = PausingSession(clock)

    async def open_session(self, name: str = "main", env: dict[str, str] | None = None) -> ScriptedSession:
        return self.session


def _no_tests(files: Files, request: TestRequest) -> TestRun:
    return TestRun(results={}, exit_status=0)


def make_task() -> Task:
    return Task(
        id="bench",
        source="mutations",
        provenance=Provenance(package="bench", version="1"),
        issue="compute gives 3 where 4 is expected",
        base_tree="",
        base_files={"values.py": SOURCE},
        environment=Environment(lock="", python="3.11", digest=""),
        visible_tests=("t.py::t",),
        fail_to_pass=("t.py::t",),
        pass_to_pass=(),
        test_paths=("t.py",),
        gold_files={},
        gold_patch="",
        split="train",
        certificate=Certificate(num_empty_runs=1, num_empty_failed=1, num_gold_runs=1, num_gold_passed=1),
    )


async def play(
    tree: Path, renderer: ChatRenderer, config: PaperBConfig, number: int, turn_log: TurnLog | None
) -> Clock:
    clock = Clock()
    task = make_task()
    pipeline = make_pipeline(config, ExecutionCache())

    async def create(files: Files) -> Sandbox:
        return PausingSandbox(files, clock)

    context = ToolContext(task=task, workspace=Workspace(tree, task.base_files, create, pipeline.prepare))
    await asyncio.sleep(MODEL_S * number / 64)
    with turn_log.open(f"s{number}", "bench") if turn_log else EpisodeLog() as log:
        recorder = TurnRecorder(log.entries, log.write) if turn_log else TurnRecorder()
        policy = (
            RecordedPolicy(PausingPolicy(renderer, clock), recorder) if turn_log else PausingPolicy(renderer, clock)
        )
        await EpisodeRunner(pipeline, policy, renderer).run(f"s{number}", context, number, recorder)
    return clock


async def measure(num_in_flight: int, num_turns: int, *, is_logged: bool) -> dict[str, float]:
    renderer = ChatRenderer(load_tokenizer(shipped_base()))
    config = PaperBConfig(max_turns=num_turns, max_len_tokens=1 << 20)
    with tempfile.TemporaryDirectory() as folder:
        turn_log = TurnLog(Path(folder) / "turns") if is_logged else None
        begin, cpu = time.perf_counter(), time.process_time()
        clocks = await asyncio.gather(
            *(play(Path(folder), renderer, config, number, turn_log) for number in range(num_in_flight))
        )
        wall_s, cpu_s = time.perf_counter() - begin, time.process_time() - cpu
    found = [cost for clock in clocks for cost in clock.costs]
    costs = sorted(cost.cpu_s for _, cost in found)
    result = {
        "in_flight": float(num_in_flight),
        "turns": float(len(costs)),
        "median_ms": 1e3 * statistics.median(costs),
        "p90_ms": 1e3 * costs[int(0.9 * len(costs))],
        "p99_ms": 1e3 * costs[int(0.99 * len(costs))],
        "wall_median_ms": 1e3 * statistics.median(cost.wall_s for _, cost in found),
        "process_cpu_ms_per_turn": 1e3 * cpu_s / (num_in_flight * num_turns),
        "wall_s": wall_s,
    }
    for kind in sorted({kind for kind, _ in found}):
        result[f"{kind}_median_ms"] = 1e3 * statistics.median(cost.cpu_s for one, cost in found if one == kind)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="12 turns instead of 40, under a minute")
    parser.add_argument("--in-flight", type=int, default=64, help="episodes at one time")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    num_turns = 12 if options.quick else 40
    result = asyncio.run(measure(options.in_flight, num_turns, is_logged=False))
    logged = asyncio.run(measure(options.in_flight, num_turns, is_logged=True))
    names = ("median_ms", "p90_ms", "p99_ms", "process_cpu_ms_per_turn", "wall_s")
    result |= {f"logged_{name}": logged[name] for name in names}
    if options.json:
        print(json.dumps(result))
        return
    for name, value in result.items():
        print(f"{name:<26}{value:10.2f}")


if __name__ == "__main__":
    main()
