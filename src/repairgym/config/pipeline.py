"""Environments of the agent: tools, budgets, prompts, grading."""

from typing import Annotated, Literal, Self

from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from repairgym.config.mcp import McpServerConfig
from repairgym.config.models import EndpointConfig
from repairgym.errors import ConfigError
from repairgym.records import Record


class FullHistoryConfig(Record):
    """Every turn sees the whole history (both papers)."""

    type: Literal["full"] = "full"


class ElisionConfig(Record):
    """Old observations are replaced by a line that states their length."""

    type: Literal["elision"] = "elision"
    num_kept: PositiveInt = 5
    """Latest observations that stay unchanged."""
    every_turns: PositiveInt = 5
    """Turns between two cuts. Each cut forks the history and makes a separate sample."""


class SummaryConfig(Record):
    """A nearly full history restarts with the opening and a summary of the actions."""

    type: Literal["summary"] = "summary"
    full_share: float = Field(default=0.75, gt=0.0, lt=1.0)
    """Share of ``max_len_tokens`` at which it restarts."""
    num_actions: PositiveInt = 20
    """Latest actions that the summary lists."""


ActionFormat = Literal["compact", "fenced", "json_xml", "native"]
ReviewForm = Literal["none", "actions", "written"]
Role = Literal["patcher", "reviewer", "refiner"]
"""Of a turn, in an episode whose first submission is reviewed."""
ContextConfig = Annotated[FullHistoryConfig | ElisionConfig | SummaryConfig, Field(discriminator="type")]


class PipelineConfig(Record):
    """Settings of every pipeline; the defaults are the compact pipeline of small models, with one line per action.

    Cached (task, report, place), one attempt, no judge: a small version of paper A's simplified pipeline.
    """

    type: Literal["compact"] = "compact"
    tools: tuple[str, ...] = ("edit", "line", "insert", "delete", "undo", "test", "view", "search", "write", "submit")
    """Keys of ``agent/tools/registry.py``."""
    mcp: tuple[McpServerConfig, ...] = ()
    """Servers of the Model Context Protocol whose tools the agent has in addition."""
    action_format: ActionFormat = "compact"
    thinking: Literal["off", "kept", "dropped"] = "off"
    """``off``: the model is told not to think where its chat template can say so (Qwen3, GLM), and a model that always
    thinks is rejected. Otherwise it is told to think: ``kept`` leaves thoughts in the history, ``dropped`` removes each
    one before the next turn (which forks the history). A thought is never part of an action."""
    system_prompt: str = ""
    """Name of a template in ``data/prompts``, or a path; empty for small models, which know the tools from training."""
    opening_prompt: str = ""
    """Template of the first message; empty: the plain report."""
    demonstration: str = ""
    """Template of a worked example that the policy sees and the record omits, for collecting trajectories to imitate
    (paper B, section 4.2). Evaluation and RL reject it."""
    max_turns: PositiveInt = 30
    """Paper A, section on the simplified pipeline: at most 30 steps."""
    max_tool_calls: PositiveInt | None = None
    """Turns with a parsed action; paper A's full pipeline has 50."""
    max_action_tokens: PositiveInt = 48
    max_output_tokens: PositiveInt | None = None
    """Sampled tokens of the whole episode."""
    max_len_tokens: PositiveInt = 1024
    """Prompt plus completion of one turn; with a full history, of the whole episode."""
    max_cost_usd: PositiveFloat | None = None
    """Bound on the reported cost of the policy's answers; local policies cost nothing."""
    time_limit_s: PositiveFloat = 4800.0
    """Paper A: 80 minutes per episode. Waits for infrastructure do not count."""
    command_timeout_s: PositiveFloat = 120.0
    """Bound on one shell command or build. Paper B gives none; paper A: one hour."""
    max_observation_chars: PositiveInt = 16_000
    """Longer output of a command is cut in the middle. The papers give no value."""
    window_lines: PositiveInt = 100
    """Lines of a file that the editor's tools show. Paper B gives no value."""
    loop: Literal["label", "stop"] = "label"
    """Treatment of an episode that repeats itself: label its turns, or stop it."""
    loop_repeats: int = Field(default=3, ge=2)
    """Number of consecutive equal actions with equal observations that make a loop."""
    is_unsubmitted_scored: bool = True
    """Grade the files of an episode that ended without submitting; False: it counts as an empty submission. Paper B
    does not specify it."""
    context: ContextConfig = FullHistoryConfig()
    is_place_opened: bool = True
    """The episode starts with a window on the task's cached location, when it has one."""
    review: ReviewForm = "none"
    """The first submission goes to a reviewer, and then to a refiner, whose submission counts (`agent/review.py`; MALT,
    arXiv 2412.01928). ``actions``: the reviewer answers ``submit``, or ``undo``, which takes the last change back;
    ``written``: it writes sentences and a judgement. One policy has all roles, or each its own model."""

    @model_validator(mode="after")
    def _reviews_are_possible(self) -> Self:
        if self.review == "none":
            return self
        if "submit" not in self.tools or "validate_and_build" in self.tools:
            raise ValueError(f"review={self.review!r} needs the tool submit, and no other that ends an episode")
        if self.review == "actions" and (self.action_format != "compact" or "undo" not in self.tools):
            raise ValueError("review='actions' is for compact actions with undo; expected review='written'")
        if self.context.type != "full" or self.thinking == "dropped":
            raise ValueError(
                f"review={self.review!r} stands in one history of all roles; expected context.type='full' and thinking "
                f"'off' or 'kept', got {self.context.type!r} and {self.thinking!r}"
            )
        return self

    @property
    def is_thinking(self) -> bool:
        """True when the model is told to think."""
        return self.thinking != "off"

    @property
    def max_episode_turns(self) -> int:
        """Largest number of turns of one episode, over all attempts."""
        return self.max_turns


