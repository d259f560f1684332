"""Where the seconds of an episode's generations go: waiting, prefill, decoding.

Reads what a policy says of its generations; makes sums. Invariant: what the policy answers is handed on untouched.
"""

from __future__ import annotations

from repairgym.inference.base import Generation, Policy, SamplingParams

GENERATION_STAGES = ("queue", "prefill", "decode")


class TimedPolicy:
    """The policy of one episode, with a clock."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self.id = policy.id
        self.durations_s = dict.fromkeys(GENERATION_STAGES, 0.0)
        """Stage -> seconds so far."""

    async def generate(self, session_id: str, prompt_ids: list[int], sampling: SamplingParams) -> Generation:
        """What the policy answers."""
        generation = await self._policy.generate(session_id, prompt_ids, sampling)
        spent_s = (generation.queue_s, generation.prefill_s, generation.decode_s)
        for stage, seconds in zip(GENERATION_STAGES, spent_s, strict=True):
            self.durations_s[stage] += seconds
        return generation

    async def end_session(self, session_id: str) -> None:
        """Hand it on."""
        await self._policy.end_session(session_id)
