"""The audit of one foreign task folder: what can be read in it, and what its verifier rewards.

Reads a Harbor folder. Makes an `AuditReport`. The reference solution decides whether the folder can be judged here:
where it fails for want of a program, a package or an image, only the defects that were read are reported, with the
reason. Guarantees: nothing of the folder runs outside of a sandbox or has a network, and nothing writes to the folder.
"""

import re
from collections.abc import Iterator
from pathlib import Path

from repairgym.sandbox.base import SandboxBackend
from repairgym.tasks.audit.foreign.defects import KINDS, AuditReport, Defect, ProbeRun
from repairgym.tasks.audit.foreign.file_reading import named_paths, read_tests, read_visible
from repairgym.tasks.audit.foreign.harbor_folder import (
    SOLUTION_SCRIPT,
    HarborFolder,
    missing_image,
    read_harbor_folder,
)
from repairgym.tasks.audit.foreign.place import OWN, Outcome, Place, Probe, opened
from repairgym.tasks.audit.foreign.probes import attacks, forgeries, is_weak, late_forgery, wrong_variants
from repairgym.tasks.audit.foreign.shell_reading import read_scripts

_NUM_ORACLE_RUNS, _HASH_SEEDS = 3, ("1", "2", "3", "4")
_LEAST_TIMEOUT_S = 5.0
_NEEDS = re.compile(
    r"repairgym-needs: (\S+)|(?:line \d+: |sh: (?:\d+: )?)([\w.+-]+): (?:command )?not found"
    r"|No module named '?([\w.]+)|unrecognized arguments: (--ctrf)|env: .?([\w.+-]+).?: No such file"
)
_OFFLINE = re.compile(r"name resolution|Could not resolve|Name or service not known|Network is unreachable|URLError")
_NOTHING_RAN = re.compile(r"\bRan 0 tests|no tests ran|collected 0 items|NO TESTS RAN")
_REVERSED = f"""import pathlib
def pytest_collection_modifyitems(items):
    pathlib.Path("{OWN}/marks/reversed").touch()
    items.reverse()
"""


async def audit_foreign(path: Path, backend: SandboxBackend, environment: Path) -> AuditReport:
    """Audit the task folder ``path`` with the packages of ``environment`` (a layer with pytest)."""
    folder = read_harbor_folder(path)
    audit = _Audit(folder)
    audit.add(*read_scripts(folder), *read_tests(folder))
    audit.not_run = missing_image(folder)
    if not audit.not_run:
        async with opened(folder, backend, environment) as place:
            await audit.run(place)
    return AuditReport(
        path=str(path),
        defects=tuple(sorted(audit.defects.values(), key=lambda defect: list(KINDS).index(defect.kind))),
        not_run=f"cannot be run here: needs {audit.not_run}" if audit.not_run else "",
        runs=tuple(audit.runs),
    )


