"""Part of source `breakages`: builds of Java and of npm that one edit breaks, with one check and one gold state.

Runs the check of a package with one edit after the other. Makes certified tasks of those with which tests of the check
fail in every run. Guarantees: the edits of one package share its gold runs (`verify` shares nothing).
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from repairgym.errors import TaskError
from repairgym.records import Environment, Task, TestOutcome, TestRequest, TestRun
from repairgym.sandbox.base import SandboxSpec
from repairgym.tasks.build.assembly import Bug, Visibility, choose_visible, first_line, read_text, sdist_provenance
from repairgym.tasks.build.validation import Evidence, run_fresh, run_times
from repairgym.tasks.layers.catalogue import Package
from repairgym.tasks.mutation.settings_operators import SettingsEdit
from repairgym.tasks.sources.base import BuildContext, Drop, SourceResult
from repairgym.tasks.sources.build_checks import build_request, try_edits

_ERROR = re.compile(r"^\w*Error: .*", re.MULTILINE)
_ENDED = "the process of its file ended"
"""Message of tests whose process could not start."""


@dataclass(frozen=True)
class EditedBuild:
    """The edits of one package, tried in one environment."""

    package: Package
    """With the runner of the check."""
    context: BuildContext
    environment: Environment
    spec: SandboxSpec
    """The package with the check of its build."""
    pinned_files: dict[str, str]
    check: str
    """Test file of the check."""
    language: str
    gold: Mapping[str, str] = field(default_factory=dict)
    """Files over the tree without which the package itself does not work."""
    labels: Mapping[str, str] = field(default_factory=dict)
    gold_runs: list[TestRun] = field(default_factory=list)
    """Builds of the package itself (`check_gold`)."""

    def edits(self) -> list[SettingsEdit]:
        """Return the edits to try, in their order."""
        raise NotImplementedError

    def visibility(self, failing: tuple[str, ...], passing: tuple[str, ...], run: TestRun) -> Visibility:
        """Return the tests that the agent sees; ``run`` is one with the edit."""
        return choose_visible(failing, passing, run)

    def finished(self, bug: Bug, message: str) -> Task:
        """Return the task of ``bug``, which fails with ``message``: with its issue, deadlines and steps."""
        raise NotImplementedError

    async def check_gold(self) -> Drop | None:
        """Make the gold runs; return the reason of a drop if a test of theirs does not pass."""
        num_runs = self.context.config.num_certificate_runs
        spec = self.spec.model_copy(update={"files": dict(self.gold)})
        self.gold_runs.extend(await run_times(self.context.backend, spec, self._request(), num_runs))
        if self.test_ids and all(run.passes(self.test_ids) for run in self.gold_runs):
            return None
        return Drop("suite_fails", f"{self.package.name}\n{self.gold_runs[0].output_tail}")

    @property
    def test_ids(self) -> tuple[str, ...]:
        """Tests of the check that run on the package itself."""
        first = self.gold_runs[0]
        return tuple(i for i in first.results if "::" in i and first.outcome(i) is not TestOutcome.SKIPPED)

    def _request(self, test_ids: tuple[str, ...] = ()) -> TestRequest:
        """Return the request for ``test_ids``; without any for the whole check."""
        request = build_request(self.package, self.context, self.check)
        return request.model_copy(update={"test_ids": test_ids or request.test_ids})

    async def try_edit(self, edit: SettingsEdit) -> Task | Drop:
        """Return the task of an edit, or the reason of its drop; `check_gold` ran before."""
        broken = self.spec.model_copy(update={"files": {edit.path: edit.text}})
        test_ids, told = self.test_ids, f"{edit.path} {edit.recipe}"
        request = self._request(test_ids)  # by name: each has a result where an edit stops the runner itself
        first = await run_fresh(self.context.backend, broken, request)
        if first.is_timed_out:
            return Drop("timed_out", f"{told}\n{first.output_tail}")
        if first.passes(test_ids):
            return Drop("survived", f"{told}\n{first.output_tail}")
        num_more = self.context.config.num_certificate_runs - 1
        more = await run_times(self.context.backend, broken, request, num_more)
        evidence = Evidence([first, *more], self.gold_runs)
        failing, passing, _ = evidence.split_tests(test_ids)
        if not failing:
            return Drop("unstable", f"{told}\n{first.output_tail}")
        try:
            return self._assemble(edit, evidence, failing, passing)
        except TaskError as error:
            return Drop("test_not_cuttable", str(error))

    def _assemble(
        self, edit: SettingsEdit, evidence: Evidence, failing: tuple[str, ...], passing: tuple[str, ...]
    ) -> Task:
        package = self.package
        plain = self.context.store.tree(package.sdist())
        visibility = self.visibility(failing, passing, evidence.empty[0])
        labels = {"operator": edit.operator, "error_class": edit.error_class, "language": self.language}
        bug = Bug(
            project=package,
            source="breakages",
            provenance=sdist_provenance(package, package.version, "", f"{edit.path} {edit.recipe}", plain),
            tree=self.spec.tree,
            base_tree=self.spec.tree.name,
            environment=self.environment,
            broken={edit.path: edit.text},
            gold={edit.path: self.gold.get(edit.path) or read_text(self.spec.tree / edit.path)},
            fail_to_pass=failing,
            pass_to_pass=passing,
            visibility=visibility,
            certificate=evidence.certificate(failing, passing),
            labels={**labels, **self.labels, "difficulty": "1"},
            pinned_files=self.pinned_files,
        )
        run = evidence.empty[0]
        message = run.results[visibility.reported or failing[0]].message.removeprefix("AssertionError: ")
        errors = _ERROR.findall(run.output_tail) if message.startswith(_ENDED) else ()
        return self.finished(bug, first_line(errors[0] if errors else message).replace("/testbed/", ""))


async def make_edited_builds(run: EditedBuild | Drop) -> SourceResult:
    """Return the tasks of the edits of ``run``, or the reason why there are none."""
    result = SourceResult()
    if isinstance(run, Drop):
        result.add(run)
    elif drop := await run.check_gold():
        result.add(drop)
    else:
        await try_edits(run.edits(), run.try_edit, run.context, result)
    return result
