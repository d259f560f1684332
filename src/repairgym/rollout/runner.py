"""Run and grade episodes in one process, many at a time.

Reads `EpisodeJob` records. Makes graded `Trajectory` records. Guarantees: a sandbox failure is tried again in a fresh
sandbox and then ends as an *invalid* verdict; a failure of a model's server, which its client has retried, ends as one
at once and keeps the turns before it; every job gives exactly one trajectory; an episode continues behind the
turns that are recorded of it (external agents have none), and starts again where a replay of them differs.
"""

import asyncio
import hashlib
import itertools
import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing, suppress
from functools import partial
from pathlib import Path
from typing import Any

from repairgym.agent.clients import ClientPolicy
from repairgym.agent.episode import Episode, Watcher
from repairgym.agent.expert import MixedPolicy
from repairgym.agent.kept_states import StateKeeper
from repairgym.agent.pipelines.base import EpisodeRunner, Pipeline
from repairgym.agent.pipelines.registry import make_pipeline
from repairgym.agent.recording import Entry, RecordedPolicy, TurnRecorder, entries_of
from repairgym.agent.routing import RouterPolicy
from repairgym.agent.scripted import ReplayPolicy, ScriptedPolicy
from repairgym.agent.tools.base import ToolContext
from repairgym.agent.tools.repository import make_repository
from repairgym.agent.tools.workspace import Files, Workspace, base_text
from repairgym.config.agent import ExternalAgentConfig
from repairgym.config.pipeline import PipelineConfig
from repairgym.config.rollout import RolloutConfig
from repairgym.diffs.make import unified_diff
from repairgym.errors import (
    ConfigError,
    McpServerError,
    RepairInSightError,
    ReplayDiffersError,
    SandboxContentError,
    SandboxError,
)
from repairgym.grading.execution import GRADER_VERSION
from repairgym.grading.grader import Grader
from repairgym.grading.judge import open_judge
from repairgym.grading.replayed import ReplayJudge
from repairgym.inference.base import Generation, Policy, SamplingParams
from repairgym.inference.renderer import ChatRenderer
from repairgym.ledger import LedgerBuilder, Parent, TokenLedger
from repairgym.records import StopReason, Task, Trajectory, Verdict, VerdictKind
from repairgym.rollout.external.agents import ExternalAgent
from repairgym.rollout.external.tool_servers import ToolServers
from repairgym.rollout.jobs import EpisodeJob
from repairgym.rollout.kept_groups import KeptGroups
from repairgym.rollout.turn_log import EpisodeLog, TurnLog
from repairgym.sandbox.base import Sandbox, SandboxBackend, SandboxSpec, Snapshot
from repairgym.sandbox.cache import ExecutionCache
from repairgym.sandbox.lease import LeasedBackend
from repairgym.serving.scripts import ShellPolicy
from repairgym.sizing.workers import size_workers, this_host
from repairgym.tasks.build.concurrency import as_completed
from repairgym.tasks.build.validation import TaskLayers
from repairgym.tasks.layers.store import LayerStore

_UNBOUNDED_TOKENS = 1 << 30


