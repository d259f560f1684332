"""Opening a run folder for a command: store, tasks, workers."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path

import typer

from repairgym.agent.routing import Team
from repairgym.cli.arguments import find_policy, load_tasks, tokenizer_folder
from repairgym.cli.display import ProgressDisplay
from repairgym.config.cluster import ClusterConfig
from repairgym.config.commands import EpisodesConfig
from repairgym.config.rollout import RolloutConfig, WatchConfig
from repairgym.errors import ConfigError, InputError
from repairgym.records import Task
from repairgym.rollout.calls import locked
from repairgym.rollout.jobs import PolicyRef
from repairgym.rollout.names import TURNS_FOLDER, eval_phase
from repairgym.rollout.pool import WorkerPool
from repairgym.rollout.store import RunStore
from repairgym.rollout.trackers import tracking
from repairgym.rollout.workers import WorkerSetup
from repairgym.sizing.workers import describe_workers, size_workers, this_host
from repairgym.tasks.layers.store import LayerStore
from repairgym.tasks.replay.stored import OracleStore
from repairgym.training.run import Run
from repairgym.training.run_settings import ALL, CallConfig, keep_config

WORKER_LOST = "worker_lost"
"""Kind of the event for a lost worker."""


@contextmanager
def open_run(
    folder: Path,
    tasks: Path,
    model: Path,
    rollout: RolloutConfig,
    seed: int,
    watch: WatchConfig | None = None,
    call: CallConfig | None = None,
    cluster: ClusterConfig | None = None,
) -> Iterator[Run]:
    """Open a run over ``tasks`` and lock it; make the folder and its store when they are missing.

    The folder keeps ``call``; a resumed run needs the same one (`keep_config`). Only this process writes to the run. At
    the end it tells what servers were asked and cost, and what was lost.
    """
    from repairgym.inference.loading import load_tokenizer

    load_tokenizer(model)
    known = load_tasks(tasks)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "run.db"
    with locked(folder):
        if call is not None:
            keep_config(folder, call)
        with (
            RunStore.open(path) if path.exists() else RunStore.create(path) as store,
            tracking(store, watch or WatchConfig()),
            _open_pool(
                WorkerSetup(rollout, str(model), turns_folder=str(folder / TURNS_FOLDER)),
                cluster or ClusterConfig(),
                lambda text: store.add_event(WORKER_LOST, text),
            ) as pool,
            ProgressDisplay(folder) as progress,
        ):
            yield Run(folder, store, pool, known, seed, progress, rollout.sandbox)
            counters = pool.counters()
            _say(describe_usage(counters))
            _say(describe_usage(counters, "judge"))
            _say(describe_losses(counters))
            _say(describe_resumed(counters))


def _open_pool(
    setup: WorkerSetup, cluster: ClusterConfig, on_loss: Callable[[str], None]
) -> AbstractContextManager[WorkerPool]:
    """Return workers on ``cluster`` where it is used, else processes of this machine."""
    if not cluster.is_used:
        hosts = [this_host()]
        sized = replace(setup, config=size_workers(setup.config, hosts))
        _say(describe_workers(setup.config, sized.config, hosts))
        return WorkerPool(sized, on_loss=on_loss)
    from repairgym.bridges.ray.workers import open_ray_pool

    return open_ray_pool(setup, cluster, on_loss, _say)


def _say(text: str) -> None:
    if text:
        typer.echo(text, err=True)


def check_policy(ref: PolicyRef, model: Path, rollout: RolloutConfig) -> None:
    """Check, before a run, that the engine or the server of a policy takes its episodes; ``model`` has its tokenizer.

    Scripts have no context. A line names what an engine needs, or which of its settings a server makes idle.
    """
    if ref.router is not None and rollout.scaffold == "external":
        raise ConfigError("a router reads the turns of a pipeline; leave rollout.agent.type=external out")
    review = ref.router.review if isinstance(ref.router, Team) else rollout.pipeline.review
    if review != rollout.pipeline.review:
        raise ConfigError(
            f"rollout.pipeline.review={rollout.pipeline.review!r}, but the team was trained with {review!r}; set "
            f"rollout.pipeline.review={review}"
        )
    if ref.endpoint is not None:
        _say(rollout.describe_idle_engine(ref.protocol))
    elif ref.folder:
        from repairgym.sizing.positions import read_positions
        from repairgym.sizing.preflight import dense_shape, sampler_lines

        folder, context = Path(ref.folder), rollout.pipeline.max_len_tokens
        for line in sampler_lines(read_positions(folder), dense_shape(folder), "embedded", rollout, context):
            _say(line)
    if ref.protocol == "vllm" and ref.endpoint is not None:
        from repairgym.inference.loading import load_tokenizer
        from repairgym.inference.renderer import ChatRenderer
        from repairgym.inference.vllm.preflight import Needs, preflight

        needs = Needs(rollout.pipeline.max_len_tokens, rollout.pipeline.max_action_tokens)
        preflight(ref.endpoint, ChatRenderer(load_tokenizer(model)), needs)


def evaluate_policy(
    tasks: Path, run: Path, config: EpisodesConfig, name: str, model: Path | None, stage: str = ""
) -> tuple[PolicyRef, dict[str, str], list[Task]]:
    """Evaluate the policy ``name`` on the tasks that ``config`` selects, in the folder ``run``.

    The result is stored as ``stage`` (empty: the policy's name). Returns the policy, its fingerprint, and the tasks.
    """
    from repairgym.training.evaluate import evaluate, policy_fingerprint, selection_fingerprint

    ref = find_policy(name, config.rollout.temperature, config.endpoint)
    folder = tokenizer_folder(model, ref)
    check_policy(ref, folder, config.rollout)
    settings, test_set = policy_fingerprint(ref, config.rollout), config.select.set_name
    identity = settings | selection_fingerprint(config.select)
    with open_run(run, tasks, folder, config.rollout, config.seed, cluster=config.cluster) as opened:
        chosen = opened.select(config.select, "tasks")
        keep_evaluation(opened, stage or ref.name, identity, config)
        if missing := describe_missing_oracles(chosen, config.rollout):
            _say(missing)
        evaluate(opened, stage or ref.name, ref, test_set, chosen, config.num_samples, fingerprint=identity)
    return ref, settings, chosen


def keep_evaluation(run: Run, stage: str, fingerprint: Mapping[str, str], config: EpisodesConfig) -> None:
    """Keep the settings of an evaluation, once nothing contradicts what its phase has stored."""
    from repairgym.training.evaluate import check_fingerprint, with_seed

    test_set = config.select.set_name
    check_fingerprint(run.store, eval_phase(stage, test_set), with_seed(fingerprint, run.seed))
    keep_config(run.folder, CallConfig(f"eval-{stage}-{test_set}", config, free=ALL))


def import_checkpoint(run: Path, source: Path, stage: str) -> None:
    """Copy a model folder into the run folder as checkpoint ``stage``; if it exists, check that it is the same."""
    from repairgym.inference.loading import copy_folder, load_tokenizer
    from repairgym.training.evaluate import weights_digest

    load_tokenizer(source)
    target = run / "checkpoints" / stage
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        copy_folder(source, target)
    elif weights_digest(source) != weights_digest(target):
        raise InputError(
            f"{run} was begun with another model than {source}; resume with {target}, or name another run folder"
        )


def require_one_process() -> None:
    """Raise a `ConfigError` under torchrun, for commands that train in one process only."""
    from repairgym.learning.distributed.fsdp import num_processes

    if num_processes() > 1:
        raise ConfigError(
            "this command is for one process; start it without torchrun (repairgym train sft, rft, step_dpo, rl, "
            "dapo_two_stage and distill_then_grpo are for several)"
        )


def describe_usage(counters: Mapping[str, float], prefix: str = "endpoint") -> str:
    """Return a line on the requests to a model server (``judge``: to that of the judge); empty without requests."""
    counts = {name.removeprefix(f"{prefix}/"): n for name, n in counters.items() if name.startswith(f"{prefix}/")}
    if not counts.get("num_attempts"):
        return ""
    errors = {
        "rate limited": counts["num_rate_limited"],
        "server errors": counts["num_server_errors"],
        "rejected": counts["num_refused"],
        "timeouts": counts["num_timeouts"],
        "disconnects": counts["num_disconnects"],
        "bad replies": counts["num_bad_replies"],
    }
    failed = ", ".join(f"{count:.0f} {name}" for name, count in errors.items() if count) or "no errors"
    place = "server" if prefix == "endpoint" else prefix
    return (
        f"{place}: {counts['num_attempts']:.0f} requests ({failed}), {counts['num_prompt_tokens']:.0f} prompt tokens "
        f"({counts['num_cached_tokens']:.0f} cached), {counts['num_reply_tokens']:.0f} reply tokens, "
        f"${counts['cost_usd']:.4f}"
    )


def describe_missing_oracles(tasks: Sequence[Task], rollout: RolloutConfig) -> str:
    """Return a line on the tasks whose oracle the replay judge would have to make; empty without such tasks."""
    oracles = OracleStore(LayerStore(config=rollout.layers))
    num = sum(map(oracles.lacks, tasks)) if rollout.grading.is_replayed else 0
    made = "each is made at the first pass of its task, which takes seconds (ahead: `repairgym tasks replay`)"
    return f"replay judge: {num} of {len(tasks)} tasks have no oracle yet; {made}" if num else ""


def describe_losses(counters: Mapping[str, float]) -> str:
    """Return a line on lost workers; empty when there are none."""
    if not counters.get("pool/num_lost_workers"):
        return ""
    lost, retried = counters["pool/num_lost_workers"], counters["pool/num_retried_episodes"]
    return f"workers: {lost:.0f} were lost and replaced, {retried:.0f} episodes continued or began again in others"


def describe_resumed(counters: Mapping[str, float]) -> str:
    """Return a line on episodes that continued behind recorded turns; empty when there are none."""
    resumed, recalled, differing = (
        counters.get(f"turns/num_{name}", 0.0) for name in ("resumed_episodes", "recalled", "differing_replays")
    )
    if not (resumed or differing):
        return ""
    again = "began again because their replay differed"
    return f"resumed: {resumed:.0f} episodes, {recalled:.0f} turns not sampled again; {differing:.0f} {again}"
