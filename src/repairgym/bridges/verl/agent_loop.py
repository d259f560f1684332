"""The agent loop that verl's workers run: one of our episodes per call (`AgentLoopBase` of verl 0.9.1).

Guarantees: tokens, masks and log-probabilities are our ledger's; an episode without a valid verdict gives no output, so
its group continues without it: no reward of 0, no share in the mean.
"""

from __future__ import annotations

from typing import Any

from verl.experimental.agent_loop.agent_loop import AgentLoopBase, AgentLoopMetrics, AgentLoopOutput

from repairgym.bridges.verl.episodes import EpisodeHost, EpisodeRequest, ServerPolicy, require_plain_sampling
from repairgym.bridges.verl.outputs import Outcome, Row
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