class Runner:
    """One process's episodes: a sandbox back end, a grader and an execution cache, shared by all of them."""

    def __init__(
        self,
        config: RolloutConfig,
        backend: SandboxBackend,
        find_layers: Callable[[Task], TaskLayers],
        renderer: ChatRenderer,
        store: LayerStore | None = None,
        turn_log: TurnLog | None = None,
        watcher: Watcher | None = None,
    ) -> None:
        """Use what is given; the replay judge finds its oracles in ``store``, without which it judges nothing.

        Without ``turn_log`` the turns of an episode end with this process. ``watcher`` reads turns as they end.
        """
        self._config = config = size_workers(config, [this_host()])
        self._backend = LeasedBackend(backend, config.max_sandboxes, config.backoff_s)
        self._find_layers = find_layers
        self._renderer = renderer
        self._turn_log = turn_log
        self._watcher = watcher
        self._turn_counts = Counter(dict.fromkeys(TURN_COUNTS, 0))
        self._session_numbers = itertools.count()
        self._layers: dict[str, TaskLayers] = {}
        self._kept = KeptGroups(config.max_in_flight)
        self._gate = asyncio.Semaphore(config.max_in_flight)
        self.cache = ExecutionCache()
        self._pipeline = make_pipeline(config.pipeline, self.cache, renderer.call_form)
        agent = config.agent
        self._servers = ToolServers(self._pipeline, store)
        self._agent = ExternalAgent(agent, renderer, store) if isinstance(agent, ExternalAgentConfig) else None
        grading = config.grading
        replay_judge = ReplayJudge.open(self._backend, self._spec, grading, store) if store else None
        self._judge = open_judge(grading.judge, config.num_workers)
        self._grader = Grader(self._backend, self._spec, grading, self.cache, self._judge, replay_judge)

    @property
    def pipeline(self) -> Pipeline[Any]:
        """The environment of the agents."""
        return self._pipeline

    @property
    def backend(self) -> str:
        """Name of the sandbox back end."""
        return self._backend.name

    def counters(self) -> dict[str, float]:
        """Return those of the execution cache, of resumed episodes and of a judge behind a server."""
        hits = {"cache/hits": float(self.cache.num_hits), "cache/misses": float(self.cache.num_misses)}
        resumed = {name: float(count) for name, count in self._turn_counts.items()}
        return hits | resumed | (self._judge.counters() if self._judge else {})

    async def close(self) -> None:
        """Close the judge's connections and what is kept for branches; the back end stays open."""
        await self._kept.close()
        if self._judge:
            await self._judge.close()

    def open_workspace(self, task: Task, mounts: Mapping[str, Path]) -> Workspace:
        """Return files of ``task`` for an agent that others run, as a git repository; its sandbox shows ``mounts``."""

        async def create(files: Files) -> Sandbox:
            return await self._backend.create(self._spec(task, files).model_copy(update={"mounts": dict(mounts)}))

        return Workspace(self._task_layers(task).tree, task.base_files, create, make_repository)

    async def grade(self, task: Task, workspace: Workspace) -> tuple[Verdict, str]:
        """Return the verdict on what a workspace holds, and its patch; none are changes that are too much to read."""
        with suppress(SandboxContentError):
            await workspace.refresh()
        files = dict(workspace.changes)
        patch = unified_diff({path: workspace.base_text(path) for path in files}, files)
        try:
            return await self._grader.grade(task, files, ()), patch
        except SandboxError as error:
            return _invalid(str(error)), patch

    async def run(
        self, jobs: Sequence[EpisodeJob], tasks: Mapping[str, Task], policy: Policy, temperature: float = 1.0
    ) -> AsyncGenerator[Trajectory, None]:
        """Graded trajectories as they end, one per job."""
        begun_at_s = time.monotonic()

        async def bounded(job: EpisodeJob) -> Trajectory:
            async with self._gate:
                queue_s = time.monotonic() - begun_at_s
                return await self.run_job(job, tasks[job.task_id], policy, temperature, queue_s)

        async with aclosing(as_completed(bounded(job) for job in jobs)) as ended:
            async for trajectory in ended:
                yield trajectory
        # The last branches of a group leave no states, and nothing follows them.
        await self._kept.forget({job.group_id for job in jobs if job.prefix and not job.is_kept})

    async def run_job(
        self, job: EpisodeJob, task: Task, policy: Policy, temperature: float, queue_s: float = 0.0
    ) -> Trajectory:
        """Return a graded episode; it has waited ``queue_s``.

        It is invalid after `max_attempts` sandbox failures, or one of the model's server, without a new turn in
        between: a long episode, which meets more of them, is not cut more often than a short one.
        """
        begun_at_s = time.monotonic()
        trajectory = await self._until_graded(job, task, policy, temperature, queue_s)
        spent_s = sum(trajectory.durations_s.get(stage, 0.0) for stage in ("generate", "tool", "grade"))
        trajectory.durations_s["other"] = max(0.0, time.monotonic() - begun_at_s - spent_s)
        return trajectory

    async def _until_graded(
        self, job: EpisodeJob, task: Task, policy: Policy, temperature: float, queue_s: float
    ) -> Trajectory:
        failure, num_failures = "", 0
        longest: Trajectory | None = None
        with self._open_log(job, policy, temperature) as log:
            num_recorded = len(log.entries)
            while num_failures < self._config.max_attempts:
                is_forked = bool(self._kept.begun_with(job))
                try:
                    async with self._kept.keeper(job) as keeper:
                        ended, is_over = await self._attempt(job, task, policy, temperature, log, keeper, queue_s)
                    if is_over:
                        return ended
                    # A later attempt may fail before it has replayed the turns of an earlier one.
                    longest = ended if longest is None else max(longest, ended, key=lambda made: len(made.turns))
                    if len(log.entries) <= num_recorded:
                        return longest
                    num_failures = 0
                except ReplayDiffersError as error:
                    self._turn_counts["turns/num_differing_replays"] += 1
                    if not log.entries and not is_forked:
                        verdict = _invalid(f"the turns of the parent came out differently: {error}")
                        return self._trajectory(job, task, policy, _no_episode(queue=queue_s), verdict)
                    log.restart()
                except (McpServerError, RepairInSightError) as error:
                    return self._trajectory(job, task, policy, _no_episode(queue=queue_s), _invalid(str(error)))
                except SandboxError as error:
                    failure = str(error)
                    num_failures = 1 if len(log.entries) > num_recorded else num_failures + 1
                # What was sampled again behind a replay that differed is no progress: it would never end.
                num_recorded = max(num_recorded, len(log.entries))
                if is_forked:  # the next attempt replays
                    await self._kept.forget([job.group_id])
        verdict = _invalid(f"{self._config.max_attempts} episodes failed: {failure}")
        return self._trajectory(job, task, policy, _no_episode(queue=queue_s), verdict)

    def _open_log(self, job: EpisodeJob, policy: Policy, temperature: float) -> EpisodeLog:
        if self._turn_log is None or self._agent is not None:
            return EpisodeLog()
        parent = _parent(job)
        hint = (job.hint,) if job.hint else ()
        parts = (job.trajectory_id, job.task_id, job.seed, parent, policy.id, temperature, self._config.pipeline, *hint)
        log = self._turn_log.open(job.trajectory_id, hashlib.sha256(repr(parts).encode()).hexdigest())
        self._turn_counts["turns/num_differing_replays"] += log.num_dropped > 0
        self._turn_counts["turns/num_resumed_episodes"] += bool(log.entries)
        return log

    async def _attempt(
        self,
        job: EpisodeJob,
        task: Task,
        policy: Policy,
        temperature: float,
        log: EpisodeLog,
        keeper: StateKeeper,
        queue_s: float,
    ) -> tuple[Trajectory, bool]:
        """Return the trajectory; False where the model's server or the knowledge base failed."""
        session_id = f"{job.trajectory_id}~{next(self._session_numbers)}"
        await self._servers.connect(task, lambda: self._sandbox(task, task.base_files))
        if isinstance(policy, ScriptedPolicy):
            policy.begin_session(session_id, task, job.seed, self._pipeline)
        elif isinstance(policy, ShellPolicy | MixedPolicy):
            policy.begin_session(session_id, task)
        with self._backend.sharing():
            context = ToolContext(task=task, workspace=await self._workspace(task))
            try:
                episode = await self._episode(session_id, context, policy, job, temperature, log, keeper)
            finally:
                await context.workspace.close()
        episode.durations_s["queue"] += queue_s
        if episode.failure:
            return self._trajectory(job, task, policy, episode, _invalid(episode.failure)), False
        started = time.monotonic()
        verdict = await self._grader.grade(task, episode.files, episode.turns)
        episode.durations_s["grade"] = time.monotonic() - started
        return self._trajectory(job, task, policy, episode, verdict), True

    async def _workspace(self, task: Task) -> Workspace:
        tree = self._task_layers(task).tree
        if self._agent is not None:
            return await self._agent.workspace(task, tree, lambda files: self._spec(task, files), self._backend.create)
        prepare = self._pipeline.prepare if self._pipeline.is_prepared else None
        return Workspace(tree, task.base_files, partial(self._sandbox, task), prepare, partial(self._sandbox, task))

    async def _episode(
        self,
        session_id: str,
        context: ToolContext,
        policy: Policy,
        job: EpisodeJob,
        temperature: float,
        log: EpisodeLog,
        keeper: StateKeeper,
    ) -> Episode:
        limits = self._limits_of(policy)
        recorder = TurnRecorder([*self._prefix_entries(job), *log.entries], log.write)
        timed = TimedPolicy(policy if self._agent is not None else RecordedPolicy(policy, recorder))
        if self._agent is not None:
            asked = policy if isinstance(policy, ShellPolicy) else timed
            episode = await self._agent.run(session_id, context, asked, limits, seed=job.seed, temperature=temperature)
        else:
            watcher = policy if isinstance(policy, ClientPolicy) else self._watcher
            if isinstance(policy, RouterPolicy):
                watcher = policy.watch(session_id, watcher)
            num_shared = job.prefix.num_turns if job.prefix else 0
            runner = EpisodeRunner(
                self._pipeline, timed, self._renderer, temperature, limits, watcher, job.allowance, num_shared, job.hint
            )
            try:
                episode = await runner.run(session_id, context, job.seed, recorder, keeper)
            finally:
                self._turn_counts["turns/num_recalled"] += recorder.num_recalled
                self._turn_counts["turns/num_executed_again"] += recorder.num_executed_again
                self._turn_counts["turns/num_forked_episodes"] += keeper.is_forked
        episode.durations_s.update(timed.durations_s)
        return episode

    def _prefix_entries(self, job: EpisodeJob) -> list[Entry]:
        if job.prefix is None:
            return []
        if self._agent is not None:
            raise ConfigError("an external agent cannot begin as a branch: the state of its program is not recorded")
        return entries_of(job.prefix.trajectory, job.prefix.num_turns, self._renderer.stop_token_ids)

    def _limits_of(self, policy: Policy) -> PipelineConfig:
        """A script or a client has no context window here: whole files that an oracle writes do not end its episode."""
        pipeline = self._config.pipeline
        is_scripted = isinstance(policy, ScriptedPolicy | ReplayPolicy | ShellPolicy | ClientPolicy)
        return pipeline.model_copy(update={"max_len_tokens": _UNBOUNDED_TOKENS}) if is_scripted else pipeline

    def _trajectory(
        self, job: EpisodeJob, task: Task, policy: Policy, episode: Episode, verdict: Verdict
    ) -> Trajectory:
        tree = self._task_layers(task).tree
        base = {path: base_text(tree, task.base_files, path) for path in episode.files}
        patch = unified_diff(base, episode.files)
        return _make_trajectory(job, self._config, policy.id, self._backend.name, episode, patch, verdict)

    def _task_layers(self, task: Task) -> TaskLayers:
        if task.id not in self._layers:
            self._layers[task.id] = self._find_layers(task)
        return self._layers[task.id]

    def _spec(self, task: Task, files: dict[str, str | None]) -> SandboxSpec:
        return self._task_layers(task).spec(files, self._config.sandbox.limits)

    async def _sandbox(self, task: Task, files: dict[str, str | None], snapshot: Snapshot | None = None) -> Sandbox:
        spec = self._spec(task, files)
        if self._servers.mounts:
            spec = spec.model_copy(update={"mounts": self._servers.mounts})
        return await self._backend.create(spec, snapshot=snapshot)


