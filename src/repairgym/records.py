"""The records that stages exchange: frozen, schema-versioned, JSON-serializable. Layers above add behavior."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from repairgym.environment_records import AgentRun as AgentRun
from repairgym.environment_records import Environment as Environment
from repairgym.environment_records import ImageEnvironment as ImageEnvironment
from repairgym.environment_records import MeasuredUse as MeasuredUse
from repairgym.environment_records import Record as Record
from repairgym.environment_records import TestRunner as TestRunner
from repairgym.ledger import Parent, TokenLedger

SCHEMA_VERSION = 1


def storable(text: str) -> str:
    """Return ``text`` with lone surrogates, which no UTF-8 file can hold, as escapes."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


Storable = Annotated[str, AfterValidator(storable)]
"""Text that a submission may have written."""


class TestOutcome(StrEnum):
    """Outcome of one test over its setup, call and teardown phases."""

    __test__ = False

    PASSED = "passed"
    FAILED = "failed"
    ERROR = "error"
    SKIPPED = "skipped"
    MISSING = "missing"
    """Requested, but not collected or not finished before the run ended."""


class TestResult(Record):
    """Result of one test; ``line`` of its file is that from which a failure came (pytest, node; 0: unknown)."""

    outcome: TestOutcome
    message: Storable = ""
    """First line of the failure, e.g. ``assert 3 == 4``; empty when passed."""
    line: int = 0
    duration_s: float = 0.0
    """By the clock; of pytest without the waits for a processor of a phase that takes longer than 5 ms."""


class TestRequest(Record):
    """Tests to run, and their bounds."""

    test_ids: tuple[str, ...]
    """Ids as the runner has them (signed ones: node ids relative to the root); empty (pytest, unittest): all tests."""
    timeout_s: float = 60.0
    """Bound on the whole run; the process tree is killed when it is passed."""
    test_timeout_s: float = 10.0
    """Bound on one test."""
    source_paths: tuple[str, ...] = ("",)
    """Folders, relative to the repository root, put on ``sys.path``; ``""`` is the root."""
    plugins: tuple[str, ...] = ()
    """pytest plugins that the task needs; auto-loading is off."""
    traced_paths: tuple[str, ...] = ()
    """Source files (relative) whose executed functions are reported per test; empty means no tracing."""
    compiled_paths: tuple[str, ...] = ()
    imported_modules: tuple[str, ...] = ()
    """Python files (relative) and modules that the runner compiles and imports before the tests."""
    is_cold: bool = False
    """True: a new interpreter instead of a fork of the warm one."""
    runner: TestRunner = TestRunner()
    is_sealed: bool = False
    """True: bodies of tests leave the disk, and code of the tree sees each when it starts; this uses up the sandbox."""
    stop_ids: tuple[str, ...] = ()
    """End a signed run after the first of these that does not pass; unknown to the tests' process; empty: run all."""


class TestRun(Record):
    """Outcome of one :class:`TestRequest`."""

    results: dict[str, TestResult]
    """One entry per requested id (or per collected id when the whole suite ran)."""
    exit_status: int | None
    """pytest's exit status as the kernel reports it; None when killed."""
    signal: int | None = None
    is_timed_out: bool = False
    output_tail: str = ""
    duration_s: float = 0.0
    executed_functions: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    """test id -> sorted ``path::first_line`` of traced functions it executed, when tracing was on."""
    num_forged_records: int = 0
    """Records without a valid signature or out of order, passes without a test's end, raised phases told as passed."""
    is_finished: bool = True
    """True when pytest finished; False when the process ended in the middle of the run."""
    is_stopped: bool = False
    """True when the run was ended after the first of ``stop_ids`` that did not pass; tests after it are *missing*."""
    wrong_canaries: tuple[str, ...] = ()
    """Errors of the canary tests of the run; canaries are in no other field."""
    num_canaries: int = 0
    checks: dict[str, TestResult] = Field(default_factory=dict)
    """Results of ``compile`` and ``import``, where requested."""
    peak_memory_bytes: int | None = None
    """Like that of a command (``ExecResult``); None where the kernel does not report it."""
    disk_bytes: int | None = None
    """Bytes that the sandbox had written at the end; None where its writes have no file system of their own."""
    reached_for: tuple[tuple[str, str], ...] = ()
    """(what, path) of each access of code of the tree to a frame, the collector or tracing; sealed runs only."""

    def outcome(self, test_id: str) -> TestOutcome:
        """Return the outcome of ``test_id``; a test without a record is *missing*."""
        result = self.results.get(test_id)
        return result.outcome if result else TestOutcome.MISSING

    def passes(self, test_ids: tuple[str, ...]) -> bool:
        """True when each of ``test_ids`` passed."""
        return all(self.outcome(test_id) is TestOutcome.PASSED for test_id in test_ids)


