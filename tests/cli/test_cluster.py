"""`repairgym cluster check` and a cluster's address before anything is started."""

import sys

import pytest
from typer.testing import CliRunner

from repairgym.cli.cluster import app
from repairgym.cli.main import create_app

RUNNER = CliRunner()


def test_without_an_address_nothing_is_checked():
    result = RUNNER.invoke(create_app(), ["cluster", "check"])
    assert result.exit_code == 2
    assert "expected --address ray://HOST:10001" in result.stderr


def test_without_ray_the_command_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    result = RUNNER.invoke(create_app(), ["cluster", "check", "--address", "local"])
    assert result.exit_code == 2
    assert "pip install 'repairgym[ray] @ git+" in result.stderr


def test_the_resolved_configuration_can_be_seen():
    result = RUNNER.invoke(app, ["check", "--address", "ray://head:10001", "--dry-run", "probe_bytes=5"])
    assert result.exit_code == 0
    assert 'address = "ray://head:10001"' in result.stdout
    assert "probe_bytes = 5" in result.stdout
