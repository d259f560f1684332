"""The classes that verl's workers load (verl 0.9.1): our agent loop, and the embedded engine as a rollout engine.

Of `RepairGymAgentLoop`, tokens, masks and log-probabilities are our ledger's; an episode without a valid verdict gives
no output, so its group continues without it: no reward of 0, no share in the mean.

verl has vLLM, SGLang and TensorRT-LLM and lets others register: a *replica* starts servers, an *adapter* in each
process of the learner sends weights to its replica's server, in memory and after every update. Here a replica is one
Ray actor with one engine. A generation has one version, the learner's number of updates; new weights wait for running
generations.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import ray
import torch
from verl.experimental.agent_loop.agent_loop import AgentLoopBase, AgentLoopMetrics, AgentLoopOutput
from verl.workers.rollout.base import BaseRollout
from verl.workers.rollout.replica import RolloutReplica, TokenOutput

from repairgym.bridges.verl.episodes import EpisodeHost, EpisodeRequest, ServerPolicy, require_plain_sampling
from repairgym.bridges.verl.outputs import Outcome, Row
from repairgym.config.models import EngineConfig
from repairgym.inference.base import SamplingParams
from repairgym.inference.embedded import EmbeddedPolicy
from repairgym.records import Trajectory


class RepairGymAgentLoop(AgentLoopBase):  # type: ignore[misc] # verl is in an environment of its own
    """Runs our episodes against verl's servers."""

    def __init__(self, *args: Any, settings: str, **kwargs: Any) -> None:
        """``settings``: path of ``episodes.toml``; the rest is verl's."""
        super().__init__(*args, **kwargs)
        self._settings = settings

    async def run(self, sampling_params: dict[str, Any], **row: Any) -> Any:
        """Run one episode of the row's task; returns an `AgentLoopOutput`, or a list where it has not exactly one."""
        require_plain_sampling(sampling_params)
        host = EpisodeHost.shared(self._settings)
        trajectory, outcome = await host.run(EpisodeRequest.of_row(row), ServerPolicy(self.server_manager))
        outputs = [_output(part, trajectory, outcome) for part in outcome.rows]
        return outputs[0] if len(outputs) == 1 else outputs


def _output(row: Row, trajectory: Trajectory, outcome: Outcome) -> AgentLoopOutput:
    seconds = trajectory.durations_s
    return AgentLoopOutput(
        prompt_ids=row.prompt_ids,
        response_ids=row.response_ids,
        response_mask=row.response_mask,
        response_logprobs=row.response_log_probs,
        reward_score=outcome.reward,
        num_turns=len(trajectory.turns),
        metrics=AgentLoopMetrics(
            generate_sequences=seconds.get("generate", 0.0),
            tool_calls=seconds.get("tool", 0.0),
            compute_score=seconds.get("grade", 0.0),
        ),
        extra_fields={
            "global_steps": row.max_version,
            "min_global_steps": row.min_version,
            "max_global_steps": row.max_version,
            "reward_extra_info": {"acc": outcome.raw_reward},
            "error_spans": [list(span) for span in row.error_spans],
        },
    )


_MAX_CONCURRENT = 1000


def _server_name(replica_rank: int) -> str:
    return f"embedded_server_{replica_rank}"


class EmbeddedServer:
    """One engine in a process of its own; a Ray actor."""

    def __init__(self, folder: str, config: EngineConfig) -> None:
        """Load the model of ``folder``; its weights are replaced before the first generation."""
        torch.set_num_threads(1)
        self._policy = EmbeddedPolicy.from_folder(Path(folder), config)

    async def generate(
        self, request_id: str, prompt_ids: list[int], sampling_params: dict[str, Any], **_: Any
    ) -> TokenOutput:
        """Continue ``prompt_ids`` with the plain policy; ``sampling_params`` are vLLM's."""
        sampling = SamplingParams(
            temperature=sampling_params["temperature"],
            max_tokens=sampling_params["max_tokens"],
            stop_token_ids=tuple(sampling_params["stop_token_ids"]),
            seed=sampling_params["seed"],
        )
        generation = await self._policy.generate(request_id, list(prompt_ids), sampling)
        # verl gives every turn another id, so no session has an end.
        return TokenOutput(
            token_ids=list(generation.token_ids),
            log_probs=list(generation.log_probs),
            stop_reason="completed",
            extra_fields={"global_steps": generation.policy_version},
        )

    async def load(self, state: Mapping[str, torch.Tensor], version: int) -> None:
        """Swap the weights between generations."""
        # Ray's object store is read-only memory.
        await self._policy.load_state({name: tensor.clone() for name, tensor in state.items()}, version)

    async def wake_up(self, *_: Any, **__: Any) -> None:
        """Nothing sleeps."""

    sleep = clear_kv_cache = release_kv_cache = resume_kv_cache = wake_up
    abort_all_requests = resume_generation = start_profile = stop_profile = wake_up


class EmbeddedReplica(RolloutReplica):  # type: ignore[misc] # verl is in an environment of its own
    """One server per process of the learner."""

    async def launch_servers(self) -> None:
        """Start the server on the node of its process of the learner."""
        (worker,) = self.workers
        node_id = await worker.__ray_call__.remote(lambda _: ray.get_runtime_context().get_node_id())
        custom = self.config.custom or {}
        server = (
            ray.remote(EmbeddedServer)
            .options(
                name=_server_name(self.replica_rank),
                max_concurrency=_MAX_CONCURRENT,
                scheduling_strategy=ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(node_id, soft=False),
            )
            .remote(self.model_config.path, EngineConfig.model_validate(dict(custom["engine"])))
        )
        await server.wake_up.remote()  # the model is loaded
        self.servers = [server]
        self._server_handle = server
        self._server_address = _server_name(self.replica_rank)


class EmbeddedAdapter(BaseRollout):  # type: ignore[misc] # verl is in an environment of its own
    """Sends the learner's weights to the server."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._rank = int(os.environ["RANK"])

    async def resume(self, tags: list[str] | None = None) -> None:
        """Nothing sleeps."""

    release = resume

    async def update_weights(
        self, weights: Iterable[tuple[str, torch.Tensor]], global_steps: int | None = None, **_: Any
    ) -> None:
        """Send all weights, float32, with their version; every process of the learner calls this."""
        state = {name: tensor.detach().to("cpu", torch.float32) for name, tensor in weights}
        server = ray.get_actor(_server_name(self._rank))
        await server.load.remote(state, global_steps or 0)
