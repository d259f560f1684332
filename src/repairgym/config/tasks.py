"""Task builds (sources, packages, numbers of tasks and bounds) and the filters of `repairgym tasks curate`.

Filters have the papers' values where a paper gives one. Paper B: arXiv 2508.03501, section 4.1 (data) and 4.3 (stage
2). Paper A: arXiv 2510.22075 (pinning, build time, splits).
"""

from pathlib import Path
from typing import Literal, Self

from pydantic import Field, PositiveFloat, model_validator

from repairgym.config.sandbox import LayersConfig, SandboxConfig
from repairgym.config.selection import Date
from repairgym.records import ChangeKind, Record, Split

MadeSource = Literal["releases", "mutations", "history", "breakages"]
Localization = Literal["function", "file", "symptom"]


class SplitLimits(Record):
    """Largest number of mutation tasks per split; a build stops when they are reached."""

    train: int = Field(700, ge=0)
    validation: int = Field(120, ge=0)
    test: int = Field(260, ge=0)

    def of(self, split: Split) -> int:
        """Return the bound of ``split``."""
        return int(getattr(self, split))


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
    """Also use operators whose edits are free text (wrong variable, swapped arguments, exception type, default
    argument, loop bound). False: only the closed vocabulary of small policies."""
    has_semantic_operators: bool = False
    """Also use operators that change the meaning (lost branch, call, copy, condition or argument, swapped statements or
    parameters, wrong key, field or default, boundary off by one): the repair often writes what is not there."""
    num_bugs: int = Field(1, ge=1, le=4)
    """Bugs per task, each in a function of its own. Tasks of several are made from as many that are certified alone."""
    localizations: tuple[Localization, ...] = Field(("function",), min_length=1)
    """Levels of which a task draws one: its issue tells the function, only its file, or only the symptom. The label
    ``localization`` has what the issue really tells: more, where every failure names the function."""
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
    kinds: tuple[ChangeKind, ...] = ("fix",)
    """Kinds of change that become tasks (`RULES` in `tasks/issues/kinds.py`); empty: all."""


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
    base: Literal["commit", "newest"] = "commit"
    """Repaired state of a task: the commit itself, or the commit at ``revision``, from which the fix is taken back
    where that applies; then one environment serves all commits."""
    is_any_message: bool = False
    """True: also use commits whose message does not mention a fix."""
    num_test_files: int = Field(4, ge=1)
    """Test files that run per commit: the changed files and, up to this number, others."""


class VersionSearchConfig(Record):
    """Bounds of the search for older versions that repair an aged release."""

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


class BreakageConfig(VersionSearchConfig):
    """Bounds of the `breakages` source."""

    num_per_package: int = Field(8, ge=1)
    num_tries: int = Field(24, ge=0)
    """Most settings edits run per package; 0: only breakages by newer dependencies (``aged`` in the catalogue)."""


class TasksConfig(Record):
    """A build of tasks."""

    sources: tuple[MadeSource, ...] = ("mutations", "releases")
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
    """Bound on one run of a task's tests while tasks are made. With node all bounds on tests are four times as long."""
    suite_timeout_s: float = Field(120.0, gt=0)
    """Bound on one run of a package's selected test files."""
    seed: int = 0
    num_workers: int = Field(0, ge=0)
    """Processes, one package each; 0: one per core."""
    num_concurrent: int = Field(2, ge=1)
    """Concurrent sandboxes of one process."""
    sandbox: SandboxConfig = SandboxConfig()
    layers: LayersConfig = LayersConfig()


class PlanConfig(Record):
    """Speed and bounds at which a plan follows what tasks taught."""

    rate: PositiveFloat = 2.0
    """Exponent of the multiplicative update: a cell whose tasks are more learnable than all by 0.5 gets e times its
    weight, before shrinkage."""
    shrinkage: PositiveFloat = 4.0
    """Number of tasks at which a mean counts half."""
    floor: float = Field(0.1, gt=0, le=1)
    """Least weight of a cell, against 1 for one without evidence; its reciprocal is the largest."""
    max_edits: int = Field(3, ge=1, le=3)
    """Most edits of a planned bug."""


class AgedConfig(Record):
    """A scan of aged releases with today's dependencies."""

    packages: tuple[str, ...] = ()
    """Names on the index; required."""
    num_releases: int = Field(4, ge=1)
    """Most releases per package, spread over the last ones of each series (major and minor version)."""
    split: Split = "train"
    """Split of all tasks; a package of the shipped catalogue keeps its own."""
    search: VersionSearchConfig = VersionSearchConfig()
    num_certificate_runs: int = Field(3, ge=1)
    """Empty runs and gold runs per task."""
    num_workers: int = Field(0, ge=0)
    """Processes, one release each; 0: one per core."""
    sandbox: SandboxConfig = SandboxConfig()
    layers: LayersConfig = LayersConfig()

    def as_build(self, catalogue: Path) -> TasksConfig:
        """Return the build of the aged releases in ``catalogue``."""
        shared = {name: getattr(self, name) for name in ("num_certificate_runs", "num_workers", "sandbox", "layers")}
        breakages = BreakageConfig(num_tries=0, **self.search.model_dump())
        return TasksConfig(sources=("breakages",), catalogue=str(catalogue), breakages=breakages, **shared)


