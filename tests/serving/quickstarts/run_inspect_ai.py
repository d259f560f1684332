"""inspect-ai's quick starts: Hello World, theory of mind with self-critique, tools, over three of its providers."""

import os
import tempfile

from cases import main
from inspect_ai import Task, eval
from inspect_ai.agent import react
from inspect_ai.dataset import Sample, example_dataset
from inspect_ai.model import GenerateConfig
from inspect_ai.scorer import exact, includes, model_graded_fact
from inspect_ai.solver import chain_of_thought, generate, self_critique, use_tools
from inspect_ai.tool import tool

os.environ["INSPECT_DISPLAY"] = "none"
os.environ["REPAIRGYM_API_KEY"] = os.environ["OPENAI_API_KEY"]
os.environ["REPAIRGYM_BASE_URL"] = os.environ["OPENAI_BASE_URL"]
MODELS = ("openai/gpt-4o", "openai-api/repairgym/gpt-4o", "anthropic/claude-sonnet-4-20250514")


@tool
def add():
    async def execute(x: int, y: int):
        """Add two numbers.

        Args:
            x: First number to add.
            y: Second number to add.
        """
        return x + y

    return execute


def evaluate(task, model, **settings):
    folder = tempfile.mkdtemp()  # samples are read from it when they are asked for
    [log] = eval(task, model=model, log_dir=folder, **settings)
    assert log.status == "success", log.error
    assert all(sample.error is None for sample in log.samples)
    assert log.stats.model_usage
    return log


def model_hello_world():
    for model in MODELS:
        sample = Sample(input="Just reply with Hello World", target="Hello World")
        evaluate(Task(dataset=[sample], solver=[generate()], scorer=exact()), model)


def model_theory_of_mind():
    task = Task(
        dataset=example_dataset("theory_of_mind"),
        solver=[chain_of_thought(), generate(), self_critique(model="openai-api/repairgym/gpt-4o")],
        scorer=model_graded_fact(model="openai-api/repairgym/gpt-4o"),
        config=GenerateConfig(max_tokens=16),
    )
    evaluate(task, "openai-api/repairgym/gpt-4o", limit=3)


def model_settings():
    sample = Sample(input="Hello", target="x")
    settings = GenerateConfig(temperature=0.5, top_p=0.9, seed=3, logprobs=True, top_logprobs=2, stop_seqs=["\n\n"])
    log = evaluate(Task(dataset=[sample], scorer=includes(), config=settings), "openai-api/repairgym/gpt-4o")
    assert log.samples[0].output.choices[0].logprobs.content


def agent_addition():
    for model in MODELS:
        sample = Sample(input="What is 1 + 1?", target=["sunny"])
        log = evaluate(Task(dataset=[sample], solver=[use_tools(add()), generate()], scorer=includes()), model)
        assert any(message.role == "tool" for message in log.samples[0].messages)


def agent_react():
    for model in MODELS:
        sample = Sample(input="What is 1 + 1?", target="Paris")
        log = evaluate(Task(dataset=[sample], solver=react(), scorer=includes()), model)
        assert log.samples[0].scores["includes"].value == "C"  # what it submitted by a tool call


main(globals())
