"""Workers and sandboxes of machines: what ``auto`` becomes."""

from pathlib import Path

import pytest

from repairgym.config.rollout import RolloutConfig
from repairgym.sizing.workers import Host, cgroup_memory_bytes, describe_workers, size_workers, this_host

GIB = 1 << 30
NODE = Host(num_cpus=32, memory_bytes=960 * GIB)
"""Paper B, appendix D, beside eight GPUs."""


def sized(hosts, *, num_episodes=None, cpus_per_worker=1.0, **given):
    config = RolloutConfig.model_validate({"num_workers": "auto", "max_sandboxes": "auto", **given})
    chosen = size_workers(config, hosts, num_episodes=num_episodes, cpus_per_worker=cpus_per_worker)
    return chosen.num_workers, chosen.max_sandboxes


@pytest.mark.parametrize(
    ("hosts", "options", "expected"),
    [
        ([Host(2, 8 * GIB)], {}, (2, 2)),  # a laptop: two per processor, and 2 GiB each
        ([Host(2, 2 * GIB)], {}, (2, 1)),
        ([Host(0.5, GIB)], {}, (1, 1)),
        ([NODE], {}, (32, 2)),
        # 3,000 episodes at one time on 16 such nodes, eight processors left to the learner
        ([Host(24, 960 * GIB)] * 16, {"num_episodes": 3000}, (63, 2)),
        ([NODE] * 16, {"num_episodes": 3000, "max_in_flight": 6}, (500, 2)),
        ([NODE] * 16, {"num_workers": 64}, (64, 16)),
        ([NODE] * 16, {"num_workers": 64, "max_in_flight": 8}, (64, 8)),
        ([NODE], {"max_sandboxes": 48}, (32, 48)),
        ([Host(64, 256 * GIB, max_sandboxes=96)], {"max_sandboxes": 48}, (2, 48)),
        ([Host(64, 256 * GIB, max_sandboxes=96), Host(8, 8 * GIB, max_sandboxes=0)], {}, (64, 1)),
        ([Host(64, 256 * GIB, max_sandboxes=128)], {"cpus_per_worker": 4.0}, (16, 8)),
        ([Host(8, 8 * GIB, max_sandboxes=0)], {}, (1, 1)),  # no place: the cluster says so itself
    ],
)
def test_workers_and_sandboxes_fit_the_machines(hosts, options, expected):
    assert sized(hosts, **options) == expected


def test_given_numbers_stay_and_nothing_is_said_of_them():
    config = RolloutConfig(num_workers=5, max_sandboxes=7)
    assert size_workers(config, [NODE]) is config
    assert describe_workers(config, config, [NODE]) == ""


def test_what_was_chosen_is_said():
    asked = RolloutConfig()
    text = describe_workers(asked, size_workers(asked, [NODE]), [NODE])
    assert text == (
        "32 workers with up to 48 episodes and 48 sandboxes each, for 32 processors and 960 GiB of this machine"
    )


def test_this_machine_has_something_to_offer():
    host = this_host()
    assert host.num_cpus > 0
    assert host.memory_bytes > GIB // 4


@pytest.mark.parametrize(
    ("membership", "files", "expected"),
    [
        ("0::/user/job\n", {"user/memory.max": "4096", "user/job/memory.max": "max", "memory.max": "8192"}, 4096),
        ("0::/user/job\n", {"user/memory.max": "4096", "user/job/memory.max": "1024"}, 1024),
        ("9:memory:/job\n1:name=systemd:/x\n", {"memory/job/memory.limit_in_bytes": "2048"}, 2048),
        ("0::/elsewhere\n", {"memory.max": "8192"}, 8192),
    ],
)
def test_the_memory_of_the_cgroups_above_binds_too(
    membership: str, files: dict[str, str], expected: int, tmp_path: Path
) -> None:
    (tmp_path / "membership").write_text(membership)
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert cgroup_memory_bytes(tmp_path, tmp_path / "membership") == expected
