"""pydantic-ai's quick starts: hello world and bank support of its front page, Agents, Output, Streaming."""

from dataclasses import dataclass
from typing import Literal

from cases import main
from pydantic import BaseModel, Field
from pydantic_ai import Agent, NativeOutput, RunContext

MODELS = ("openai-chat:gpt-4o", "openai-responses:gpt-4o", "anthropic:claude-sonnet-4-5")


class Box(BaseModel):
    width: int
    height: int
    units: Literal["cm", "in"]  # the small base ends no text that may go on


class SupportOutput(BaseModel):
    support_advice: str = Field(description="Advice returned to the customer", max_length=20)
    block_card: bool
    risk: int = Field(ge=0, le=10)


@dataclass
class SupportDependencies:
    customer_id: int


def model_hello_world():
    for model in MODELS:
        agent = Agent(model, instructions="Be concise, reply with one sentence.")
        assert agent.run_sync('Where does "hello world" come from?').output


def model_structured_output():
    for model in MODELS:
        agent = Agent(model, output_type=Box, model_settings={"max_tokens": 300})
        assert isinstance(agent.run_sync("The box is 10x20 cm").output, Box)


def model_native_structured_output():
    for model in MODELS:
        agent = Agent(model, output_type=NativeOutput(Box), model_settings={"max_tokens": 300})
        assert isinstance(agent.run_sync("The box is 10x20 cm").output, Box)


async def model_streamed_text():
    for model in MODELS:
        agent = Agent(model)
        async with agent.run_stream("What is the capital of the UK?") as result:
            texts = [text async for text in result.stream_text()]
        assert texts[-1]


async def model_streamed_structured_output():
    for model in MODELS:
        agent = Agent(model, output_type=Box, model_settings={"max_tokens": 300})
        async with agent.run_stream("The box is 10x20 cm") as result:
            boxes = [box async for box in result.stream_output()]
        assert isinstance(boxes[-1], Box)


def model_bank_support():
    for model in MODELS:
        agent = Agent(
            model,
            deps_type=SupportDependencies,
            output_type=SupportOutput,
            instructions="You are a support agent in our bank.",
            model_settings={"max_tokens": 400},
        )

        @agent.instructions
        async def add_customer_name(context: RunContext[SupportDependencies]) -> str:
            return f"The customer's name is {context.deps.customer_id}"

        result = agent.run_sync("I just lost my card!", deps=SupportDependencies(123))
        assert 0 <= result.output.risk <= 10


def agent_dice_game():
    for model in MODELS:
        agent = Agent(model, deps_type=str, instructions="You're a dice game")
        rolled = []

        @agent.tool_plain
        def roll_dice(player: str) -> str:
            """Roll a six-sided die and return the result."""
            rolled.append(player)  # noqa: B023
            return "4"

        assert agent.run_sync("My guess is 4", deps="Anne").output
        assert rolled


async def agent_streamed_tools():
    for model in MODELS:
        agent = Agent(model)
        cities = []

        @agent.tool_plain
        def weather(city: str) -> str:
            cities.append(city)  # noqa: B023
            return "sunny"

        async with agent.run_stream_events("Weather in Paris?") as events:
            kinds = [type(event).__name__ async for event in events]
        assert cities
        assert kinds[-1] == "AgentRunResultEvent"


main(globals())
