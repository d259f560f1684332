"""`repairgym demo`: what a dry run of a run that exists does."""

from repairgym.config.loading import load_config, to_toml
from repairgym.config.recipes import DemoConfig


def test_a_dry_run_starts_no_run_that_would_resume(cli, tmp_path):
    config = DemoConfig(minutes=7.0)
    (tmp_path / "config.toml").write_text(to_toml(config))
    code, text = cli("demo", "--resume", "--run", tmp_path, "--dry-run")
    assert code == 0
    (tmp_path / "printed.toml").write_text(text)
    assert load_config(DemoConfig, tmp_path / "printed.toml") == config
    assert not (tmp_path / "run.db").exists()
