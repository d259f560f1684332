"""`repairgym doctor`: statuses, exit codes, JSON as documented."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from pydantic import ValidationError
from typer.testing import CliRunner

from repairgym.cli import doctor_checks
from repairgym.cli.doctor import DoctorReport, default_checks, examine, worst_status
from repairgym.cli.doctor_checks import Finding, Status
from repairgym.cli.main import create_app
from repairgym.config.sandbox import LayersConfig
from repairgym.sandbox.probe import BackendProbe
from repairgym.sizing.workers import cgroup_cores, cgroup_memory_bytes, cpu_bf16
from repairgym.tasks.layers.store import LayerStore

DOCS = Path(__file__).parents[2] / "docs" / "reference" / "doctor.md"


def finding(status: Status) -> Finding:
    return Finding(id=status, status=status, summary=status)


@pytest.mark.parametrize(
    ("statuses", "worst"),
    [([], "ok"), (["ok"], "ok"), (["ok", "warn"], "warn"), (["fail", "warn", "ok"], "fail")],
)
def test_the_worst_status_decides(statuses: list[Status], worst: Status) -> None:
    assert worst_status([finding(status) for status in statuses]) == worst


def test_a_check_that_breaks_does_not_hide_the_others() -> None:
    def broken() -> list[Finding]:
        raise ZeroDivisionError("oops")

    report = examine({"broken": broken, "fine": lambda: [finding("ok")]})
    assert [(item.id, item.status) for item in report.findings] == [("broken", "fail"), ("ok", "ok")]
    assert "ZeroDivisionError: oops" in report.findings[0].summary
    assert report.status == "fail"


def test_local_checks_find_this_machine() -> None:
    checks = {name: check for name, check in default_checks().items() if name not in ("index", "sandbox", "torch")}
    report = examine(checks)
    found = {item.id: item for item in report.findings}
    assert {"python", "cores", "memory", "disk", "packages", "uv"} <= set(found)
    assert found["python"].status == "ok"
    assert found["packages"].status == "ok"
    assert found["extra.dev"].facts["is_installed"] is True
    assert found["cores"].facts["num_cores"] >= 1
    for item in report.findings:
        assert item.status == "ok" or item.remedy, item


def test_documented_example_is_a_report() -> None:
    example = re.search(r"```json\n(.*?)```", DOCS.read_text(), re.DOTALL)
    assert example
    assert DoctorReport.model_validate(json.loads(example[1])).status == "warn"
    with pytest.raises(ValidationError):
        DoctorReport.model_validate({**json.loads(example[1]), "surprise": 1})


@pytest.fixture
def unreachable_index(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UV_DEFAULT_INDEX", "http://127.0.0.1:9/simple")
    monkeypatch.delenv("PIP_EXTRA_INDEX_URL", raising=False)


@pytest.mark.usefixtures("unreachable_index")
def test_the_command_speaks_json_and_words_and_its_ids_are_documented() -> None:
    runner = CliRunner()
    as_json = runner.invoke(create_app(), ["doctor", "--json"])
    report = DoctorReport.model_validate_json(as_json.stdout)
    assert report.status != "ok"
    assert as_json.exit_code == (1 if report.status == "fail" else 0)
    documented = set(re.findall(r"^\| `([a-z.*]+)` \|", DOCS.read_text(), re.MULTILINE))
    for item in report.findings:
        assert not item.summary.startswith("the check broke"), item.summary
        head = item.id.partition(".")[0]
        assert item.id in documented or f"{head}.*" in documented, item.id
    words = runner.invoke(create_app(), ["doctor"])
    assert words.exit_code == as_json.exit_code
    assert all(item.id in words.stdout for item in report.findings)
    assert "-> check the network" in words.stdout


@pytest.mark.usefixtures("unreachable_index")
def test_an_index_that_does_not_answer_is_a_warning() -> None:
    (found,) = doctor_checks.check_index()
    assert found.status == "warn"
    assert "PIP_INDEX_URL" in found.remedy


@pytest.mark.network
def test_an_index_that_answers_is_ok() -> None:
    assert [found.status for found in doctor_checks.check_index()] == ["ok"]


@pytest.mark.parametrize(
    ("has_device", "is_cuda_build", "status", "remedy"),
    [(False, True, "skip", ""), (True, True, "warn", "driver"), (True, False, "warn", "CPU build")],
)
def test_why_there_is_no_gpu(has_device: bool, is_cuda_build: bool, status: Status, remedy: str) -> None:
    found = doctor_checks.explain_no_gpu(has_device=has_device, is_cuda_build=is_cuda_build)
    assert found.status == status
    assert remedy in found.remedy


@pytest.mark.parametrize(
    ("is_written", "is_there", "status"), [(True, False, "ok"), (False, True, "ok"), (False, False, "warn")]
)
def test_modules_that_every_process_compiles_again_are_a_warning(
    is_written: bool, is_there: bool, status: Status
) -> None:
    finding = doctor_checks.describe_bytecode(is_written=is_written, is_there=is_there)
    assert finding.status == status
    assert ("PYTHONDONTWRITEBYTECODE" in finding.remedy) is (status == "warn")


def test_disk_of_a_folder_that_is_not_there_yet(tmp_path: Path) -> None:
    (found,) = doctor_checks.check_disk([tmp_path / "not" / "yet"])
    assert found.facts["path"] == str(tmp_path / "not" / "yet")
    assert found.facts["free_bytes"] > 0


@pytest.mark.parametrize(
    ("files", "cores", "memory_bytes"),
    [
        ({"cpu.max": "150000 100000\n", "memory.max": "1073741824\n"}, 1.5, 1 << 30),
        ({"cpu.max": "max 100000\n", "memory.max": "max\n"}, None, None),
        ({"cpu/cpu.cfs_quota_us": "200000", "cpu/cpu.cfs_period_us": "100000"}, 2.0, None),
        ({"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, None, None),
        ({"memory/memory.limit_in_bytes": "9223372036854771712"}, None, None),
        ({"memory/memory.limit_in_bytes": "4096"}, None, 4096),
        ({}, None, None),
    ],
)
def test_cgroup_bounds(tmp_path: Path, files: dict[str, str], cores: float | None, memory_bytes: int | None) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert cgroup_cores(tmp_path) == cores
    assert cgroup_memory_bytes(tmp_path) == memory_bytes


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ("flags : fpu avx512_bf16 amx_bf16", "amx"),
        ("flags : fpu avx512_bf16", "avx512"),
        ("Features : fp bf16", "arm"),
        ("flags : fpu avx2", "emulated"),
    ],
)
def test_cpu_bf16(tmp_path: Path, flags: str, expected: str) -> None:
    (tmp_path / "cpuinfo").write_text(flags)
    assert cpu_bf16(tmp_path / "cpuinfo") == expected


@pytest.mark.parametrize(
    ("is_available", "has_isolation", "status"),
    [(True, True, "ok"), (False, True, "skip"), (False, False, "fail"), (True, False, "ok")],
)
def test_a_back_end_says_why_not_and_how_to_fix_it(is_available: bool, has_isolation: bool, status: Status) -> None:
    reason, remedy = ("", "") if is_available else ("the program bwrap is not installed", "apt install bubblewrap")
    probe = BackendProbe(
        name="bubblewrap", is_available=is_available, is_isolating=True, reason=reason, remedy=remedy, duration_s=0.1
    )
    found = doctor_checks.describe_backend(probe, has_isolation=has_isolation)
    assert (found.id, found.status, found.remedy) == ("sandbox.bubblewrap", status, remedy)
    assert reason in found.summary
    assert ("optional" in found.summary) == (not is_available and has_isolation)


@pytest.fixture
def layer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("REPAIRGYM_CACHE", str(tmp_path))
    return LayerStore(tmp_path).build_once("trees", "digest", lambda place: (place / "file").write_text("as built"))


def test_verification_names_the_damaged_file(layer: Path) -> None:
    (layer.parent / "old").mkdir()
    runner = CliRunner()
    assert runner.invoke(create_app(), ["doctor", "--verify-layers"]).exit_code == 0
    (layer / "file").write_text("damaged!")
    result = runner.invoke(create_app(), ["doctor", "--verify-layers", "--json"])
    report = DoctorReport.model_validate_json(result.stdout)
    summary, damage = report.findings
    assert result.exit_code == 1
    assert summary.facts == {"num_sound": 0, "num_damaged": 1, "num_without_manifest": 1}
    assert damage.summary == "trees/digest: file: has other content"
    assert str(layer) in damage.remedy


def test_collection_says_what_it_removed_and_what_stays(layer: Path) -> None:
    runner = CliRunner()
    arguments = ["doctor", "--collect-layers", "--json", "max_bytes=1", "min_idle_s=0"]
    report = DoctorReport.model_validate_json(runner.invoke(create_app(), arguments).stdout)
    (found,) = report.findings
    assert (found.status, found.facts["num_removed"], found.facts["num_in_use"]) == ("warn", 0, 1)
    assert layer.is_dir()
    (store,) = doctor_checks.check_layers(layer.parents[1], LayersConfig(max_bytes=1))
    assert (store.status, store.remedy) == ("warn", "repairgym doctor --collect-layers")
    (layer.parent / "unused").mkdir()
    (layer.parent / "unused" / "file").write_text("x" * 10)
    (found,) = doctor_checks.collect_layers(layer.parents[1], LayersConfig(max_bytes=10, min_idle_s=0))
    assert (found.status, found.facts["num_removed"], found.facts["num_bytes_freed"]) == ("ok", 1, 10)


def test_a_mistyped_bound_is_a_usage_error() -> None:
    assert CliRunner().invoke(create_app(), ["doctor", "max_byte=1"]).exit_code != 0
