"""What an environment of the agent looks like: tools, budgets, prompts (design section 3, `pipelines/`)."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, PositiveFloat, PositiveInt

from repairgym.errors import ConfigError
from repairgym.records import Record


class FullHistoryConfig(Record):
    """Every turn sees everything before it (both papers)."""

    type: Literal["full"] = "full"


class ElisionConfig(Record):
    """Old observations are replaced by a line that says how long they were."""

    type: Literal["elision"] = "elision"
    num_kept: PositiveInt = 5
    """Latest observations that stay as they are."""
    every_turns: PositiveInt = 5
    """Turns between two cuts. Each cut forks the history, which makes a sample of its own."""


class SummaryConfig(Record):
    """A history that is nearly full begins again with the opening and a summary of what was done."""

    type: Literal["summary"] = "summary"
    full_share: float = Field(default=0.75, gt=0.0, lt=1.0)
    """Share of ``max_len_tokens`` at which it begins again."""
    num_actions: PositiveInt = 20
    """Latest actions that the summary lists."""


ContextConfig = Annotated[FullHistoryConfig | ElisionConfig | SummaryConfig, Field(discriminator="type")]


class PipelineConfig(Record):
    """What each pipeline can set. As it is: the one of small models, with one line per action.

    Cached (task, report, place), one attempt, no judge: paper A's simplified pipeline in small.
    """

    type: Literal["compact"] = "compact"
    tools: tuple[str, ...] = ("edit", "line", "undo", "test", "view", "search", "write", "submit")
    """Keys of ``agent/tools/registry.py``."""
    action_format: Literal["compact", "fenced", "json_xml", "native"] = "compact"
    thinking: Literal["off", "kept", "dropped"] = "off"
    """``off``: nothing is looked for. Else an answer may begin with ``<think>...</think>``, which is no part of the
    action; ``dropped`` takes it out of the history before the next turn (which forks the history)."""
    system_prompt: str = ""
    """Name of a template of ``data/prompts``, or a path to one; empty for small models, which know the tools from
    training."""
    opening_prompt: str = ""
    """Template of the first message; empty: the report as it is."""
    demonstration: str = ""
    """Template of a worked example, shown to the policy and kept out of the record: for collecting trajectories to
    imitate only (paper B, section 4.2). Evaluation and RL refuse it."""
    max_turns: PositiveInt = 30
    """Paper A, section on the simplified pipeline: at most 30 steps."""
    max_tool_calls: PositiveInt | None = None
    """Turns whose action could be read; paper A's full pipeline has 50."""
    max_action_tokens: PositiveInt = 48
    max_output_tokens: PositiveInt | None = None
    """Sampled tokens of the whole episode."""
    max_len_tokens: PositiveInt = 1024
    """Prompt plus completion of one turn; with a full history, of the whole episode."""
    max_cost_usd: PositiveFloat | None = None
    """What the policy says that its answers cost; policies that run here cost nothing."""
    time_limit_s: PositiveFloat = 4800.0
    """Paper A: 80 minutes per episode."""
    command_timeout_s: PositiveFloat = 120.0
    """One shell command or build. Paper B does not say; paper A: one hour."""
    max_observation_chars: PositiveInt = 16_000
    """More output of a command is cut in the middle. Neither paper says."""
    window_lines: PositiveInt = 100
    """Lines of a file that the editor's tools show. Paper B does not say."""
    loop: Literal["label", "stop"] = "label"
    """What happens to an episode that repeats itself: its turns are labelled, or it ends."""
    loop_repeats: int = Field(default=3, ge=2)
    """Equal actions with equal observations, one after the other, that make a loop."""
    is_unsubmitted_scored: bool = True
    """Grade what an episode left that ended without submitting; False: it counts as an empty submission. Paper B does
    not say."""
    context: ContextConfig = FullHistoryConfig()
    is_place_opened: bool = True
    """The episode starts with a window on the task's cached location, when it has one."""

    @property
    def max_episode_turns(self) -> int:
        """Turns of one episode at most, all its attempts together."""
        return self.max_turns


class KnowledgeConfig(Record):
    """The knowledge base of past fixes (paper A, full pipeline)."""

    path: str = ""
    """A file of `repairgym knowledge add`; empty: nothing is known."""
    num_fixes: PositiveInt = 3
    """Fixes that ``ask_for_help`` shows."""
    busy_timeout_s: PositiveFloat = 30.0
    """How long a locked file is waited for; after that the episode is invalid."""


