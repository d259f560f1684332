"""The environment of our taskset: one agent, our harness, sandboxes that live as long as verifiers serves it.

Reads a configuration; makes episodes. Invariants: verifiers' own runtime is a plain subprocess that nothing runs in;
what a sandbox fails at is tried again, up to `NUM_RETRIES` times, with a new trace.
"""

from __future__ import annotations

import verifiers.v1 as vf

from repairgym.bridges.verifiers.running import close_runners
from repairgym.bridges.verifiers.taskset import RepairTask

NUM_RETRIES = 2


class RepairEnvConfig(vf.EnvConfig):
    """One seat, the agent that is evaluated or trained."""

    agent: vf.AgentConfig = vf.AgentConfig(
        runtime=vf.SubprocessConfig(),
        retries=vf.RetryConfig(rules=[vf.RetryRule(type="SandboxError", max_retries=NUM_RETRIES)]),
    )


class RepairEnv(vf.Env[RepairEnvConfig]):
    """One agent on one task."""

    async def run(self, task: RepairTask, agents: vf.Agents) -> None:
        """One episode."""
        await agents.agent.run(task)

    async def stop(self) -> None:
        """End the sandboxes."""
        await close_runners()