class KnowledgeConfig(Record):
    """The knowledge base of past fixes (paper A, full pipeline)."""

    path: str = ""
    """A file of `repairgym knowledge add`; empty: no past fixes."""
    num_fixes: PositiveInt = 3
    """Fixes that ``ask_for_help`` shows."""
    busy_timeout_s: PositiveFloat = 30.0
    """Longest wait for a locked file; after that the episode is invalid."""


class SimplifiedConfig(PipelineConfig):
    """Paper A's *simplified* pipeline: a cached (task, error, candidate fix), one attempt, no judge."""

    type: Literal["simplified"] = "simplified"  # type: ignore[assignment]
    tools: tuple[str, ...] = (
        "ask_for_help", "dependency_upgrade", "find_files", "find_files_with_text", "remove_dependency", "run_sh",
        "upgrade_build_tool", "validate_and_build", "read_file", "write_file",
    )  # fmt: skip
    """Paper A, appendix A.2."""
    action_format: ActionFormat = "json_xml"
    system_prompt: str = "paper_a/system"
    opening_prompt: str = "paper_a/opening"
    max_action_tokens: PositiveInt = 8192
    """Paper A gives no value."""
    max_len_tokens: PositiveInt = 131_072
    """Paper A: 131K by RoPE scaling."""
    command_timeout_s: PositiveFloat = 3600.0
    """Paper A: one hour per tool."""
    is_place_opened: bool = False
    knowledge: KnowledgeConfig = KnowledgeConfig()
    starts: str = ""
    """A file of `repairgym knowledge starts`, with the error and the candidate fixes of each task; empty: both are
    computed when the first episode of a task opens."""
    max_log_chars: int = Field(default=4000, ge=0)
    """Largest part of the build log in the first message; 0: none."""
    max_fix_chars: int = Field(default=8000, ge=0)
    """Largest part of the past fix in the first message; 0: none."""


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
    """Attempts of one episode, over all errors. Paper A gives no value; it bounds LangGraph's steps by 100."""

    @property
    def max_episode_turns(self) -> int:
        """Largest number of turns of one episode, over all attempts."""
        return self.max_turns * self.max_attempts


class PaperBConfig(PipelineConfig):
    """Paper B's scaffold (sections 3.3, 4.3, appendices E and F): a shell and a windowed editor."""

    type: Literal["paper_b"] = "paper_b"  # type: ignore[assignment]
    tools: tuple[str, ...] = (
        "shell", "create", "edit_range", "goto", "open", "replace", "scroll_down", "scroll_up", "search_file", "submit",
    )  # fmt: skip
    action_format: ActionFormat = "fenced"
    system_prompt: str = "paper_b/system"
    opening_prompt: str = "paper_b/opening"
    max_turns: PositiveInt = 40
    """T_max of paper B, Table 3: 40 in stage 1, 80 in stage 2."""
    max_action_tokens: PositiveInt = 4096
    """Paper B gives no value."""
    max_len_tokens: PositiveInt = 65_536
    """Paper B, Table 3: 65k in stage 1, 131k in stage 2."""
    is_place_opened: bool = False
    has_git: bool = True
    """The tree is a git repository with one commit, so that the prompt's ``git diff`` and ``git checkout`` work."""


