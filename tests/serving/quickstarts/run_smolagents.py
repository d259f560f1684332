"""smolagents' quick starts: the README's CodeAgent over its models of OpenAI's protocol, and tool calling."""

import os

from cases import main
from smolagents import CodeAgent, LiteLLMModel, OpenAIModel, ToolCallingAgent, tool

QUESTION = "How many seconds would it take for a leopard at full speed to run through Pont des Arts?"


@tool
def get_weather(location: str) -> str:
    """Return the weather.

    Args:
        location: The place.
    """
    return f"sunny in {location}"


def openai_model():
    return OpenAIModel(model_id="gpt-4o", api_base=os.environ["OPENAI_BASE_URL"], api_key=os.environ["OPENAI_API_KEY"])


def model_openai_model():
    message = openai_model().generate([{"role": "user", "content": [{"type": "text", "text": "Hello!"}]}])
    assert message.content is not None
    assert message.token_usage.output_tokens > 0


def model_openai_model_streamed():
    deltas = list(openai_model().generate_stream([{"role": "user", "content": "Hello!"}]))
    assert "".join(delta.content or "" for delta in deltas)


def agent_readme_code_agent():
    agent = CodeAgent(tools=[get_weather], model=openai_model(), stream_outputs=True)
    assert str(agent.run(QUESTION)) == "9.6"


def agent_litellm_model():
    model = LiteLLMModel(
        model_id="anthropic/claude-sonnet-4-20250514", temperature=0.2, api_key=os.environ["ANTHROPIC_API_KEY"]
    )
    assert str(CodeAgent(tools=[get_weather], model=model, verbosity_level=0).run(QUESTION)) == "9.6"


def agent_tool_calling_agent():
    agent = ToolCallingAgent(tools=[get_weather], model=openai_model(), verbosity_level=0)
    assert agent.run("What is the weather in Paris?")
    assert any(step.tool_calls for step in agent.memory.steps if getattr(step, "tool_calls", None))


main(globals())
