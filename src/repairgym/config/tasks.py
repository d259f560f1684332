"""What a task build makes: sources, packages, how many tasks, and the bounds of each."""

from __future__ import annotations

from pydantic import Field

from repairgym.config.sandbox import LayersConfig, SandboxConfig
from repairgym.records import Record, SourceKind, Split


class SplitLimits(Record):
    """How many mutation tasks each split holds at most; a build stops when they are met."""

    train: int = Field(700, ge=0)
    validation: int = Field(120, ge=0)
    test: int = Field(260, ge=0)

    def of(self, split: Split) -> int:
        """The bound of ``split``."""
        return {"train": self.train, "validation": self.validation, "test": self.test}[split]


class MutationConfig(Record):
    """Bounds of the `mutations` source."""

    num_per_package: int = Field(60, ge=1)
    num_per_function: int = Field(4, ge=1)
    num_tries_per_function: int = Field(12, ge=1)
    """Mutants run per function at most."""
    min_function_lines: int = Field(3, ge=1)
    """Lines without the docstring."""
    max_function_lines: int = Field(30, ge=1)
    min_edits: int = Field(4, ge=1)
    """Edits that the operators can make in a function; fewer leave nothing to search."""
    max_file_bytes: int = Field(64_000, ge=1)
    """Larger modules are left alone, larger test files are not cut: tasks carry the text of both."""
    num_tests: int = Field(12, ge=2)
    """Covering tests run per mutant, the most specific of each test function first."""
    max_test_s: float = Field(0.2, gt=0)
    """Slower tests are skipped."""
    num_passing_kept: int = Field(20, ge=1)
    """Passing tests that a task keeps."""
    has_free_operators: bool = False
    """Also operators whose edits are free text (wrong variable, swapped arguments, removed call or branch, exception
    type, return value, default argument, loop bound); False keeps to the closed vocabulary that a small policy can
    write."""
    two_edit_share: float = Field(0.15, ge=0, le=1)
    """Share of candidates that hold two edits in one function (labels: difficulty 2)."""


class PairConfig(Record):
    """Bounds of every source that compares two states of a project."""

    max_hunks: int = Field(200, ge=1)
    """Pairs with more source hunks are skipped: rewrites, where one fix cannot be told from another."""
    ablation_timeout_s: float = Field(12.0, gt=0)
    """Bound on one run of the suite with a hunk taken back, which may leave endless loops."""
    num_passing_kept: int = Field(20, ge=1)
    """Passing tests that a task keeps."""
    num_baseline_runs: int = Field(3, ge=1)
    """Runs of the fixed state whose agreement makes a test stable."""


class ReleaseConfig(PairConfig):
    """Bounds of the `releases` source."""

    splits: tuple[Split, ...] = ("train", "validation", "test")
    """Packages of these splits give release pairs."""
    num_pairs: int = Field(8, ge=1)
    """Pairs per package, the newest first: each costs several runs of the whole suite."""
    num_per_pair: int = Field(8, ge=1)


class HistoryConfig(PairConfig):
    """Bounds of the `history` source."""

    num_commits: int = Field(200, ge=1)
    """Candidate commits per repository, the newest first."""
    num_commits_per_unit: int = Field(10, ge=1)
    """Candidates that are finished or lost together when a build is killed."""
    max_files: int = Field(7, ge=1)
    """Source files of a fix (paper B, section 4.1: at most 7 files)."""
    max_lines: int = Field(500, ge=1)
    """Changed source lines of a fix (paper B, section 4.1: fewer than 500)."""
    is_lock_dated: bool = True
    """Lock dependencies at the commit's date (needs an index with upload times); False: take the locks in `locks`."""
    is_any_message: bool = False
    """True: also commits whose message does not speak of a fix."""
    num_test_files: int = Field(4, ge=1)
    """Test files that run per commit: the changed ones and, up to this number, others."""


class BreakageConfig(Record):
    """Bounds of the `breakages` source."""

    num_per_package: int = Field(8, ge=1)
    num_tries: int = Field(24, ge=0)
    """Edits of settings run per package at most; 0: only what newer dependencies break (``aged`` in the catalogue)."""
    num_suspects: int = Field(3, ge=1)
    """Requirements that are tried in older versions for one failure, those that it names first."""
    num_older_series: int = Field(9, ge=1, le=9)
    """How many steps back over series of versions are tried (`SERIES_STEPS` in `tasks/sources/version_search.py`)."""
    num_pins: int = Field(4, ge=1)
    """Pins that may follow on one another, each from the failure that the one before it left."""
    num_runs: int = Field(40, ge=1)
    """Runs of the check that the search for one aged release may take."""
    max_build_s: float = Field(100.0, gt=0)
    """Bound on a build with its tests (paper A, section A3: initial builds under 100 s)."""


class TasksConfig(Record):
    """A build of tasks."""

    sources: tuple[SourceKind, ...] = ("mutations", "releases")
    packages: tuple[str, ...] = ()
    """Names from the catalogue; empty means all."""
    catalogue: str = ""
    """Path of another catalogue file; empty means the shipped one."""
    locks: str = ""
    """Folder of locks that ``repairgym tasks lock --output`` made; empty means the shipped ones."""
    splits: tuple[Split, ...] = ("train", "validation", "test")
    limits: SplitLimits = SplitLimits()
    mutations: MutationConfig = MutationConfig()
    releases: ReleaseConfig = ReleaseConfig()
    history: HistoryConfig = HistoryConfig()
    breakages: BreakageConfig = BreakageConfig()
    num_certificate_runs: int = Field(3, ge=1)
    """Empty runs and gold runs per task."""
    test_timeout_s: float = Field(1.5, gt=0)
    """Bound on one test while tasks are made; longer than any kept test by far. A machine under very heavy load may
    need more: a mutant whose tests do not end in time is dropped."""
    run_timeout_s: float = Field(3.0, gt=0)
    """Bound on one run of a task's tests while tasks are made."""
    suite_timeout_s: float = Field(120.0, gt=0)
    """Bound on one run of a package's selected test files."""
    seed: int = 0
    num_workers: int = Field(0, ge=0)
    """Processes, one package each; 0 means one per core."""
    num_concurrent: int = Field(2, ge=1)
    """Sandboxes that one process keeps running."""
    sandbox: SandboxConfig = SandboxConfig()
    layers: LayersConfig = LayersConfig()


class RebuildConfig(Record):
    """The tasks of a task manifest to rebuild."""

    packages: tuple[str, ...] = ()
    """Names; empty means all."""
    sources: tuple[SourceKind, ...] = ("mutations", "releases", "breakages")
    splits: tuple[Split, ...] = ("train", "validation", "test")
    layers: LayersConfig = LayersConfig()
