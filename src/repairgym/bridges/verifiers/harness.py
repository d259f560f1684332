"""Our agent as a harness of verifiers: episodes in our sandboxes, every model call through verifiers.

Reads a rollout's task and endpoint; makes the verdict in the trace's ``info``. Invariants: code of the task runs in our
sandboxes only, never in verifiers' runtime; an invalid episode is a `SandboxError`, which verifiers can try again and
never scores; a setting that our agent cannot honour is an error.
"""

from __future__ import annotations

from pathlib import Path

import verifiers.v1 as vf

from repairgym.bridges.verifiers.policy import InterceptedPolicy
from repairgym.bridges.verifiers.running import find_task, open_runner
from repairgym.bridges.verifiers.taskset import INFO_KEY, RepairData
from repairgym.config.endpoint import EndpointConfig
from repairgym.config.loading import load_config
from repairgym.config.rollout import RolloutConfig
from repairgym.inference.endpoint import EndpointClient
from repairgym.inference.loading import shipped_base

PLUGIN_ID = "repairgym-verifiers"
_NUM_ATTEMPTS = 4
"""Of one model call."""
_UNBOUNDED_S = 1e6
"""Of one model call: verifiers has the time limit."""


class RepairHarnessConfig(vf.HarnessConfig):
    """How episodes run."""

    id: vf.ID = PLUGIN_ID
    rollout: Path | None = None
    """TOML file of a `RolloutConfig`: pipeline, limits, grading, sandbox; None: its defaults."""
    overrides: list[str] = []
    """``a.b=value`` over that file, e.g. ``pipeline.max_turns=20``."""
    tokenizer: Path | None = None
    """Model folder whose tokenizer counts our record and its limits; None: the shipped base's."""

    def rollout_config(self) -> RolloutConfig:
        """The configuration. One attempt per episode: trying again is verifiers', with a new trace.

        Raises:
            ConfigError: the file or an override is wrong.
        """
        return load_config(RolloutConfig, self.rollout, self.overrides).model_copy(update={"max_attempts": 1})


class RepairHarness(vf.Harness[RepairHarnessConfig]):
    """Runs one episode and grades it, in this process."""

    EXECUTES_CODE = False
    NEEDS_CONTAINER = False

    async def launch(
        self,
        ctx: vf.ModelContext,
        trace: vf.Trace,
        runtime: vf.Runtime,
        endpoint: str,
        secret: str,
        mcp_urls: dict[str, str],
        data: RepairData,
    ) -> vf.ProgramResult:
        """Run the episode of ``data`` with the model behind ``endpoint``.

        Raises:
            ValueError: a system prompt or tool servers, which our agent has no place for.
            vf.SandboxError: the episode is invalid.
        """
        if data.system_prompt is not None or mcp_urls:
            raise ValueError(
                "system prompts and tools of our agent come from its pipeline: set "
                "harness.overrides=['pipeline.system_prompt=...'] instead"
            )
        runner = open_runner(self.config.rollout_config(), self.config.tokenizer or shipped_base())
        task = find_task(data.tasks, str(data.id))
        server = EndpointConfig(
            base_url=endpoint, model=ctx.model, has_seed=False, timeout_s=_UNBOUNDED_S, max_attempts=_NUM_ATTEMPTS
        )
        async with EndpointClient(server, key=secret) as client:
            policy = InterceptedPolicy(client, runner.renderer, lambda: trace.stop_condition is not None)
            trajectory = await runner.run(task, policy, trace.id)
        verdict = trajectory.verdict
        if not verdict.is_valid:
            raise vf.SandboxError(f"the episode is invalid: {verdict.reason}")
        trace.info[INFO_KEY] = {
            "verdict": verdict.kind.value,
            "reward": verdict.reward,
            "reason": verdict.reason,
            "stop_reason": trajectory.stop_reason.value,
            "num_turns": len(trajectory.turns),
            "patch": trajectory.final_patch,
        }
        return vf.ProgramResult(0, "", "")
