"""Back ends are found by doing, and the one that does not isolate is never taken by accident."""

import asyncio

import pytest
from pydantic import ValidationError

from mendwright.config.sandbox import SandboxConfig
from mendwright.errors import ConfigError
from mendwright.sandbox.probe import BACKENDS, create_backend, probe_backends


def test_every_back_end_is_probed():
    probes = probe_backends()
    assert [probe.name for probe in probes] == list(BACKENDS)
    assert [probe.is_available for probe in probes] == [True, True]
    assert [probe.is_isolating for probe in probes] == [True, False]
    assert "does not isolate" in probes[1].reason


def test_degraded_has_to_be_allowed():
    with pytest.raises(ConfigError, match="is_degraded_allowed"):
        create_backend(SandboxConfig(backend="degraded"))
    assert create_backend(SandboxConfig(backend="degraded", is_degraded_allowed=True)).name == "degraded"


def test_auto_prefers_isolation():
    assert create_backend(SandboxConfig(is_degraded_allowed=True)).name == "namespace"


@pytest.mark.asyncio
async def test_probing_works_inside_an_event_loop():
    backend = create_backend(SandboxConfig())
    await asyncio.gather(backend.close(), backend.close())
    assert backend.name == "namespace"


@pytest.mark.parametrize("values", [{"backend": "docker"}, {"limits": {"memory_bytes": 0}}, {"unknown": 1}])
def test_wrong_configurations_are_refused(values):
    with pytest.raises(ValidationError):
        SandboxConfig.model_validate(values)