class _Audit:
    """Collects the defects of one folder; the first evidence of a kind stays."""

    def __init__(self, folder: HarborFolder) -> None:
        self._folder = folder
        self.defects: dict[str, Defect] = {}
        self.runs: list[ProbeRun] = []
        self.not_run = ""
        self._full = 1.0
        self._oracle: list[Outcome] = []
        self._paths = named_paths(folder)

    def add(self, *defects: Defect) -> None:
        """Add ``defects`` of new kinds."""
        for defect in defects:
            self.defects.setdefault(defect.kind, defect)

    async def run(self, place: Place) -> None:
        """Run the solution, then everything that must not be rewarded."""
        self.add(*read_visible(self._folder, place.initial, {}))
        has_solution = SOLUTION_SCRIPT in self._folder.solution
        if not has_solution:
            self.add(Defect(kind="no_solution", evidence="solution/solve.sh is not there"))
        elif not await self._solve(place):
            return
        self.add(*read_visible(self._folder, place.initial, place.solved))
        noop = await self._try(place, Probe("noop_rewarded", paths=self._paths), "nothing was changed")
        self._check_names([*self._oracle, noop])
        if "noop_rewarded" in self.defects:
            await self._check_always(place)
            return
        await self._attack(place)
        if has_solution and "solution_fails" not in self.defects:
            await self._spoil(place)

    async def _solve(self, place: Place) -> bool:
        """Run the solution often; return False when this machine lacks what it needs."""
        outcomes = self._oracle
        for _ in range(_NUM_ORACLE_RUNS):
            status = await place.solve()
            outcomes.append(await self._run(place, Probe("oracle", is_solved=True, paths=self._paths)))
        # Submissions that make the verifier wait forever cost no more than this.
        place.timeout_s = min(place.timeout_s, _LEAST_TIMEOUT_S + 3 * max(outcome.duration_s for outcome in outcomes))
        last = outcomes[-1]
        rewards = [outcome.reward.value or 0.0 for outcome in outcomes]
        output = place.log + last.output
        if max(rewards) < 1 and self._is_lacking(output):
            return False
        by_seed = await self._rewards_by_seed(place)
        rewards += by_seed.values()
        self._full = max([1.0, *rewards])
        if max(rewards) < 1:
            evidence = f"solve.sh ended with {status}, then {last.reward}: {_last(output)}"
            self.add(Defect(kind="solution_fails", evidence=evidence))
        nothing = _NOTHING_RAN.search(last.output)
        if nothing:
            self.add(Defect(kind="no_tests", evidence=f"the verifier says {nothing[0]!r}"))
        self.add(*self._ignored_errors(last))
        if len(set(rewards)) > 1:
            self.add(_flaky(rewards))
            await self._check_seeds(place, by_seed)
        elif max(rewards) >= 1:
            await self._check_order(place)
        return True

    def _is_lacking(self, output: str) -> bool:
        """Return True when the solution fails for want of a network, or of something that is not on this machine."""
        if _OFFLINE.search(output):
            evidence = f"the solution fails without a network: {_last(output)}"
            self.add(Defect(kind="needs_network", evidence=evidence))
            return True
        self.not_run = _needs(output, self._folder)
        return bool(self.not_run)

    async def _check_order(self, place: Place) -> None:
        """Run the solution's tests in reverse order, where pytest runs them and reads its variables."""
        variables = {"PYTEST_ADDOPTS": "-p repairgym_reversed", "PYTHONPATH": self._python_path(f"{OWN}/site")}
        files = {f"{OWN}/site/repairgym_reversed.py": _REVERSED}
        outcome = await self._run(place, Probe("reverse order", files=files, is_solved=True, environment=variables))
        if "reversed" in outcome.marks and not self._is_rewarded(outcome):
            self.add(Defect(kind="depends_on_order", evidence=f"tests in reverse order: {outcome.reward}"))

    async def _rewards_by_seed(self, place: Place) -> dict[str, float]:
        rewards = {}
        for seed in _HASH_SEEDS:
            variables = {"PYTHONHASHSEED": seed}
            outcome = await self._run(place, Probe(f"hash seed {seed}", is_solved=True, environment=variables))
            rewards[seed] = outcome.reward.value or 0.0
        return rewards

    async def _check_seeds(self, place: Place, by_seed: dict[str, float]) -> None:
        """Attribute changing rewards to the hash seed when each seed repeats its reward."""
        again = await self._rewards_by_seed(place)
        if again == by_seed and len(set(again.values())) > 1:
            rewards = ", ".join(f"{seed}: {reward:g}" for seed, reward in again.items())
            self.add(
                Defect(kind="depends_on_hash_seed", evidence=f"rewards of the solution by PYTHONHASHSEED: {rewards}")
            )

    def _python_path(self, path: str) -> str:
        return ":".join(part for part in (path, self._folder.image.environment.get("PYTHONPATH", "")) if part)

    def _ignored_errors(self, outcome: Outcome) -> Iterator[Defect]:
        """Yield commands that failed although the solution is right, and whose status the script does not use."""
        lines = self._folder.test_script.splitlines()
        for line in outcome.failed_commands:
            number, status, command = [*line.split(" ", 2), "", ""][:3]
            place = int(number) if number.isdigit() else 0
            following = " ".join(lines[place : place + 2])
            if command and "$?" not in following and outcome.reward.value:
                evidence = f"tests/test.sh:{number}: {command} ended with {status}, then {outcome.reward}"
                yield Defect(kind="errors_ignored", evidence=evidence)

    def _check_names(self, outcomes: list[Outcome]) -> None:
        """Compare the paths that the instruction names with those after the runs ``outcomes``."""
        existing = set().union(*(outcome.existing for outcome in outcomes))
        missing = [path for path in self._paths if path not in existing]
        if missing:
            evidence = f"{', '.join(missing)}: neither at the start nor after solution and tests"
            self.add(Defect(kind="instruction_names_missing_file", evidence=evidence))

    async def _check_always(self, place: Place) -> None:
        """Distinguish a verifier that rewards everything from one that rewards the starting state."""
        script = "find . -mindepth 1 -maxdepth 1 -exec rm -rf {} +"
        outcome = await self._run(place, Probe("everything removed", script=script))
        if self._is_rewarded(outcome):
            self.add(
                Defect(kind="reward_always_full", evidence=f"all files of the agent were removed: {outcome.reward}")
            )

    async def _attack(self, place: Place) -> None:
        for probe in forgeries(self._folder, place.solved):
            if "forged_reward" in self.defects:
                break
            await self._try(place, probe, "the agent wrote 1 into the reward files")
        for probe in attacks(self._folder, place.initial, place.solved):
            outcome = await self._try(place, probe, f"the agent wrote {', '.join(sorted(probe.files)[:3])}")
            if "conftest" in outcome.marks:
                evidence = f"a conftest.py in {self._folder.image.folder} was loaded"
                self.add(Defect(kind="agent_conftest_loaded", evidence=evidence))
        if not self._folder.is_separate:
            await self._try(place, late_forgery(), "a process of the agent wrote it while test.sh ran")

    async def _try(self, place: Place, probe: Probe, action: str) -> Outcome:
        """Add the defect that ``probe`` is named after when it is rewarded twice: once can be luck."""
        outcome = await self._run(place, probe)
        if self._is_rewarded(outcome):
            again = await self._run(place, probe)
            if self._is_rewarded(again):
                self.add(Defect(kind=probe.name, evidence=f"{action}: {outcome.reward}"))
            else:
                self.add(_flaky([outcome.reward.value or 0.0, again.reward.value or 0.0]))
        return outcome

    async def _spoil(self, place: Place) -> None:
        """Give the verifier wrong variants of the solution."""
        sure: list[str] = []
        other: list[str] = []
        num_other = 0
        for probe, is_sure in wrong_variants(place.initial, place.solved):
            num_other += not is_sure
            if self._is_rewarded(await self._run(place, probe)):
                (sure if is_sure else other).append(probe.name.removeprefix("variant: "))
        if is_weak(sure, other, num_other):
            names = "; ".join([*sure, *other][:4])
            evidence = f"{len(sure) + len(other)} wrong variants got the reward: {names}"
            self.add(Defect(kind="wrong_variant_rewarded", evidence=evidence))

    async def _run(self, place: Place, probe: Probe) -> Outcome:
        outcome = await place.run(probe)
        self.runs.append(ProbeRun(probe=probe.name, reward=outcome.reward.value, duration_s=outcome.duration_s))
        if outcome.reward.problem:
            self.add(Defect(kind="reward_out_of_range", evidence=f"{probe.name}: {outcome.reward.problem}"))
        return outcome

    def _is_rewarded(self, outcome: Outcome) -> bool:
        return (outcome.reward.value or 0.0) >= self._full


def _flaky(rewards: list[float]) -> Defect:
    return Defect(kind="flaky_verifier", evidence=f"rewards of one state: {', '.join(f'{r:g}' for r in rewards)}")


def _needs(output: str, folder: HarborFolder) -> str:
    """Return the programs and packages that ``output`` misses and the folder itself does not have."""
    parts = {part for path in (*folder.environment, *folder.tests) for part in path.split("/")}
    own = {part.removesuffix(".py") for part in parts}
    names = {next(filter(None, match)).split(".")[0] for match in _NEEDS.findall(output)}
    return ", ".join(sorted(name for name in names if name not in own))


def _last(output: str) -> str:
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    return lines[-1][:200] if lines else "no output"