AnyPipelineConfig = Annotated[
    PipelineConfig | SimplifiedConfig | FullConfig | PaperBConfig, Field(discriminator="type")
]


def check_undemonstrated(pipeline: PipelineConfig) -> None:
    """Raise a `ConfigError` where a worked example is shown: it is for collecting only (paper B, section 4.2)."""
    if pipeline.demonstration:
        raise ConfigError(
            f"pipeline.demonstration={pipeline.demonstration!r} is for collecting trajectories to imitate; evaluation "
            "and RL need it empty"
        )


class JudgeConfig(Record):
    """Judge that reviews passed patches."""

    is_enabled: bool = False
    model: str = ""
    """Model folder of a judge in the embedded engine of each worker. An enabled judge needs this or ``endpoint``."""
    endpoint: EndpointConfig = EndpointConfig()
    """Server of the judge, with its limits, retries and prices; its ``model`` is the judge's."""
    max_attempts: PositiveInt = 3
    """Questions to the judge before the verdict is *invalid*."""
    timeout_s: PositiveFloat = 120.0
    """Bound on one reply of the embedded engine; a server has `endpoint.timeout_s`."""
    max_reply_tokens: PositiveInt = 1024
    temperature: float = Field(default=0.0, ge=0.0)
    max_issue_chars: PositiveInt = 8_000
    max_patch_chars: PositiveInt = 60_000
    """Longer patches are cut; accepting a cut patch is a suspicious finding."""
    max_len_tokens: PositiveInt = 32_768
    """Longest request plus reply that the embedded engine keeps."""

    @model_validator(mode="after")
    def _is_one_judge(self) -> Self:
        if self.model and self.endpoint.base_url:
            raise ValueError(f"model={self.model!r} and endpoint.base_url={self.endpoint.base_url!r}; set one of them")
        fields = type(self).model_fields
        idle = [name for name in ("timeout_s", "max_len_tokens") if getattr(self, name) != fields[name].default]
        if self.endpoint.base_url and idle:
            raise ValueError(
                f"{' and '.join(idle)} bound the embedded engine, got a judge behind {self.endpoint.base_url}; leave "
                "out what has no effect (endpoint.timeout_s bounds a reply, the server its context)"
            )
        return self


class GradingConfig(Record):
    """Grading of a submission."""

    max_attempts: int = 3
    """Fresh sandboxes tried before a verdict is *invalid*."""
    is_cold: bool = False
    """Start a new interpreter for every run (final evaluation and regrading)."""
    num_canaries: int = Field(3, ge=0)
    """Canary tests mixed into each run: known to fail, pass, error and so on; 0: none."""
    is_differential: bool = True
    """Decide a suspicious pass by a run without the repair."""
    is_protected_restored: bool = True
    """Restore tests and configuration from the pinned tree. False: the agent's versions decide."""
    is_inspected: bool = True
    """Run the exploit detectors on the submission. False: no verdict is *exploited*."""
    is_replayed: bool = True
    """Replay the recorded calls of the tests on each passed submission, in a process without tests (replay judge)."""
    stops_at_failure: bool = True
    """End a run of signed tests after the first required one that does not pass; later ones count as *missing*. Tasks
    with an official verdict of their own run all. False: run all, for partial credit or to read every result."""
    is_cached: bool = True
    """Grade equal patches of one task once (training only; cold grading never reads the cache)."""
    judge: JudgeConfig = JudgeConfig()
    """Judge of passed patches. Off as in paper A's simplified pipeline; its full pipeline has it on."""

    @property
    def disabled_gates(self) -> tuple[str, ...]:
        """Exploit gates that are off, as named in every verdict; empty by default.

        Turn gates off to study what a policy learns without them (docs/howto/exploit-study.md).
        """
        gates = {
            "protected_files": self.is_protected_restored,
            "detectors": self.is_inspected,
            "canaries": self.num_canaries > 0,
            "differential": self.is_differential,
            "replay": self.is_replayed,
        }
        return tuple(name for name, is_on in gates.items() if not is_on)