class FreshConfig(Record):
    """A set of tasks from the newest releases."""

    packages: tuple[str, ...] = ()
    """Names from the catalogue; empty: all."""
    catalogue: str = "catalog/packages.toml"
    """Catalogue file with the packages; their versions are not used."""
    until: Date = ""
    """Last day; empty: today."""
    releases: ReleaseConfig = ReleaseConfig()
    num_certificate_runs: int = Field(3, ge=1)
    """Empty runs and gold runs per task."""
    test_timeout_s: float = Field(1.5, gt=0)
    """Bound on one test while tasks are made."""
    run_timeout_s: float = Field(3.0, gt=0)
    """Bound on one run of a task's tests while tasks are made."""
    suite_timeout_s: float = Field(120.0, gt=0)
    """Bound on one run of a package's selected test files."""
    num_workers: int = Field(0, ge=0)
    """Processes, one pair of releases each; 0: one per core."""
    sandbox: SandboxConfig = SandboxConfig()
    layers: LayersConfig = LayersConfig()

    def as_build(self, catalogue: Path, locks: Path) -> TasksConfig:
        """Return the build of the pairs in ``catalogue``."""
        shared = {name: getattr(self, name) for name in FreshConfig.model_fields if name in TasksConfig.model_fields}
        own = {"sources": ("releases",), "packages": (), "catalogue": str(catalogue), "locks": str(locks)}
        return TasksConfig(**{**shared, **own})


class ImportedConfig(Record):
    """A build of imported tasks."""

    repos: str = ""
    """Folder of local git clones (``OWNER/NAME``, ``OWNER__NAME`` or ``NAME``); required without `images`."""
    images: str = ""
    """Image of each record, which is its environment and holds its repository: a name with the host of a registry, an
    archive or an OCI folder, in which ``{image}`` stands for the record's own name of it, ``{id}`` for the id, and
    ``{docker_id}`` for the id as SWE-bench's images spell it. Empty: environments are built."""
    image_environment: str = ""
    """Folder of the image whose ``bin`` has the Python of the tests; ``/``: its own PATH. Empty: `VIRTUAL_ENV` or
    `CONDA_PREFIX` of the image, else SWE-bench's conda environment, else its own PATH."""
    image_repository: str = ""
    """Folder of the image with the repository; empty: ``/testbed`` where it exists, else the image's working folder."""
    environments: str = ""
    """Folder of conda environment files: ``ID/environment.yml``, ``ID.yml``, ``OWNER__NAME/NUMBER/environment.yml``."""
    specs: str = ""
    """Python file with ``MAP_REPO_VERSION_TO_SPECS...``: ``harness/constants/python.py`` of your `swebench`."""
    ids: tuple[str, ...] = ()
    """Records to build; empty: all."""
    limit: int = Field(0, ge=0)
    """Most records, drawn by `seed`; 0: all."""
    seed: int = 0
    uploaded_before: str = ""
    """Date or RFC 3339 time: later uploads are ignored, except for exact requirements. Empty: the record's own date,
    and no bound for environment files, which have none."""
    is_neighbour_allowed: bool = False
    """Use the nearest newer Python where the wanted minor version is not on this machine; such tasks have a label."""
    is_log_allowed: bool = False
    """Read the log of the recipe's test command where signed runs certify nothing; such tasks have a label, and their
    verdicts carry `unsigned_results`."""
    num_certificate_runs: int = Field(3, ge=1)
    """Empty runs and gold runs per task."""
    test_timeout_s: float = Field(60.0, gt=0)
    """Bound on one test while tasks are certified."""
    run_timeout_s: float = Field(600.0, gt=0)
    """Bound on one run of a record's test files."""
    build_timeout_s: float = Field(600.0, gt=0)
    """Bound on one command of an installation."""
    num_workers: int = Field(0, ge=0)
    """Records at once; 0: one per core."""
    sandbox: SandboxConfig = SandboxConfig()
    layers: LayersConfig = LayersConfig()


class RebuildConfig(Record):
    """The tasks of a task manifest to rebuild."""

    packages: tuple[str, ...] = ()
    """Names; empty: all."""
    sources: tuple[MadeSource, ...] = ("mutations", "releases", "breakages")
    splits: tuple[Split, ...] = ("train", "validation", "test")
    num_workers: int = Field(0, ge=0)
    """Processes, one package each; 0: one per core."""
    layers: LayersConfig = LayersConfig()


FilterName = Literal[
    "missing_names", "unmentioned_names", "size", "quality", "flakiness", "build_time", "trivial", "solve_rate",
    "duplicates", "contamination", "answer_in_sight", "thin_verdict",
]  # fmt: skip


