"""smolagents: an agent that calls tools, and one that writes code."""

from report import LONG, MODEL, URL, expect_error, step
from report import get_weather as weather
from smolagents import CodeAgent, OpenAIServerModel, ToolCallingAgent, tool

get_weather = tool(weather)
LLM = OpenAIServerModel(model_id=MODEL, api_base=f"{URL}/v1", api_key="none", client_kwargs={"max_retries": 0})

with step("a streamed reply"):
    parts = list(LLM.generate_stream([{"role": "user", "content": [{"type": "text", "text": "SAY-HELLO"}]}]))
    assert "".join(part.content or "" for part in parts) == "Hello from the script."
AGENT = ToolCallingAgent(tools=[get_weather], model=LLM, max_steps=4, verbosity_level=0)
with step("a tool call and its result"):
    assert AGENT.run("FINAL-WEATHER") == "It is sunny."
with step("parallel calls"):
    answer = AGENT.run("FINAL-BOTH")
    assert answer == "One is sunny, one rainy.", answer
with step("a resumed session"):
    assert AGENT.run("FINAL-GO-ON", reset=False) == "The session goes on."
with step("a streamed code agent"):
    coder = CodeAgent(tools=[get_weather], model=LLM, max_steps=3, verbosity_level=0, stream_outputs=True)
    answer = coder.run("CODE-PLEASE")
    assert answer == "SUNNY-21!", answer
with step("a cancelled stream"):
    stream = LLM.generate_stream([{"role": "user", "content": [{"type": "text", "text": "NEVER-END"}]}])
    for _ in range(10):
        next(stream)
    stream.close()
with step("a context overflow is reported"):
    with expect_error() as errors:
        LLM.generate([{"role": "user", "content": [{"type": "text", "text": LONG}]}])
    assert "context" in str(errors[0]), errors