def never_run(job: EpisodeJob, policy_id: str, config: RolloutConfig, reason: str) -> Trajectory:
    """Return the invalid trajectory of a job whose episode nobody could run to an end."""
    return _make_trajectory(job, config, policy_id, "", _no_episode(), "", _invalid(reason))


def _no_episode(**durations_s: float) -> Episode:
    return Episode((), LedgerBuilder().build(), StopReason.INFRASTRUCTURE, {}, durations_s)


def _make_trajectory(
    job: EpisodeJob,
    config: RolloutConfig,
    policy_id: str,
    backend: str,
    episode: Episode,
    patch: str,
    verdict: Verdict,
) -> Trajectory:
    return Trajectory(
        id=job.trajectory_id,
        task_id=job.task_id,
        group_id=job.group_id,
        pipeline=config.scaffold,
        policy_id=policy_id,
        sandbox_backend=backend,
        turns=episode.turns,
        ledger=_own_ledger(job, episode.ledger),
        stop_reason=episode.stop_reason,
        final_files=episode.files,
        final_patch=patch,
        verdict=verdict,
        seed=job.seed,
        attempts=episode.attempts,
        durations_s=episode.durations_s,
        agent_run=episode.agent_run,
        parent=_parent(job),
    )


def _parent(job: EpisodeJob) -> Parent | None:
    prefix = job.prefix
    return Parent(trajectory_id=prefix.trajectory.id, num_turns=prefix.num_turns) if prefix else None


