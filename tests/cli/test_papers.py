"""The commands for the papers' sizes, as their pages have them: every step is one that a preflight accepts.

Models are their published ``config.json`` only. A step that makes a model leaves one for the next step.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from repairgym.cli.main import create_app
from repairgym.config.loading import load_config
from repairgym.config.recipes import DistillThenGrpoConfig, SftCommandConfig
from repairgym.inference.model_source import shipped_base
from repairgym.sizing.positions import Demand, check_demand, read_positions, stretched

PAGES = Path(__file__).parents[2] / "docs/concepts"
PRESETS = Path(__file__).parents[2] / "src/repairgym/data/presets"
QWEN_72B = {
    "model_type": "qwen2", "max_position_embeddings": 32_768, "num_attention_heads": 64, "num_key_value_heads": 8,
    "num_hidden_layers": 80, "hidden_size": 8192, "intermediate_size": 29_568, "vocab_size": 152_064,
    "rope_theta": 1_000_000.0,
}  # fmt: skip
QWEN3_32B = {
    "model_type": "qwen3", "max_position_embeddings": 40_960, "num_attention_heads": 64, "num_key_value_heads": 8,
    "num_hidden_layers": 64, "hidden_size": 5120, "intermediate_size": 25_600, "vocab_size": 151_936, "head_dim": 128,
    "rope_theta": 1_000_000.0,
}  # fmt: skip
START = {"Qwen/Qwen2.5-72B-Instruct": QWEN_72B, "Qwen/Qwen3-32B": QWEN3_32B}
MADE = {
    "sft": ("sft", 1.0),
    "rft": ("rft", 1.0),
    "distill_then_grpo": ("grpo", 1.0),
    "dapo_two_stage": ("stage-2", 4.0),
}
"""Training command or recipe -> its last checkpoint, and the stretch that it makes."""
NOT_CHECKED = {"tasks import", "tasks verify", "knowledge add"}
"""Commands without models and without a dry run; `scripts/check_docs.py` parses them."""


def commands(page: str) -> list[list[str]]:
    text = (PAGES / page).read_text().partition("## The paper's size")[2]
    (block,) = re.findall(r"^```sh\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    return [shlex.split(line) for line in block.replace("\\\n", " ").splitlines()]


def option(words: list[str], name: str, default: str = "1") -> str:
    return words[words.index(name) + 1] if name in words else default


def write_model(folder: Path, config: dict[str, object]) -> None:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    shutil.copy(shipped_base() / "tokenizer.json", folder)


def run_step(words: list[str], monkeypatch: pytest.MonkeyPatch) -> str:
    """What one command of a page says before it would load or start anything; fails where it refuses."""
    if words[:2] == ["hf", "download"]:
        write_model(Path(option(words, "--local-dir")), START[words[2]])
        return ""
    if words[:2] == ["vllm", "serve"]:
        parallel = int(option(words, "--tensor-parallel-size"))
        num_gpus = parallel * int(option(words, "--data-parallel-size"))
        length = int(option(words, "--max-model-len"))
        return check_demand(read_positions(Path(words[2])), Demand("vllm", length, num_gpus, tensor_parallel=parallel))
    num_processes = int(option(words, "--nnodes")) * int(option(words, "--nproc-per-node"))
    monkeypatch.setenv("WORLD_SIZE", str(num_processes))
    given = words[words.index("repairgym") + 1 :]
    if " ".join(given[:2]) in NOT_CHECKED:
        return ""
    shortened = {"models": [], "plan": ["num_groups=1", "group_size=1"]}  # an estimate simulates each episode
    result = CliRunner().invoke(create_app(), [*given, *shortened.get(given[0], ["--dry-run"])])
    assert result.exit_code == 0, f"{' '.join(words)}: {result.output[-800:]}"
    if given[0] == "train":
        run, start = given[2:4] if given[1] in ("sft", "rft") else given[3:5]
        name, factor = MADE[option(given, "--recipe", given[1])]
        config = json.loads(Path(start, "config.json").read_text())
        is_longer = factor > read_positions(Path(start)).factor
        write_model(Path(run, "checkpoints", name), stretched(config, factor, start) if is_longer else config)
    return result.output


@pytest.mark.parametrize(
    ("page", "asked"),
    [
        ("paper-a.md", ["131,072 tokens for vllm", "131,072 tokens for learner", "131,072 tokens for verl"]),
        ("paper-b.md", ["65,536 tokens for learner", "65,536 tokens for verl", "131,072 tokens for verl"]),
    ],
)
def test_every_step_of_a_page_passes_its_preflight(
    page: str, asked: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    said = "\n".join(run_step(words, monkeypatch) for words in commands(page))
    assert [demand for demand in asked if demand not in said] == []
    assert "so its positions are not checked" not in said  # every model of a step is made by one before


def test_a_step_that_was_not_stretched_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The check is one: RFT's 65,536 tokens on the model as it was published."""
    monkeypatch.chdir(tmp_path)
    write_model(tmp_path / "m", QWEN_72B)
    result = CliRunner().invoke(create_app(), ["train", "rft", "r", "m", "--preset", "paper_b/rft", "--dry-run"])
    assert result.exit_code == 2
    assert "--factor 2" in result.output


def test_the_supervised_preset_of_paper_a_is_that_of_its_recipe() -> None:
    alone = load_config(SftCommandConfig, PRESETS / "paper_a/sft.toml")
    recipe = load_config(DistillThenGrpoConfig, PRESETS / "paper_a/distill_then_grpo.toml")
    compute = alone.sft.compute.model_copy(update={"context_parallel": 1})
    assert alone.sft.model_copy(update={"compute": compute}) == recipe.sft
    assert alone.max_per_task == recipe.collect.max_per_task
