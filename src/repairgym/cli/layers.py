"""What `repairgym doctor` says about the layer store: its size, damage in it, and what a collection removed.

Reads the store; makes `Finding` records like `repairgym.cli.machine`, whose invariants hold here too. Invariant: only
`collect_layers` removes anything.
"""

from __future__ import annotations

from pathlib import Path

from repairgym.cli.machine import GIB, Finding, Status
from repairgym.config.layers import LayersConfig
from repairgym.tasks.layers.gc import collect, list_layers
from repairgym.tasks.layers.inventory import find_damage, manifest_path

_NUM_NAMED_PATHS = 5


def check_layers(root: Path, config: LayersConfig) -> list[Finding]:
    """How much the store holds, against its bound."""
    layers = list_layers(root)
    num_bytes = sum(layer.num_bytes for layer in layers)
    status: Status = "ok" if num_bytes <= config.max_bytes else "warn"
    summary = f"{len(layers)} layers, {num_bytes / GIB:.1f} of {config.max_bytes / GIB:.1f} GiB in {root}"
    return [
        Finding(
            id="layers",
            status=status,
            summary=summary,
            remedy="" if status == "ok" else "repairgym doctor --collect-layers",
            facts={"num_layers": len(layers), "num_bytes": num_bytes, "max_bytes": config.max_bytes},
        )
    ]


def verify_layers(root: Path) -> list[Finding]:
    """Every layer against its manifest: one finding per damaged layer, which names what is wrong, and a summary."""
    findings, num_sound, num_unknown = [], 0, 0
    for layer in list_layers(root):
        if not manifest_path(layer.path).exists():
            num_unknown += 1
            continue
        damage = find_damage(layer.path)
        if damage:
            findings.append(_describe_damage(layer.path, root, damage))
        else:
            num_sound += 1
    unknown = f"; {num_unknown} of an older version have no manifest" if num_unknown else ""
    summary = f"{num_sound} layers are as they were built, {len(findings)} are not{unknown}"
    facts = {"num_sound": num_sound, "num_damaged": len(findings), "num_without_manifest": num_unknown}
    return [Finding(id="layers.verified", status="ok", summary=summary, facts=dict(facts)), *findings]


def _describe_damage(layer: Path, root: Path, damage: tuple[str, ...]) -> Finding:
    named = "; ".join(damage[:_NUM_NAMED_PATHS])
    more = f"; and {len(damage) - _NUM_NAMED_PATHS} more" if len(damage) > _NUM_NAMED_PATHS else ""
    return Finding(
        id="layers.damaged",
        status="fail",
        summary=f"{layer.relative_to(root)}: {named}{more}",
        remedy=f"remove the folder {layer}: its next use builds it again",
        facts={"path": str(layer), "damage": [*damage]},
    )


def collect_layers(root: Path, config: LayersConfig) -> list[Finding]:
    """Remove the longest unused layers until the store is within its bound."""
    done = collect(root, config)
    freed = done.num_bytes_before - done.num_bytes_after
    is_within = done.num_bytes_after <= config.max_bytes
    summary = (
        f"{len(done.removed)} layers removed, {freed / GIB:.1f} GiB freed, {done.num_bytes_after / GIB:.1f} GiB left"
    )
    reason = f"{done.num_in_use} are in use, others were used in the last {config.min_idle_s / 3600:.1f} hours"
    return [
        Finding(
            id="layers.collected",
            status="ok" if is_within else "warn",
            summary=summary if is_within else f"{summary}, more than its bound: {reason}",
            remedy=""
            if is_within
            else "collect again later, or lower min_idle_s: repairgym doctor --collect-layers min_idle_s=0",
            facts={
                "num_removed": len(done.removed),
                "num_bytes_freed": freed,
                "num_bytes": done.num_bytes_after,
                "num_in_use": done.num_in_use,
            },
        )
    ]