class MissingNamesConfig(Record):
    """Failures by a name that does not exist: the repair would have to guess identifiers (paper B, section 4.1)."""

    exceptions: tuple[str, ...] = ("ImportError", "ModuleNotFoundError", "AttributeError")
    """Paper B names ImportError and AttributeError; ModuleNotFoundError is a subclass of ImportError."""
    max_share: float = Field(0.0, ge=0, lt=1)
    """Largest share of the failing tests that may fail with one of these."""
    is_limited_to_new_names: bool = False
    """True: count a failure only when the repair defines or imports the missing name (our choice: in a synthetic bug an
    AttributeError is mostly a wrong value, and no name has to be guessed)."""


class SizeConfig(Record):
    """Size of the gold patch (paper B, section 4.1)."""

    max_files: int = Field(7, ge=1)
    num_lines_below: int = Field(500, ge=1)
    """Added and removed lines together must be fewer than this."""


class QualityConfig(Record):
    """Scores by a language model, where the record has them (paper B, section 4.1)."""

    score_below: float = 3.0
    """Paper B leaves out the score 3.0: unclear issue, too complex, or a flawed patch of tests."""
    names: tuple[str, ...] = ("issue_text_score", "difficulty_score", "test_score")


class FlakinessConfig(Record):
    """Tests whose outcome differs between equal runs (paper B, section 4.1)."""

    min_runs: int = Field(50, ge=1)
    """Paper B repeats 50 times; fewer runs without a difference prove nothing and count as not measured."""
    max_unstable_tests: int = Field(0, ge=0)


class BuildTimeConfig(Record):
    """Duration of the first build, tests included (paper A: initial builds below 100 s)."""

    max_build_s: float = Field(100.0, gt=0)


class SolveRateConfig(Record):
    """Window of the solve rate (paper B, section 4.3: stage 2 drops 2/3 and more, and unsolved tasks)."""

    below: float = Field(2 / 3, gt=0, le=1)
    above: float = Field(0.0, ge=0, lt=1)
    min_samples: int = Field(10, ge=1)
    """Least number of valid samples for a rate (paper B, Table 3: 10 per problem)."""


class DuplicatesConfig(Record):
    """Patches that change nearly the same lines; no paper gives a value."""

    max_similarity: float = Field(0.9, gt=0, le=1)
    """Jaccard index of the lines of two gold patches, context included; above it the later task is a duplicate."""


class ContaminationConfig(Record):
    """Training tasks that reveal held-out ones; held-out tasks always stay."""

    by_package: bool = True
    """No package in training and in a held-out split (our splits; False where splits are by time or function)."""
    by_time: bool = False
    """No training task newer than the oldest held-out one (paper A: splits in time order)."""
    by_patch: bool = True
    """No training task whose gold patch is more similar than `duplicates.max_similarity` to a held-out one."""


class SplitConfig(Record):
    """Assignment of tasks to splits, before the filters."""

    by: Literal["keep", "package", "function", "time"] = "keep"
    """``keep``: unchanged. ``package``: by whole packages. ``function``: all bugs of a function together, for a single
    package (set ``contamination.by_package=false``). ``time``: the oldest tasks train (paper A)."""
    shares: tuple[float, float, float] = (0.8, 0.1, 0.1)
    """Train, validation, test (paper A: 80/10/10)."""
    seed: int = 0
    """Seed of the order of packages or functions."""

    @model_validator(mode="after")
    def _shares_are_whole(self) -> Self:
        if min(self.shares) < 0 or abs(sum(self.shares) - 1) > 1e-6:
            raise ValueError(f"shares are {self.shares}, expected three numbers from 0 that add up to 1")
        return self


class CurationConfig(Record):
    """A curation of a task folder."""

    filters: tuple[FilterName, ...] = (
        "missing_names", "size", "quality", "flakiness", "build_time", "trivial", "answer_in_sight", "thin_verdict",
        "duplicates", "contamination",
    )  # fmt: skip
    """Filters in order; each sees the tasks that the earlier ones kept."""
    is_unmeasured_kept: bool = True
    """Keep, and count, tasks that a filter cannot judge (no score, too few runs)."""
    split: SplitConfig = SplitConfig()
    missing_names: MissingNamesConfig = MissingNamesConfig()
    size: SizeConfig = SizeConfig()
    quality: QualityConfig = QualityConfig()
    flakiness: FlakinessConfig = FlakinessConfig()
    build_time: BuildTimeConfig = BuildTimeConfig()
    solve_rate: SolveRateConfig = SolveRateConfig()
    duplicates: DuplicatesConfig = DuplicatesConfig()
    contamination: ContaminationConfig = ContaminationConfig()

    @model_validator(mode="after")
    def _filters_are_once(self) -> Self:
        twice = sorted({name for name in self.filters if self.filters.count(name) > 1})
        if twice:
            raise ValueError(f"filters names {', '.join(twice)} twice")
        return self
