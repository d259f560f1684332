"""LangChain's quick starts: `create_agent`, chat models by name, and the examples in `ChatOpenAI`'s documentation."""

from cases import main
from langchain.agents import create_agent
from langchain.chat_models import init_chat_model
from langchain_anthropic import ChatAnthropic
from langchain_openai import ChatOpenAI
from pydantic import BaseModel, Field

NAMES = ("openai:gpt-4o", "anthropic:claude-sonnet-4-20250514")
MESSAGES = [("system", "You are a helpful translator."), ("human", "I love programming.")]


class Joke(BaseModel):
    """Joke to tell user."""

    setup: str = Field(description="The setup of the joke", max_length=12)
    punchline: str = Field(description="The punchline to the joke", max_length=12)
    rating: int | None = Field(description="How funny the joke is, from 1 to 10")


def get_weather(city: str) -> str:
    """Get weather for a given city."""
    return f"It's always sunny in {city}!"


def model_init_chat_model():
    for name in NAMES:
        assert init_chat_model(name).invoke("Hello, world!").content is not None


def model_invoke():
    answer = ChatOpenAI(model="gpt-4o", temperature=0, max_tokens=None, timeout=None, max_retries=2).invoke(MESSAGES)
    assert answer.usage_metadata["output_tokens"] > 0
    assert answer.response_metadata["model_name"] == "gpt-4o"


def model_stream():
    for model, settings in (
        (ChatOpenAI(model="gpt-4o"), {"stream_usage": True}),
        (ChatAnthropic(model="claude-sonnet-4-20250514"), {}),
    ):
        stream = model.stream(MESSAGES, **settings)
        full = next(stream)
        for chunk in stream:
            full += chunk
        assert full.content
        assert full.usage_metadata["total_tokens"] > 0


async def model_async():
    model = ChatOpenAI(model="gpt-4o")
    assert (await model.ainvoke(MESSAGES)).content
    assert [chunk async for chunk in model.astream(MESSAGES)]
    assert len(await model.abatch([MESSAGES, MESSAGES])) == 2


def model_structured_output():
    structured = ChatOpenAI(model="gpt-4o", max_tokens=300).with_structured_output(Joke)
    assert isinstance(structured.invoke("Tell me a joke about cats"), Joke)


def model_structured_output_by_calls():
    for model in (
        ChatOpenAI(model="gpt-4o", max_tokens=300).with_structured_output(Joke, method="function_calling"),
        ChatAnthropic(model="claude-sonnet-4-20250514", max_tokens=300).with_structured_output(Joke),
    ):
        assert isinstance(model.invoke("Tell me a joke about cats"), Joke)


def model_json_mode():
    model = ChatOpenAI(model="gpt-4o", max_tokens=40).bind(response_format={"type": "json_object"})
    assert model.invoke("Return a JSON object with key 'random_ints'").content.startswith("{")


def model_log_probs():
    answer = ChatOpenAI(model="gpt-4o").bind(logprobs=True).invoke(MESSAGES)
    assert answer.response_metadata["logprobs"]["content"]


def model_responses_api():
    response = ChatOpenAI(model="gpt-4o", use_responses_api=True, output_version="responses/v1").invoke("Hi, I'm Bob.")
    assert response.text


def model_prompt_cache_key():
    assert ChatOpenAI(model="gpt-4o").invoke(MESSAGES, prompt_cache_key="example-key-a").content


def agent_create_agent():
    for name in NAMES:
        agent = create_agent(name, tools=[get_weather], system_prompt="You are a helpful assistant")
        result = agent.invoke({"messages": [{"role": "user", "content": "what is the weather in sf"}]})
        assert any(message.type == "tool" for message in result["messages"])
        assert result["messages"][-1].text


def agent_streamed_agent():
    for name in NAMES:
        agent = create_agent(name, tools=[get_weather])
        question = {"messages": [{"role": "user", "content": "what is the weather in sf"}]}
        parts = list(agent.stream(question, stream_mode="messages"))
        assert any(token.type == "tool" for token, _ in parts)


def agent_bound_tools():
    message = ChatOpenAI(model="gpt-4o").bind_tools([get_weather]).invoke("weather?", parallel_tool_calls=False)
    assert message.tool_calls


main(globals())
