"""`repairgym eval router` on stored runs, the policy that its file is, and what is refused."""

from __future__ import annotations

import asyncio
import json
import shutil

import pytest

from repairgym.agent.routing import RouterPolicy
from repairgym.cli.arguments import find_policy, tokenizer_folder
from repairgym.config.models import EndpointConfig
from repairgym.config.rollout import RolloutConfig
from repairgym.errors import InputError
from repairgym.inference.base import SamplingParams
from repairgym.inference.loading import load_tokenizer
from repairgym.inference.renderer import ChatRenderer
from repairgym.ledger import UNKNOWN_VERSION
from repairgym.rollout.policies import PolicyCache
from repairgym.training.evaluate import policy_fingerprint

PHASES = ("eval/base/test-mutations", "eval/rl/test-mutations")


@pytest.fixture
def members(base, tmp_path):
    return [shutil.copytree(base, tmp_path / name) for name in ("weak", "strong")]


@pytest.fixture
def run_of(synthetic_run, tmp_path):
    """The synthetic run, with its tasks open for choices."""
    run = shutil.copytree(synthetic_run, tmp_path / "run")
    tasks = run / "tasks" / "tasks.jsonl"
    tasks.write_text(tasks.read_text().replace('"split":"test"', '"split":"validation"'))
    return run


@pytest.fixture
def fit(cli, members, run_of, tmp_path):
    def fit(*more: object) -> tuple[int, str]:
        pairs = [f"{folder}={run_of}:{phase}" for folder, phase in zip(members, PHASES, strict=True)]
        named = [word for pair in pairs for word in ("--member", pair)]
        return cli("eval", "router", tmp_path / "router.json", *named, *more)

    return fit


def test_a_router_is_fitted_and_acts(fit, members, base, tmp_path):
    code, text = fit("--json")
    assert code == 0, text
    result = json.loads(text)
    assert result["best"] == "strong"
    assert {"unchanged", "changed, not tested", "tests failed"} <= result["choices"].keys()

    ref = find_policy(str(tmp_path / "router.json"), 1.0, EndpointConfig())
    assert tokenizer_folder(None, ref) == members[0]
    renderer = ChatRenderer(load_tokenizer(base))

    async def sample():
        policies = PolicyCache(RolloutConfig(), renderer)
        try:
            policy = await policies.get(ref)
            assert isinstance(policy, RouterPolicy)
            policy.watch("s")
            sampling = SamplingParams(max_tokens=3, stop_token_ids=renderer.stop_token_ids)
            return await policy.generate("s", renderer.open_ids("x"), sampling), policies.counters()
        finally:
            await policies.close()

    generation, counters = asyncio.run(sample())
    assert generation.token_ids
    assert generation.policy_version == UNKNOWN_VERSION
    assert any(counters.values())


def test_weights_and_table_decide_what_a_phase_holds(fit, members, tmp_path):
    fit()
    path = tmp_path / "router.json"
    first = policy_fingerprint(find_policy(str(path), 1.0, EndpointConfig()), RolloutConfig())
    table = json.loads(path.read_text())
    table["choices"]["unchanged"] = "weak"
    path.write_text(json.dumps(table))
    assert policy_fingerprint(find_policy(str(path), 1.0, EndpointConfig()), RolloutConfig()) != first
    weights = members[0] / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"\x01")
    with pytest.raises(InputError, match="are not those it was made with"):
        find_policy(str(path), 1.0, EndpointConfig())


def test_tasks_may_lie_elsewhere(fit, run_of, tmp_path):
    shutil.move(run_of / "tasks", tmp_path / "elsewhere")
    code, text = fit()
    assert code == 3
    assert "no tasks.jsonl" in " ".join(text.split())
    assert fit("--tasks", tmp_path / "elsewhere")[0] == 0


def test_held_out_tasks_fit_nothing(cli, members, synthetic_run, tmp_path):
    pairs = [f"{folder}={synthetic_run}:{phase}" for folder, phase in zip(members, PHASES, strict=True)]
    named = [word for pair in pairs for word in ("--member", pair)]
    code, text = cli("eval", "router", tmp_path / "router.json", *named)
    assert code == 3
    assert "weak has 0 valid episodes on the 0 tasks" in text
    assert not (tmp_path / "router.json").exists()


@pytest.mark.parametrize(
    ("change", "message", "exit_code"),
    [
        (lambda pairs: pairs[:1], "got 1 members, expected at least two", 2),
        (lambda pairs: [pairs[0], "models/a"], "expected MODEL=RUN or MODEL=RUN:PHASE", 2),
        (lambda pairs: [pairs[0], pairs[0]], "two members are named 'weak'", 3),
        (lambda pairs: [pairs[0], pairs[1].rpartition(":")[0]], "has the phases", 3),
        (lambda pairs: [pairs[0], pairs[1] + "x"], "has no phase 'eval/rl/test-mutationsx'", 3),
    ],
)
def test_what_is_no_member(cli, members, run_of, tmp_path, change, message, exit_code):
    pairs = [f"{folder}={run_of}:{phase}" for folder, phase in zip(members, PHASES, strict=True)]
    named = [word for pair in change(pairs) for word in ("--member", pair)]
    code, text = cli("eval", "router", tmp_path / "router.json", *named)
    assert code == exit_code
    assert message in " ".join(text.split())


def test_members_share_a_vocabulary(fit, members):
    tokenizer = members[1] / "tokenizer.json"
    tokenizer.write_text(tokenizer.read_text() + " ")
    code, text = fit()
    assert code == 3
    assert "weak and strong have different tokenizers" in " ".join(text.split())