def _own_ledger(job: EpisodeJob, ledger: TokenLedger) -> TokenLedger:
    """Each sampled token is learned once, by the episode that sampled it."""
    return ledger.as_context(job.prefix.num_tokens) if job.prefix else ledger


def _invalid(reason: str) -> Verdict:
    return Verdict(kind=VerdictKind.INVALID, reason=reason, grader_version=GRADER_VERSION)


TURN_COUNTS = (
    "turns/num_resumed_episodes",
    "turns/num_recalled",
    "turns/num_executed_again",
    "turns/num_forked_episodes",
    "turns/num_differing_replays",
)
GENERATION_STAGES = ("queue", "prefill", "decode")


class TimedPolicy:
    """The policy of one episode, with a clock."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self.id = policy.id
        self.durations_s = dict.fromkeys(GENERATION_STAGES, 0.0)
        """Stage -> seconds so far."""

    async def generate(self, session_id: str, prompt_ids: list[int], sampling: SamplingParams) -> Generation:
        """Return the answer of the policy and add its seconds."""
        generation = await self._policy.generate(session_id, prompt_ids, sampling)
        spent_s = (generation.queue_s, generation.prefill_s, generation.decode_s)
        for stage, seconds in zip(GENERATION_STAGES, spent_s, strict=True):
            self.durations_s[stage] += seconds
        return generation

    async def end_session(self, session_id: str) -> None:
        """Pass it on."""
        await self._policy.end_session(session_id)
