"""`repairgym plan` on the command line."""

import json

from typer.testing import CliRunner

from repairgym.cli.main import create_app


def test_simulated_rollouts_stand_beside_what_such_took_when_they_were_measured():
    sizes = ["model=Qwen3-8B", "context_tokens=16384", "num_groups=1", "group_size=2", "episode.num_turns=3"]
    result = CliRunner().invoke(create_app(), ["plan", "--json", *sizes])
    assert result.exit_code == 0, result.output
    figures = json.loads(result.stdout)["one iteration"]
    least, most = map(float, figures["rollouts (s) as a demo measured them"].split(" to "))
    assert figures["rollouts (s, simulated)"] < least < most < 2 * figures["rollouts (s, simulated)"]