class Provenance(Record):
    """Origin of a task."""

    package: str
    version: str
    """Version whose code is the gold state."""
    base_version: str = ""
    """Version that has the bug (release pairs)."""
    sdist_sha256: str = ""
    base_sdist_sha256: str = ""
    recipe: str = ""
    """Construction of the bug: operator and place of a mutation, hunk numbers of an ablation."""
    repository: str = ""
    """Path or URL of the git repository (`history`); then there is no sdist."""
    commit: str = ""
    """Full id of the commit whose code is the gold state."""
    base_commit: str = ""
    """Full id of the commit that has the bug."""
    subdirectory: str = ""
    """Folder of the repository that is the project's root; empty: the whole repository."""
    licence: str = ""
    """License of the source by its metadata; empty: not stated."""


class Location(Record):
    """A place in the code that the report points to (paper A's cached localization)."""

    path: str
    name: str
    """Qualified name of the function."""
    first_line: int
    last_line: int


class ReplayStrength(Record):
    """Evidence of what the replay judge can tell about a task (docs/concepts/security.md)."""

    num_tests: int
    """Tests that decide the task."""
    num_scripts: int
    """Of these, tests whose calls of the package were recorded."""
    num_lost_steps: int
    """Steps of these tests that could not be recorded."""
    num_deciding_steps: int
    """Judged steps of `fail_to_pass` scripts on which the broken code differs from gold; 0: the judge cannot tell."""
    num_variants: int = 0
    """Variants of gold with one changed operator that were replayed."""
    num_variants_killed: int = 0
    """Variants that contradict gold on a judged step."""
    num_deciding_inputs: int | None = None
    """Inputs that no test has, on which the broken code differs from gold; None: not counted."""

    @property
    def is_thin(self) -> bool:
        """True where the replay judge cannot tell a repair from one for the tests only; False where nobody counted."""
        return self.num_deciding_inputs is not None and (not self.num_deciding_steps or self.num_deciding_inputs < 2)


class Accuracy(Record):
    """Counts of an audit: how a task's tests judge variants of its gold patch (`repairgym tasks audit`)."""

    num_wrong: int
    """Variants that a test, the package's suite or a differential test tells from gold."""
    num_accepted: int
    """Those of them that the task's own tests do not refute: false accepts."""
    num_unknown: int = 0
    """Variants that nothing told from gold: equivalent, or wrong where nobody looks; in no rate."""
    num_right: int = 0
    """Rewrites of the gold patch that keep its behaviour."""
    num_rejected: int = 0
    """Those of them that the task's own tests refute: false rejects."""


