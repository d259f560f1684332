"""Descriptions of stored tasks, made again: real bugs get the texts and labels that a build of this version gives.

Reads tasks, the pinned trees of those of `releases` and `history`, the clones of the latter and an issue dump. Makes
the described tasks; the repairs, the tests and the certificates stay. One run of the broken code per task brings the
messages of its failures, two more prove what its issue may tell. Synthetic bugs are told at another level of
localization, where asked for. Guarantees: other tasks only lose the text of one run from their issues.
"""

import re
from collections import defaultdict
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from pathlib import Path

from repairgym.config.sandbox import SandboxConfig
from repairgym.config.tasks import Localization
from repairgym.errors import TaskError
from repairgym.records import Task
from repairgym.sandbox.base import SandboxBackend
from repairgym.sandbox.probe import create_backend
from repairgym.tasks.build.concurrency import ordered_map
from repairgym.tasks.build.validation import graded_files, pinned_tree, run_fresh, task_layers, task_request
from repairgym.tasks.issues.commit_texts import CommitTexts, Issue, commit_text
from repairgym.tasks.issues.describing import Failure, Report, assigned_entries, describe, failures_of
from repairgym.tasks.issues.localized import retold
from repairgym.tasks.issues.proving import prove_task
from repairgym.tasks.issues.run_text import without_run_text
from repairgym.tasks.issues.statement import Proof
from repairgym.tasks.layers.catalogue import CHANGELOGS
from repairgym.tasks.layers.repositories import GitRepository
from repairgym.tasks.layers.store import LayerStore

_REVERTED = re.compile(r"commit ([0-9a-f]+) reverted")


@dataclass(frozen=True)
class Describer:
    """Settings and sources of descriptions."""

    store: LayerStore
    config: SandboxConfig = field(default_factory=SandboxConfig)
    num_concurrent: int = 2
    issues: Mapping[str, Issue] = field(default_factory=dict)
    """Issues of the repositories, by number."""
    localization: Localization | None = None
    """Place that issues of synthetic bugs are to tell; None: they stay."""
    described: Mapping[str, Task] = field(default_factory=dict)
    """Tasks that an interrupted run described, by id; none of them runs again."""

    def told(self, tasks: Sequence[Task], tree: Path) -> list[tuple[str, str]]:
        """Return the text about each of ``tasks``, which are of one pair of releases or one commit, and its source."""
        first = tasks[0]
        if first.source == "releases":
            return [(entry, "changelog") for entry in assigned_entries(tasks, tree)]
        origin = first.provenance
        clone = GitRepository.open(origin.repository, self.store, origin.subdirectory)
        commit = next(iter(clone.commits(_told_commit(first))))
        change = CommitTexts(commit, commit.paths, CHANGELOGS)
        return [commit_text(change, clone, task, tree, self.issues) for task in tasks]


async def describe_again(tasks: Sequence[Task], describer: Describer) -> AsyncGenerator[Task, None]:
    """Yield ``tasks`` with new descriptions, pair by pair of releases, commit by commit.

    Raises:
        SandboxError: the sandbox could not do its work.
        IndexUnavailableError: a layer is missing and no index answers.
        TaskError: a tree is not the one that a task was made from.
    """
    pairs = defaultdict[tuple[str, ...], list[Task]](list)
    synthetic: list[Task] = []
    for task in tasks:
        origin = task.provenance
        if done := describer.described.get(task.id):
            yield done
        if task.source in ("releases", "history"):
            pairs[origin.package, origin.base_version, origin.version, _told_commit(task)].append(task)
        elif done:
            continue
        elif task.source == "mutations" and describer.localization:
            synthetic.append(task)
        else:
            yield task.model_copy(update={"issue": without_run_text(task.issue)})
    store, backend = describer.store, create_backend(describer.config)

    async def failures(task: Task) -> dict[str, Failure]:
        return await _failures(task, store, backend)

    async def evidence(task: Task) -> tuple[dict[str, Failure], dict[str, Proof]]:
        return await failures(task), await prove_task(task, pinned_tree(task, store), store, backend)

    try:
        async with aclosing(ordered_map(failures, synthetic, describer.num_concurrent)) as failed:
            async for task, messages in failed:
                yield retold(task, messages, describer.localization or "function", pinned_tree(task, store))
        for pair in pairs.values():
            if not (left := [task for task in pair if task.id not in describer.described]):
                continue
            # What the changelog tells is assigned to all fixes of a pair together.
            tree = pinned_tree(pair[0], store)
            told = {task.id: text for task, text in zip(pair, describer.told(pair, tree), strict=True)}
            async with aclosing(ordered_map(evidence, left, describer.num_concurrent)) as proven:
                async for task, (messages, proofs) in proven:
                    yield describe(task, tree, Report(*told[task.id], messages, proofs))
    finally:
        await backend.close()


def _told_commit(task: Task) -> str:
    """Return the commit whose text tells about ``task``: of bugs in the newest commit the one that was reverted."""
    if task.labels.get("base") != "newest":
        return task.provenance.commit
    match = _REVERTED.fullmatch(task.provenance.recipe)
    if match is None:
        raise TaskError(f"{task.id} was made from the newest commit, and its recipe names no reverted commit")
    return match[1]


async def _failures(task: Task, store: LayerStore, backend: SandboxBackend) -> dict[str, Failure]:
    """Return each failure of ``task`` on the broken code."""
    spec = task_layers(task, store).spec(graded_files(task))
    run = await run_fresh(backend, spec, task_request(task, task.fail_to_pass))
    return failures_of(run, task.fail_to_pass)
