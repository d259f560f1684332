"""How long the pages of `repairgym view` take over a large run: lists, filters, groups, one
trajectory, its tokens, metrics.

Makes a store of 100,000 trajectories (a few thousand different ones by `RunStore`, copied by SQL under ids of their
own), then asks the application for pages as a browser does, each several times; the figure is the median and the worst
in seconds; the first of all requests and what the server does before it are apart. `--quick` makes smaller texts, not
fewer trajectories.

    python benchmarks/viewer.py --quick --json
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
from starlette.testclient import TestClient

from repairgym.ledger import TokenLedger
from repairgym.records import StopReason, TestOutcome, TestResult, Trajectory, Turn, Verdict, VerdictKind
from repairgym.rollout.store import RunStore
from repairgym.view.app import create_app
from repairgym.view.folders import RunFolders
from repairgym.view.site import Site

NUM_TRAJECTORIES = 100_000
GROUP_SIZE = 8
NUM_STEPS = 100
"""Of the training phase, which holds three quarters of the trajectories."""
KINDS = [VerdictKind.PASSED] * 48 + [VerdictKind.FAILED] * 48 + [VerdictKind.EXPLOITED] * 3 + [VerdictKind.INVALID]
EVALUATIONS = ("eval/base/test-mutations", "eval/rl/test-mutations")
NUM_METRICS, NUM_METRIC_STEPS = 100, 10_000
"""A million points, and as many again in one metric of a phase of its own."""
POINTS = """WITH RECURSIVE n (step) AS (SELECT 0 UNION ALL SELECT step + 1 FROM n WHERE step + 1 < :num)
    INSERT INTO metrics
    SELECT :phase, step, :name, abs(random() % 1000) / 1000.0, '2026-11-24T00:00:00.000+00:00' FROM n"""
COPY = """INSERT INTO trajectories SELECT number + :shift, :tag || id, :phase, :step, :tag || group_id,
    :tasks || task_id, split, policy_id, verdict, reason, is_restored, reward, stop_reason, seed, num_turns, num_tokens,
    num_action_tokens, durations_s, created_at FROM trajectories WHERE number <= :size"""


def make_trajectory(number: int, generator: random.Random, num_chars: int) -> Trajectory:
    """A plausible episode whose observations are ``num_chars`` long, in all."""
    num_turns = generator.randint(1, 30)
    words = [f"{generator.randrange(1 << 24):06x}" for _ in range(200)]
    turns = tuple(
        Turn(
            action=f"edit {words[turn]} => {words[-turn]} @{turn}",
            tool="edit",
            arguments={"argument": f"{words[turn]} => {words[-turn]} @{turn}"},
            observation=" ".join(generator.choices(words, k=max(1, num_chars // num_turns // 7))),
            action_span=(100 + 20 * turn, 108 + 20 * turn),
        )
        for turn in range(num_turns)
    )
    length = 120 + 20 * num_turns
    is_action = np.zeros(length, bool)
    for turn in turns:
        is_action[slice(*turn.action_span)] = True
    random_values = np.random.default_rng(number)
    ledger = TokenLedger(
        random_values.integers(0, 4096, length).astype(np.int32),
        is_action,
        np.where(is_action, -random_values.exponential(0.3, length), 0).astype(np.float32),
        np.where(is_action, 7, -1).astype(np.int32),
    )
    kind = generator.choice(KINDS)
    group = number // GROUP_SIZE
    outcome = TestOutcome.PASSED if kind is VerdictKind.PASSED else TestOutcome.FAILED
    return Trajectory(
        id=f"{group}#{number % GROUP_SIZE}",
        task_id=f"package{group % 97}-1.0-mutation-{group:06d}",
        group_id=f"group-{group}",
        pipeline="simplified",
        policy_id="rl",
        sandbox_backend="namespace",
        turns=turns,
        ledger=ledger,
        stop_reason=StopReason.SUBMITTED if generator.random() < 0.8 else StopReason.TURN_LIMIT,
        final_files={"pkg/numbers.py": "x = 2\n"},
        final_patch="--- a/pkg/numbers.py\n+++ b/pkg/numbers.py\n@@ -1 +1 @@\n-x = 1\n+x = 2\n",
        verdict=Verdict(
            kind=kind,
            reason=f"{kind.value}: tests/test_numbers.py::test_{number % 50}",
            tests={f"tests/test_numbers.py::test_{index}": TestResult(outcome=outcome) for index in range(8)},
            grader_version="1",
        ),
        seed=number,
        durations_s={"generate": 1.25, "tool": 0.5, "grade": 0.25},
    )


def make_run(folder: Path, num: int, num_different: int, num_chars: int) -> None:
    """A run folder with ``num`` trajectories."""
    folder.mkdir()
    generator = random.Random(0)
    with RunStore.create(folder / "run.db") as store:
        store.plan_phases(["rl", *EVALUATIONS])
        store.start_phase("rl")
        for number in range(num_different):
            one = make_trajectory(number, generator, num_chars)
            store.add_trajectory(one, phase="rl", step=0, split="train")
        with store._transaction() as connection:  # the generator's short cut; nothing else writes around the store
            for index in range(NUM_METRICS):
                name = f"group{index % 7}/metric{index:03d}"
                connection.execute(POINTS, {"phase": "rl", "name": name, "num": NUM_METRIC_STEPS})
            values = {"phase": "long", "name": "train/loss", "num": NUM_METRICS * NUM_METRIC_STEPS}
            connection.execute(POINTS, values)
            for copy in range(1, num // num_different):
                is_training = copy < 0.75 * num / num_different
                tasks = f"{copy}/" if is_training else f"{copy // 2}/"  # both evaluations try the same
                values = {"shift": copy * num_different, "tag": f"{copy}/", "tasks": tasks, "size": num_different}
                values["phase"] = "rl" if is_training else EVALUATIONS[copy % 2]
                values["step"] = copy % NUM_STEPS if is_training else 0
                groups = "INSERT INTO groups SELECT :tag || id, :phase, :step, :tasks || task_id, status FROM groups"
                names = {name: values[name] for name in ("tag", "tasks", "phase", "step")}
                connection.execute(f"{groups} WHERE phase = 'rl' AND step = 0 AND id LIKE 'group-%'", names)
                connection.execute(COPY, values)
                documents = "INSERT INTO documents SELECT number + :shift, document, ledger FROM documents"
                connection.execute(f"{documents} WHERE number <= :size", {n: values[n] for n in ("shift", "size")})


def measure(client: TestClient, path: str, repeats: int) -> dict[str, float]:
    """Seconds of one page, and what it costs the processor."""
    seconds, cpu_seconds = [], []
    for _ in range(repeats):
        begin, cpu_begin = time.perf_counter(), time.process_time()
        answer = client.get(path)
        seconds.append(time.perf_counter() - begin)
        cpu_seconds.append(time.process_time() - cpu_begin)
        if answer.status_code != 200:
            raise SystemExit(f"{path} answers {answer.status_code}")
    return {
        "median_s": statistics.median(seconds),
        "worst_s": max(seconds),
        "cpu_s": statistics.median(cpu_seconds),
        "bytes": float(len(answer.content)),
    }


def pages_of(client: TestClient, num: int) -> dict[str, str]:
    """What is measured: name -> address."""
    middle = num // 2
    groups = client.get("/r/run/groups?phase=rl").text
    group = groups.partition('<td><a href="')[2].partition('"')[0].replace("&amp;", "&")
    return {
        "runs": "/",
        "leaderboard": "/leaderboard",
        "run": "/r/run",
        "phase": "/r/run/phase?name=rl",
        "list, first page": "/r/run/trajectories",
        "list, deep inside": f"/r/run/trajectories?after={middle}",
        "list of failed": "/r/run/trajectories?verdict=failed",
        "list by tokens": "/r/run/trajectories?order=most_tokens",
        "list by tokens, exploited, one phase": "/r/run/trajectories?verdict=exploited&phase=rl&order=most_tokens",
        "search in ids and reasons": "/r/run/trajectories?q=test_13",
        "search that finds nothing": "/r/run/trajectories?q=nowhere",
        "search in conversations (stops after 0.7 s)": "/r/run/trajectories?text=never+said",
        "groups": "/r/run/groups?phase=rl",
        "groups of a step": "/r/run/groups?phase=rl&step=1",
        "group, side by side": group,
        "task": "/r/run/task?id=package5-1.0-mutation-000005",
        "trajectory": f"/r/run/t/{middle}",
        "trajectory inside a search": f"/r/run/t/{middle}?q=test_13&order=most_tokens",
        "tokens": f"/r/run/t/{middle}/tokens",
        "metrics, a million points": "/r/run/metrics?phase=rl",
        "metrics, smoothed and logarithmic": "/r/run/metrics?phase=rl&smooth=0.9&log=1",
        "one metric of 10,000 points": "/r/run/metric?phase=rl&name=group0%2Fmetric000",
        "one metric of a million points": "/r/run/metric?phase=long&name=train%2Floss",
        "setup and log": "/r/run/setup",
        "has anything changed": "/r/run/pulse",
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="shorter texts, fewer repeats")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--num", type=int, default=NUM_TRAJECTORIES)
    parser.add_argument("--folder", type=Path, help="make the run here and keep it (default: a temporary folder)")
    arguments = parser.parse_args()
    num_different, num_chars, repeats = (1_000, 2_000, 3) if arguments.quick else (2_000, 12_000, 9)
    with tempfile.TemporaryDirectory() as scratch:
        root = arguments.folder or Path(scratch)
        if not (root / "run" / "run.db").exists():
            begin = time.perf_counter()
            make_run(root / "run", arguments.num, min(num_different, arguments.num), num_chars)
            made_s = time.perf_counter() - begin
        else:
            made_s = 0.0
        size_bytes = (root / "run" / "run.db").stat().st_size
        site = Site(RunFolders(root))
        client = TestClient(create_app(root, site=site), base_url="http://localhost")
        client.get("/static/view.css")  # imports of the client
        begin = time.process_time()
        site.warm()
        warm_s = time.process_time() - begin
        first = measure(client, "/r/run/trajectories", 1)
        found = {name: measure(client, path, repeats) for name, path in pages_of(client, arguments.num).items()}
    result = {
        "num": arguments.num,
        "made_s": made_s,
        "run_db_bytes": size_bytes,
        "warm_cpu_s": warm_s,
        "first_request": first,
        "pages": found,
    }
    if arguments.json:
        print(json.dumps(result))
        return
    print(f"{arguments.num:,} trajectories, run.db {size_bytes / 2**20:,.0f} MiB, made in {made_s:.0f} s")
    print(f"before the first request, in a thread of the server (templates, counts of every row): {warm_s:.3f} s")
    print(f"{'page':<46}{'median':>9}{'worst':>9}{'processor':>11}{'size':>10}")
    for name, one in {"first of all (list)": first, **found}.items():
        times = f"{one['median_s']:>7.3f} s{one['worst_s']:>7.3f} s{one['cpu_s']:>9.3f} s"
        print(f"{name:<46}{times}{one['bytes'] / 1024:>6.0f} KiB")


if __name__ == "__main__":
    main()
