"""The certificate of one environment: what is known of a task by the properties of OpenEnv's RFC 008.

Reads a task's record and the settings of the server; makes checks with the names of the RFC, grouped by its properties.
Guarantees: ``pass`` and ``fail`` rest on a measurement or a setting, which stands next to them; what nobody measured
is ``skip`` with the reason, never a pass. Nothing in it tells the repair or names a hidden test.
"""

from collections.abc import Sequence
from typing import Any, Literal

from repairgym.config.rollout import RolloutConfig
from repairgym.records import Task

Check = dict[str, Any]
_MAX_FALSE_ACCEPTS = 0.05
"""Share of wrong variants accepted by the task's tests, above which its reward counts as open to exploits."""


def certify(task: Task, config: RolloutConfig, tools: Sequence[dict[str, Any]], backend: str) -> dict[str, Any]:
    """Return the certificate of ``task`` as it is served with ``tools`` in sandboxes of ``backend``."""
    properties = {
        "scales": _scales(task, config),
        "learnable": [_skip("statistical.reward_reachability", "needs a model: repairgym tasks calibrate")],
        "secure": _secure(config, backend),
        "unhackable": _unhackable(task),
        "self_describing": _self_describing(task, tools),
        "reproducible": _reproducible(task),
    }
    statuses = {check["status"] for checks in properties.values() for check in checks}
    verdict = "fail" if "fail" in statuses else "pass"
    return {"task_id": task.id, "verdict": verdict, "num_skipped": _num_skipped(properties), "properties": properties}


def _num_skipped(properties: dict[str, list[Check]]) -> int:
    return sum(check["status"] == "skip" for checks in properties.values() for check in checks)


def _check(name: str, is_met: bool, **measured: Any) -> Check:
    status: Literal["pass", "fail"] = "pass" if is_met else "fail"
    return {"check_id": name, "status": status, "measured": measured}


def _skip(name: str, reason: str) -> Check:
    return {"check_id": name, "status": "skip", "reason": reason}


def _scales(task: Task, config: RolloutConfig) -> list[Check]:
    limits, digest = config.sandbox.limits, task.environment.digest
    envelope = {"memory_bytes": limits.memory_bytes, "num_processes": limits.num_processes}
    use = task.certificate.use
    return [
        _check("static.resource_declaration", True, **envelope, disk_bytes=limits.disk_bytes),
        _check("static.timeout_ceiling", True, episode_timeout_s=config.pipeline.time_limit_s),
        _check("static.dependency_pinning", bool(digest), environment_digest=digest),
        _check("static.task_distribution_pinning", bool(task.base_tree), tree_digest=task.base_tree),
        _skip("semantic.resource_envelope", "not measured: repairgym tasks verify")
        if use is None
        else _check("semantic.resource_envelope", True, **use.model_dump(mode="json")),
    ]


def _secure(config: RolloutConfig, backend: str) -> list[Check]:
    is_isolated = backend != "degraded"
    hosts = {"mode": "no-network" if is_isolated else "public", "sandbox_backend": backend}
    return [
        _check("runtime.network_policy", is_isolated, **hosts),
        _check("runtime.resource_bounds", True, command_timeout_s=config.pipeline.command_timeout_s),
        _check("runtime.episode_isolation", is_isolated, sandboxes_per_episode=1),
        _skip("runtime.host_containment", "an attack battery of the machine: repairgym doctor"),
    ]


def _unhackable(task: Task) -> list[Check]:
    known = task.certificate
    oracle = {"num_runs": known.num_gold_runs, "num_max_reward": known.num_gold_passed}
    idle = {"num_runs": known.num_empty_runs, "num_zero_reward": known.num_empty_failed}
    checks = [
        _check("runtime.reward_well_formed", True, values=[0.0, 1.0], no_verdict=None),
        _check("semantic.oracle_max", 0 < known.num_gold_runs == known.num_gold_passed, **oracle),
        _check("semantic.floor_gap", 0 < known.num_empty_runs == known.num_empty_failed, **idle),
    ]
    if known.accuracy is None or not known.accuracy.num_wrong:
        return [*checks, _skip("semantic.canary_floor", "no wrong variants were judged: repairgym tasks audit")]
    counts = known.accuracy
    is_met = counts.num_accepted <= _MAX_FALSE_ACCEPTS * counts.num_wrong
    return [*checks, _check("semantic.canary_floor", is_met, **counts.model_dump(mode="json"))]


def _self_describing(task: Task, tools: Sequence[dict[str, Any]]) -> list[Check]:
    is_described = all(tool["description"] and tool["parameters"]["type"] == "object" for tool in tools)
    repairs = [text for text in task.gold_files.values() if text and len(text.splitlines()) > 1]
    return [
        _check("runtime.tool_declaration_accuracy", is_described, tools=[tool["name"] for tool in tools]),
        _check("runtime.task_declaration_accuracy", bool(task.issue), source=task.source, split=task.split),
        _check("semantic.no_solution_leakage", not any(text in task.issue for text in repairs), read="the issue"),
    ]


def _reproducible(task: Task) -> list[Check]:
    known = task.certificate
    has_agreed = known.num_gold_passed in (0, known.num_gold_runs) and known.num_empty_failed in (
        0,
        known.num_empty_runs,
    )
    unstable = {"num_unstable_tests_left_out": len(known.unstable_tests)}
    return [
        _check(
            "semantic.verifier_determinism", has_agreed, num_runs=known.num_gold_runs + known.num_empty_runs, **unstable
        ),
        _skip("semantic.replayability", "per episode: repairgym replay"),
        _skip("hub.cross_host_determinism", "needs a second machine"),
    ]
