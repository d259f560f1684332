"""Task builds: sources, packages, numbers of tasks and bounds."""

from pydantic import Field

from repairgym.config.sandbox import LayersConfig, SandboxConfig
from repairgym.records import Record, SourceKind, Split


class SplitLimits(Record):
    """Largest number of mutation tasks per split; a build stops when they are reached."""

    train: int = Field(700, ge=0)
    validation: int = Field(120, ge=0)
    test: int = Field(260, ge=0)

    def of(self, split: Split) -> int:
        """Return the bound of ``split``."""
        return {"train": self.train, "validation": self.validation, "test": self.test}[split]


class MutationConfig(Record):
    """Bounds of the `mutations` source."""

    num_per_package: int = Field(60, ge=1)
    num_per_function: int = Field(4, ge=1)
    num_tries_per_function: int = Field(12, ge=1)
    """Most mutants run per function."""
    min_function_lines: int = Field(3, ge=1)
    """Least number of lines, without the docstring."""
    max_function_lines: int = Field(30, ge=1)
    min_edits: int = Field(4, ge=1)
    """Least number of edits that the operators can make in a function; fewer make the search trivial."""
    max_file_bytes: int = Field(64_000, ge=1)
    """Larger modules are skipped, larger test files are not cut, because tasks contain the text of both."""
    num_tests: int = Field(12, ge=2)
    """Covering tests run per mutant, most specific first within each test function."""
    max_test_s: float = Field(0.2, gt=0)
    """Slower tests are skipped."""
    num_passing_kept: int = Field(20, ge=1)
    """Passing tests that a task keeps."""
    has_free_operators: bool = False
    """Also use operators whose edits are free text (wrong variable, swapped arguments, removed call or branch,
    exception type, return value, default argument, loop bound). False: only the closed vocabulary of small policies."""
    two_edit_share: float = Field(0.15, ge=0, le=1)
    """Share of candidates with two edits in one function (label: difficulty 2)."""


class PairConfig(Record):
    """Bounds of every source that compares two states of a project."""

    max_hunks: int = Field(200, ge=1)
    """Pairs with more source hunks are skipped as rewrites, whose fixes cannot be separated."""
    ablation_timeout_s: float = Field(12.0, gt=0)
    """Bound on one run of the suite with a hunk reverted, which may cause endless loops."""
    num_passing_kept: int = Field(20, ge=1)
    """Passing tests that a task keeps."""
    num_baseline_runs: int = Field(3, ge=1)
    """Runs of the fixed state whose agreement makes a test stable."""


class ReleaseConfig(PairConfig):
    """Bounds of the `releases` source."""

    splits: tuple[Split, ...] = ("train", "validation", "test")
    """Packages of these splits give release pairs."""
    num_pairs: int = Field(8, ge=1)
    """Pairs per package, newest first; each costs several runs of the whole suite."""
    num_per_pair: int = Field(8, ge=1)


class HistoryConfig(PairConfig):
    """Bounds of the `history` source."""

    num_commits: int = Field(200, ge=1)
    """Candidate commits per repository, newest first."""
    num_commits_per_unit: int = Field(10, ge=1)
    """Candidates per unit of work; a killed build loses at most the unfinished units."""
    max_files: int = Field(7, ge=1)
    """Source files of a fix (paper B, section 4.1: at most 7 files)."""
    max_lines: int = Field(500, ge=1)
    """Changed source lines of a fix (paper B, section 4.1: fewer than 500)."""
    is_lock_dated: bool = True
    """Lock dependencies at the commit's date (needs an index with upload times); False: use the locks in `locks`."""
    is_any_message: bool = False
    """True: also use commits whose message does not mention a fix."""
    num_test_files: int = Field(4, ge=1)
    """Test files that run per commit: the changed files and, up to this number, others."""


class BreakageConfig(Record):
    """Bounds of the `breakages` source."""

    num_per_package: int = Field(8, ge=1)
    num_tries: int = Field(24, ge=0)
    """Most settings edits run per package; 0: only breakages by newer dependencies (``aged`` in the catalogue)."""
    num_suspects: int = Field(3, ge=1)
    """Requirements tried in older versions for one failure, those named by it first."""
    num_older_series: int = Field(9, ge=1, le=9)
    """Steps back over series of versions (`SERIES_STEPS` in `tasks/sources/version_search.py`)."""
    num_pins: int = Field(4, ge=1)
    """Most pins in a chain, each derived from the failure that remains after the previous pin."""
    num_runs: int = Field(40, ge=1)
    """Most runs of the check in the search for one aged release."""
    max_build_s: float = Field(100.0, gt=0)
    """Bound on a build with its tests (paper A, section A3: initial builds under 100 s)."""


class TasksConfig(Record):
    """A build of tasks."""

    sources: tuple[SourceKind, ...] = ("mutations", "releases")
    packages: tuple[str, ...] = ()
    """Names from the catalogue; empty: all."""
    catalogue: str = ""
    """Path of another catalogue file; empty: the shipped file."""
    locks: str = ""
    """Folder of locks by ``repairgym tasks lock --output``; empty: the shipped locks."""
    splits: tuple[Split, ...] = ("train", "validation", "test")
    limits: SplitLimits = SplitLimits()
    mutations: MutationConfig = MutationConfig()
    releases: ReleaseConfig = ReleaseConfig()
    history: HistoryConfig = HistoryConfig()
    breakages: BreakageConfig = BreakageConfig()
    num_certificate_runs: int = Field(3, ge=1)
    """Empty runs and gold runs per task."""
    test_timeout_s: float = Field(1.5, gt=0)
    """Bound on one test while tasks are made, far longer than any kept test. Raise it on a heavily loaded machine:
    mutants whose tests do not end in time are dropped."""
    run_timeout_s: float = Field(3.0, gt=0)
    """Bound on one run of a task's tests while tasks are made."""
    suite_timeout_s: float = Field(120.0, gt=0)
    """Bound on one run of a package's selected test files."""
    seed: int = 0
    num_workers: int = Field(0, ge=0)
    """Processes, one package each; 0: one per core."""
    num_concurrent: int = Field(2, ge=1)
    """Concurrent sandboxes of one process."""
    sandbox: SandboxConfig = SandboxConfig()
    layers: LayersConfig = LayersConfig()


class RebuildConfig(Record):
    """The tasks of a task manifest to rebuild."""

    packages: tuple[str, ...] = ()
    """Names; empty: all."""
    sources: tuple[SourceKind, ...] = ("mutations", "releases", "breakages")
    splits: tuple[Split, ...] = ("train", "validation", "test")
    layers: LayersConfig = LayersConfig()