class Certificate(Record):
    """Proof that a task is valid: the empty patch fails and the gold patch passes, in every run."""

    num_empty_runs: int
    num_empty_failed: int
    num_gold_runs: int
    num_gold_passed: int
    unstable_tests: tuple[str, ...] = ()
    """Tests whose outcome differed between equal runs; they are in neither test list."""
    empty_duration_s: float = 0.0
    gold_duration_s: float = 0.0
    tool_versions: dict[str, str] = Field(default_factory=dict)
    replay: ReplayStrength | None = None
    accuracy: Accuracy | None = None
    passed_before: tuple[str, ...] | None = None
    """Imported tasks: tests that the record lists as failing and that pass without the repair."""
    undecided: tuple[str, ...] | None = None
    """Imported tasks: tests of the record without a certified outcome here: unstable, failing, or under another name.
    None, here, above and below: not measured, and absent from the JSON form, so that digests stay as they were."""
    use: MeasuredUse | None = None

    @model_serializer(mode="wrap")
    def _without_what_is_not_measured(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {name: value for name, value in serialize(self).items() if value is not None}

    @property
    def is_valid(self) -> bool:
        """True when every empty run failed and every gold run passed."""
        has_failed = 0 < self.num_empty_runs == self.num_empty_failed
        return has_failed and 0 < self.num_gold_runs == self.num_gold_passed


ErrorClass = Literal[
    "dependency", "build_tool", "test", "configuration", "installation", "version", "environment", "permission", "other"
]
"""Classes of paper A's error table, in the order in which its rules are tried."""


class MainError(Record):
    """The root error of a log (paper A, full pipeline)."""

    error_class: ErrorClass
    message: Storable
    """Line of the log with the error, at most 300 characters."""
    path: Storable = ""
    line: int | None = None


class BuildStep(Record):
    """One step of a build; it fails unless it ends in time with exit status 0."""

    kind: Literal["install", "compile", "import", "lint", "types", "command"] = "command"
    command: tuple[str, ...] = ()
    """``{changed}``: the Python files that differ from the pinned tree (none: it is skipped). Empty (`compile` and
    `import` only): the runner does it in the process of the tests, before them."""
    modules: tuple[str, ...] = ()
    """Modules of an `import` step without a command."""
    timeout_s: float | None = None
    """None: the task's ``build_timeout_s``."""
    has_products: bool = False
    """The tests need what the command writes: they run in the sandbox of the build, not in a fresh one."""

    @model_validator(mode="after")
    def _has_what_it_runs(self) -> BuildStep:
        if not self.command and self.kind != "compile" and not (self.kind == "import" and self.modules):
            raise ValueError(f"build step {self.kind!r} needs a command (an import: or modules)")
        return self


Split = Literal["train", "validation", "test"]
SourceKind = Literal["releases", "mutations", "history", "breakages", "imported"]
UNDERSPECIFIED = "is_underspecified"
"""Label of a task whose hidden tests need what neither issue, visible tests nor tree tell."""
ChangeKind = Literal["fix", "feature", "refactoring", "test_only"]


class Task(Record):
    """One repair task: a pinned, broken tree, the report, and the tests that decide.

    The agent starts from the tree `base_tree` with `base_files` written over it. Hidden tests are absent from that
    tree (their functions are cut out of the test files); grading restores the test files of `base_tree`.
    """

    schema_version: int = SCHEMA_VERSION
    id: str
    source: SourceKind
    provenance: Provenance
    issue: str
    """Report as a user would write it, without the fix and without test source."""
    base_tree: str
    """Digest of the pinned tree in the layer store."""
    pinned_files: dict[str, str] = Field(default_factory=dict)
    """Relative path -> text of files that the pinned tree adds to those of its origin (the tests of a build)."""
    base_files: dict[str, str | None]
    """Relative path -> text that replaces the file for the agent (None: absent)."""
    environment: Environment
    source_paths: tuple[str, ...] = ("",)
    plugins: tuple[str, ...] = ()
    build: tuple[BuildStep, ...] = ()
    """Steps that run in this order before the tests; the first failure decides."""
    build_timeout_s: float = 120.0
    runner: TestRunner = TestRunner()
    visible_tests: tuple[str, ...]
    """Tests that the agent can run; one of them fails before the repair where several test functions do."""
    fail_to_pass: tuple[str, ...]
    """Fail on the empty patch, must pass after the repair; includes hidden tests."""
    pass_to_pass: tuple[str, ...]
    """Pass before and must pass after the repair."""
    test_paths: tuple[str, ...]
    """Files that grading restores from the pinned tree."""
    gold_files: dict[str, str | None]
    """Relative path -> text of the repaired file."""
    gold_patch: str
    """`gold_files` as a unified diff against the agent's base."""
    location: Location | None = None
    created_at: str = ""
    labels: dict[str, str] = Field(default_factory=dict)
    """``error_class``, ``difficulty``, ``operator``, ``package``."""
    split: Split
    certificate: Certificate
    test_timeout_s: float = 10.0
    timeout_s: float = 60.0


class VerdictKind(StrEnum):
    """Only *passed* and *failed* enter group arithmetic."""

    PASSED = "passed"
    FAILED = "failed"
    EXPLOITED = "exploited"
    INVALID = "invalid"


class Finding(Record):
    """Finding of an exploit detector."""

    detector: str
    severity: Literal["exploit", "suspicious", "note"]
    """``exploit`` turns a pass into *exploited*, ``suspicious`` is reported, a ``note`` names skipped parts."""
    path: Storable = ""
    line: int | None = None
    """First line of the place in the submitted file; None for the whole file or the trajectory."""
    detail: Storable
    """Evidence: the text and its effect."""


class StepResult(Record):
    """The verdict on one build step of a grading."""

    kind: str = "command"
    command: tuple[str, ...]
    exit_status: int | None
    """Exit status from the kernel (None: killed or too late); 0 or 1 for a step in the process of the tests."""
    duration_s: float
    log: Storable = ""
    is_timed_out: bool = False
    main_error: MainError | None = None

    @property
    def is_passed(self) -> bool:
        """True when the command ended by itself, in time, with exit status 0."""
        return self.exit_status == 0 and not self.is_timed_out


class Verdict(Record):
    """The grading of one patch."""

    kind: VerdictKind
    reason: Storable
    is_restored: bool | None = None
    """True when the source equals the original (ignoring white space); None when not compared."""
    build: tuple[StepResult, ...] = ()
    tests: dict[str, TestResult] = Field(default_factory=dict)
    is_stopped: bool = False
    """The run ended at the first required test that did not pass; tests that are *missing* were not run."""
    main_error: MainError | None = None
    findings: tuple[Finding, ...] = ()
    num_canaries: int = 0
    """Tests with known outcomes that were mixed into the run."""
    num_replayed_steps: int = 0
    """Steps on which the replay judge compared the submission with gold; 0: it did not judge."""
    is_cold: bool = False
    disabled_gates: tuple[str, ...] = ()
    """Gates that the grading ran without (`grading.disabled_gates`); such a verdict is weaker evidence."""
    duration_s: float = 0.0
    grader_version: str

    @property
    def is_valid(self) -> bool:
        """True when the verdict says something about the patch."""
        return self.kind is not VerdictKind.INVALID

    @property
    def reward(self) -> float:
        """1.0 when passed, else 0.0 (paper B, section 3.1).

        Raises:
            ValueError: the verdict is invalid; infrastructure failures have no reward.
        """
        if not self.is_valid:
            raise ValueError(f"an invalid verdict has no reward ({self.reason})")
        return 1.0 if self.kind is VerdictKind.PASSED else 0.0


class StopReason(StrEnum):
    """Reason for the end of an episode."""

    SUBMITTED = "submitted"
    TURN_LIMIT = "turn_limit"
    TOOL_CALL_LIMIT = "tool_call_limit"
    TOKEN_LIMIT = "token_limit"
    """The context is full."""
    OUTPUT_TOKEN_LIMIT = "output_token_limit"
    TIME_LIMIT = "time_limit"
    COST_LIMIT = "cost_limit"
    SEARCH_LIMIT = "search_limit"
    """A search stopped it between two turns, to look at it or because its budget is used; a branch can continue it."""
    LOOP = "loop"
    """The episode repeated itself, and the pipeline ends such episodes."""
    AGENT_FAILED = "agent_failed"
    """The program of an external agent ended with an error that no limit explains."""
    INFRASTRUCTURE = "infrastructure"


AttemptOutcome = Literal["passed", "same_error", "other_error", "unknown"]
"""Result of the build after an attempt; *unknown* without an outer loop."""


OVERLONG = (
    StopReason.TURN_LIMIT, StopReason.TOOL_CALL_LIMIT, StopReason.TOKEN_LIMIT, StopReason.OUTPUT_TOKEN_LIMIT,
    StopReason.TIME_LIMIT, StopReason.COST_LIMIT, StopReason.LOOP,
)  # fmt: skip
"""Episodes that a limit ended; each limit keeps its own count."""


class Attempt(Record):
    """One round of an outer loop (paper A, full pipeline): an error, a recommended past fix and the outcome."""

    error: MainError
    """Error to repair."""
    fix_id: str = ""
    """Recommended past fix; empty: none."""
    first_turn: int
    """Index of its first turn; it ends at the first turn of the next attempt."""
    stop_reason: StopReason
    outcome: AttemptOutcome


class Turn(Record):
    """One action and the observation that it led to."""

    action: str
    tool: str | None
    """Name of the tool, None when the action could not be parsed."""
    arguments: dict[str, Any] = Field(default_factory=dict)
    observation: str
    error: str = ""
    """Kind of error: ``format`` (environment-format error, masked by RFT), ``tool`` or empty."""
    action_span: tuple[int, int]
    """[start, end) of the action's tokens in the ledger."""
    state: str = ""
    """Digest of the state that the turn starts in (`agent/states.py`); empty: not recorded."""
    is_loop: bool = False
    """Action and observation equal those of the previous turns, often enough to make a loop."""
    generate_s: float = 0.0
    tool_s: float = 0.0
    wait_s: float = 0.0
    """Of both: waits for infrastructure, such as a place or the start of a sandbox; they count for no limit."""
    cost_usd: float = 0.0
    """Price of the answer; 0 for a local model, and for one without a price in ``endpoint.prices``."""


@dataclass(frozen=True)
class Trajectory:
    """One episode: turns, sampled tokens, end and verdict."""

    id: str
    task_id: str
    group_id: str
    pipeline: str
    policy_id: str
    sandbox_backend: str
    turns: tuple[Turn, ...]
    ledger: TokenLedger
    stop_reason: StopReason
    final_files: dict[str, str | None]
    """Relative path -> text of each file the agent changed (None: deleted)."""
    final_patch: str
    """`final_files` as a unified diff against the agent's base."""
    verdict: Verdict
    seed: int
    attempts: tuple[Attempt, ...] = ()
    """Attempts, in pipelines that record them (paper A)."""
    durations_s: dict[str, float] = field(default_factory=dict)
    """Stage -> seconds: ``queue``, ``prefill``, ``decode``, ``generate``, ``tool``, ``grade``, ``other``."""
    agent_run: AgentRun | None = None
    """Of episodes of an external agent."""
    parent: Parent | None = None
    """Of a branch, in whose ledger the parent's tokens are context: the parent owns them."""
    schema_version: int = SCHEMA_VERSION

    @property
    def cost_usd(self) -> float:
        """Price of its own answers; those of a parent are the parent's."""
        return sum(turn.cost_usd for turn in self.turns[self.parent.num_turns if self.parent else 0 :])
