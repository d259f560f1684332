"""A model behind a server proposes bugs; only changed lines of the function count."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace

import pytest

from repairgym.config.models import EndpointConfig
from repairgym.inference.endpoint import EndpointClient
from repairgym.inference.openai import OpenAITextModel
from repairgym.recipes.evolution.proposals import Proposer, make_question, read_proposal
from repairgym.tasks.mutation.mutants import MutableFunction, mutable_functions
from repairgym.tasks.sources.base import Drop
from repairgym.testing.servers import Fault, FaultyServer

SOURCE = "import os\n\n\ndef f(low, high):\n    if low < high:\n        return low\n    return high\n"


@pytest.fixture
def function() -> MutableFunction:
    (function,) = mutable_functions("m.py", SOURCE, (1, 30))
    return function


def reply(*changes: tuple[int, str]) -> str:
    return "Here it is:\n" + json.dumps([{"line": line, "text": text} for line, text in changes])


def test_the_question_shows_the_function_with_its_lines(function: MutableFunction) -> None:
    question = make_question(function, 2)
    assert "4: def f(low, high):\n5:     if low < high:\n" in question
    assert "import os" not in question


def test_changed_lines_are_put_in_place(function: MutableFunction) -> None:
    text = read_proposal(function, reply((5, "    if low <= high:"), (7, "    return low")), 2)
    assert text == SOURCE.replace("<", "<=").replace("return high", "return low")


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ("I cannot do that", "proposal_unreadable"),
        ('[{"row": 5}]', "proposal_unreadable"),
        ("[]", "proposal_out_of_bounds"),
        (reply((1, "import sys")), "proposal_out_of_bounds"),
        (reply((5, "    if low:\n        pass")), "proposal_out_of_bounds"),
        (reply((5, "    if low:"), (6, "        return high"), (7, "    return 0")), "proposal_out_of_bounds"),
    ],
)
def test_what_is_no_proposal(function: MutableFunction, answer: str, reason: str) -> None:
    text = read_proposal(function, answer, 2)
    assert isinstance(text, Drop)
    assert text.reason == reason


@pytest.mark.parametrize("answer", ['[{"line": 1e999, "text": "x"}]', "[" * 5000 + "]" * 5000])
def test_an_answer_of_any_form_is_a_drop(function: MutableFunction, answer: str) -> None:
    made = read_proposal(function, answer, 3)
    assert isinstance(made, Drop)
    assert made.reason == "proposal_unreadable"


def test_lines_are_those_of_the_parser(function: MutableFunction) -> None:
    """A form feed ends a line for ``str.splitlines`` alone."""
    feed = replace(function, source=SOURCE.replace("os\n\n", "os\n\x0c\n"))
    assert make_question(feed, 3) == make_question(function, 3)
    assert read_proposal(feed, reply((6, "        return high")), 3) == feed.source.replace("return low", "return high")


def test_a_server_is_asked(function: MutableFunction) -> None:
    server = FaultyServer([Fault.OK], reply((7, "    return low")))

    async def ask(url: str) -> str | Drop:
        async with EndpointClient(EndpointConfig(base_url=url, model="m"), key="") as client:
            return await Proposer(OpenAITextModel(client), 1, seed=0)(function)

    with server.in_thread() as url:
        assert asyncio.run(ask(url)) == SOURCE.replace("return high", "return low")
    assert server.requests[0]["messages"][0]["content"] == make_question(function, 1)