class SimplifiedConfig(PipelineConfig):
    """Paper A's *simplified* pipeline: a cached (task, error, candidate fix), one attempt, no judge."""

    type: Literal["simplified"] = "simplified"  # type: ignore[assignment]
    tools: tuple[str, ...] = (
        "ask_for_help",
        "dependency_upgrade",
        "find_files",
        "find_files_with_text",
        "remove_dependency",
        "run_sh",
        "upgrade_build_tool",
        "validate_and_build",
        "read_file",
        "write_file",
    )
    """Paper A, appendix A.2."""
    action_format: Literal["compact", "fenced", "json_xml", "native"] = "json_xml"
    system_prompt: str = "paper_a/system"
    opening_prompt: str = "paper_a/opening"
    max_action_tokens: PositiveInt = 8192
    """Paper A does not say."""
    max_len_tokens: PositiveInt = 131_072
    """Paper A: 131K by RoPE scaling."""
    command_timeout_s: PositiveFloat = 3600.0
    """Paper A: one hour per tool."""
    is_place_opened: bool = False
    knowledge: KnowledgeConfig = KnowledgeConfig()
    starts: str = ""
    """A file of `repairgym knowledge starts`, which holds the error and the candidate fixes of each task; empty: both are
    found when the first episode of a task opens."""
    max_log_chars: int = Field(default=4000, ge=0)
    """Log of the build in the first message; 0: none."""
    max_fix_chars: int = Field(default=8000, ge=0)
    """Past fix in the first message; 0: none."""


class FullConfig(SimplifiedConfig):
    """Paper A's *full* pipeline: build, one main error, past fixes, an agent, and an outer loop around it."""

    type: Literal["full"] = "full"  # type: ignore[assignment]
    max_turns: PositiveInt = 100
    """Paper A: LangGraph's recursion limit."""
    max_tool_calls: PositiveInt | None = 50
    """Paper A: 50 tool calls per attempt (each attempt is a trajectory there)."""
    max_retries: int = Field(default=3, ge=0)
    """Paper A: retries of one error, each with the next past fix."""
    max_attempts: PositiveInt = 100
    """Attempts of one episode, whatever their errors. Paper A does not say; it bounds LangGraph's steps by 100."""

    @property
    def max_episode_turns(self) -> int:
        """Turns of one episode at most, all its attempts together."""
        return self.max_turns * self.max_attempts


class PaperBConfig(PipelineConfig):
    """Paper B's scaffold (sections 3.3, 4.3, appendices E and F): a shell and a windowed editor."""

    type: Literal["paper_b"] = "paper_b"  # type: ignore[assignment]
    tools: tuple[str, ...] = (
        "shell",
        "create",
        "edit_range",
        "goto",
        "open",
        "replace",
        "scroll_down",
        "scroll_up",
        "search_file",
        "submit",
    )
    action_format: Literal["compact", "fenced", "json_xml", "native"] = "fenced"
    system_prompt: str = "paper_b/system"
    opening_prompt: str = "paper_b/opening"
    max_turns: PositiveInt = 40
    """T_max of paper B, Table 3: 40 in stage 1, 80 in stage 2."""
    max_action_tokens: PositiveInt = 4096
    """Paper B does not say."""
    max_len_tokens: PositiveInt = 65_536
    """Paper B, Table 3: 65k in stage 1, 131k in stage 2."""
    is_place_opened: bool = False
    has_git: bool = True
    """The tree is a git repository with one commit, so that ``git diff`` and ``git checkout`` of the prompt work."""


AnyPipelineConfig = Annotated[
    PipelineConfig | SimplifiedConfig | FullConfig | PaperBConfig, Field(discriminator="type")
]


def check_undemonstrated(pipeline: PipelineConfig) -> None:
    """Check that no worked example is shown (paper B, section 4.2: only when trajectories are collected for imitation).

    Raises:
        ConfigError: one is.
    """
    if pipeline.demonstration:
        raise ConfigError(
            f"pipeline.demonstration={pipeline.demonstration!r} is for collecting trajectories to imitate; evaluation "
            "and RL need it empty"
        )


class JudgeConfig(Record):
    """Whether a judge reviews passed patches, and which."""

    is_enabled: bool = False
    model: str = ""
    """Model folder of the judge; needed when it is enabled."""
    max_attempts: PositiveInt = 3
    """Questions asked before the verdict is *invalid*."""
    timeout_s: PositiveFloat = 120.0
    """Bound on one reply."""
    max_reply_tokens: PositiveInt = 1024
    temperature: float = Field(default=0.0, ge=0.0)
    max_issue_chars: PositiveInt = 8_000
    max_patch_chars: PositiveInt = 60_000
    """More of a patch is not shown; accepting one that was not shown whole is a suspicious finding."""
    max_len_tokens: PositiveInt = 32_768
    """Longest question plus reply that the embedded engine keeps."""


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
