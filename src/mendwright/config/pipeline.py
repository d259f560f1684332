"""What an environment of the agent looks like: tools, budgets, prompts (design section 3, `pipelines/`)."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from mendwright.config.judge import JudgeConfig
from mendwright.records import Record


class PipelineConfig(Record):
    """Paper A's *simplified* pipeline: cached (task, report, place), fixed start, no outer loop, no judge."""

    type: Literal["simplified"] = "simplified"
    tools: tuple[str, ...] = ("edit", "line", "undo", "test", "view", "search", "write", "submit")
    max_turns: int = 30
    """Paper A, section on the simplified pipeline: at most 30 steps."""
    max_action_tokens: int = 48
    max_len_tokens: int = 1024
    """Prompt plus completion of the whole episode."""
    time_limit_s: float = 4800.0
    """Paper A: 80 minutes per episode."""
    system_prompt: str = ""
    """Empty for small models, which know the tools from training."""
    is_place_opened: bool = True
    """The episode starts with a window on the task's cached location, when it has one."""


class GradingConfig(Record):
    """How a submission is graded."""

    max_attempts: int = 3
    """Fresh sandboxes tried before a verdict is *invalid*."""
    is_cold: bool = False
    """Every run starts a new interpreter; final evaluation and regrading."""
    num_canaries: int = Field(3, ge=0)
    """Tests with known outcomes mixed into each run: must fail, must pass, must error, and so on; 0 for none."""
    is_differential: bool = True
    """Settle a suspicious pass by a run without the repair."""
    is_protected_restored: bool = True
    """Tests and configuration come from the pinned tree. False: what the agent made of them judges it."""
    is_inspected: bool = True
    """Exploit detectors read the submission. False: nothing is called *exploited*."""
    is_cached: bool = True
    """Equal patches of one task are graded once (training only; a cold grading never reads the cache)."""
    judge: JudgeConfig = JudgeConfig()
    """Reviews what passed. Off, as in paper A's simplified pipeline; its full pipeline has it on."""

    @property
    def disabled_gates(self) -> tuple[str, ...]:
        """The gates against exploits that are off, as every verdict names them; empty unless somebody asked for it.

        They are turned off to study what a policy learns without them (docs/howto/exploit-study.md).
        """
        gates = {
            "protected_files": self.is_protected_restored,
            "detectors": self.is_inspected,
            "canaries": self.num_canaries > 0,
            "differential": self.is_differential,
        }
        return tuple(name for name, is_on in gates.items() if not is_on)
