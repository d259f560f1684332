"""litellm's quick starts: its README and the pages Getting started, Streaming, Function calling, JSON mode, Router."""

import json

from cases import main
from litellm import Router, acompletion, completion
from pydantic import BaseModel, Field

HELLO = [{"role": "user", "content": "Hello!"}]


class Event(BaseModel):
    name: str = Field(max_length=12)  # the small base ends no text that may go on
    day: int


def model_readme_openai():
    response = completion(model="openai/gpt-4o", messages=HELLO)
    assert response.choices[0].message.content is not None
    assert response.usage.completion_tokens > 0


def model_readme_anthropic():
    response = completion(model="anthropic/claude-sonnet-4-20250514", messages=HELLO)
    assert response.choices[0].message.content is not None


def model_streaming_openai():
    response = completion(model="openai/gpt-4o", messages=HELLO, stream=True)
    assert "".join(part.choices[0].delta.content or "" for part in response)


def model_streaming_anthropic():
    response = completion(model="anthropic/claude-sonnet-4-20250514", messages=HELLO, stream=True)
    assert "".join(part.choices[0].delta.content or "" for part in response)


async def model_async_streaming():
    response = await acompletion(
        model="openai/gpt-4o", messages=HELLO, stream=True, stream_options={"include_usage": True}
    )
    parts = [part async for part in response]
    assert parts[-1].usage.total_tokens > 0


async def model_readme_router():
    router = Router(
        model_list=[
            {"model_name": "fast", "litellm_params": {"model": "openai/gpt-6-luna"}},
            {"model_name": "capable", "litellm_params": {"model": "openai/gpt-6.1-sol"}},
        ]
    )
    response = await router.acompletion(model="fast", messages=[{"role": "user", "content": "What is 2+2?"}])
    assert response.choices[0].message.content is not None


def model_json_schema():
    response = completion(model="openai/gpt-4o", messages=HELLO, response_format=Event, max_tokens=200)
    assert Event.model_validate_json(response.choices[0].message.content)


def model_sampling_parameters():
    response = completion(
        model="openai/gpt-4o", messages=HELLO, temperature=0.2, top_p=0.9, n=2, stop=["\n\n"], seed=3, logprobs=True
    )
    assert len(response.choices) == 2
    assert response.choices[0].logprobs.content


def agent_function_calling():
    tool = {
        "type": "function",
        "function": {
            "name": "get_current_weather",
            "description": "Get the current weather in a given location",
            "parameters": {
                "type": "object",
                "properties": {"location": {"type": "string"}, "unit": {"type": "string", "enum": ["celsius"]}},
                "required": ["location"],
            },
        },
    }
    messages = [{"role": "user", "content": "What's the weather like in San Francisco, Tokyo, and Paris?"}]
    first = completion(model="openai/gpt-4o", messages=messages, tools=[tool], tool_choice="auto")
    [call] = first.choices[0].message.tool_calls
    assert json.loads(call.function.arguments)["location"]
    messages += [first.choices[0].message, {"tool_call_id": call.id, "role": "tool", "name": "x", "content": "sunny"}]
    second = completion(model="openai/gpt-4o", messages=messages)
    assert second.choices[0].message.content


main(globals())
