"""A build that leaves no place for the tests is a failure, never an escape from grading."""

import pytest

from repairgym.config.pipeline import GradingConfig
from repairgym.grading.grader import Grader
from repairgym.records import BuildStep, VerdictKind
from repairgym.sandbox.backends.namespace import NamespaceBackend
from repairgym.sandbox.base import SandboxLimits, SandboxSpec
from repairgym.sandbox.cache import ExecutionCache
from repairgym.sandbox.conformance import make_environment


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("head -c 9000000 /dev/zero > fill; true", "exceed its bounds"),
        ("mkdir test_m.py", "in the way of test_m.py"),
        ("ln -s /etc/passwd test_m.py", "in the way of test_m.py"),
    ],
)
async def test_a_build_in_the_way_of_the_tests_is_a_failure(task, tmp_path, script, reason):
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree" / "test_m.py").write_text("def test_f():\n    assert True\n" + "#" * 5000)
    environment = make_environment(tmp_path / "environment")
    limits = SandboxLimits(disk_bytes=8 << 20)
    backend = NamespaceBackend()
    grader = Grader(
        backend,
        lambda task, files: SandboxSpec(environment=environment, tree=tmp_path / "tree", files=files, limits=limits),
        GradingConfig(),
        ExecutionCache(),
    )
    step = BuildStep(command=("sh", "-c", script), has_products=True)
    built = task.model_copy(update={"build": (step,), "test_paths": ("test_m.py",)})
    verdict = await grader.grade(built, {"m.py": "def f(a, b):\n    return a <= b\n"})
    await backend.close()
    assert verdict.kind is VerdictKind.FAILED, verdict
    assert reason in verdict.reason
