"""Python libraries, whose loops are scripts of their own (`loops`), and two programs of the command line."""

import time
from collections.abc import Callable
from pathlib import Path

from tests.clients.programs.agents import GOES_ON, HELLO, IDLE_S, LONG, OVERFLOW, RESUMED, stopped, talk
from tests.clients.programs.harness import LIMIT_S, Ended
from tests.clients.programs.program import Program, Run, calls, events, says
from tests.clients.programs.scripted_model import Line

LOOPS = Path(__file__).parent / "loops"
REPORT = '{"city": "Paris", "sunny": true}'
TYPED = {"city": "Paris", "sunny": True}
PARIS, ROME = ("get_weather", {"city": "Paris"}), ("get_weather", {"city": "Rome"})
COMMON = [
    Line("SAY-HELLO", says("Hello from the script.")),
    Line("WEATHER-PLEASE", calls(PARIS)),
    Line("SUNNY-21", says("It is sunny.")),
    Line("BOTH-PLEASE", calls(PARIS, ROME)),
    Line("RAINY-15", says("One is sunny, one rainy.")),
    Line("THINK-FIRST", says("It is four.", thoughts="Two and two.")),
    Line("GO-ON", says("The session goes on.")),
    Line("REPORT-PLEASE", says(REPORT)),
    Line("REPORT-FENCED", says(f"```json\n{REPORT}\n```")),
    Line("CALL-REPORT", calls(("Report", TYPED))),
    Line("CALL-REPORT-TWICE", calls(("Report", TYPED), ("Report", {"city": "Rome", "sunny": False}))),
    Line("CALL-PARTIAL", calls(("PartialReport", TYPED))),
    Line("CALL-SUNNY", calls(("Sunny", TYPED))),
    Line("CALL-ANOTHER", calls(("Sunny", {"city": "Rome", "sunny": True}))),
    Line("CALL-FINAL", calls(("final_result", TYPED))),
    Line("NEVER-END", says("and on "), repeat=2000),
]
CODE = 'Thought: it is short.\n<code>\nfinal_answer(get_weather(city="Paris") + "!")\n</code>'
SMOLAGENTS = [
    COMMON[0],
    Line("FINAL-WEATHER", calls(PARIS)),
    Line("SUNNY-21", calls(("final_answer", {"answer": "It is sunny."}))),
    Line("FINAL-BOTH", calls(PARIS, ROME)),
    Line("RAINY-15", calls(("final_answer", {"answer": "One is sunny, one rainy."}))),
    Line("SUNNY-21", calls(("final_answer", {"answer": "One is sunny, one rainy."})), "RAINY-15"),  # in any order
    Line("FINAL-GO-ON", calls(("final_answer", {"answer": "The session goes on."}))),
    Line("CODE-PLEASE", says(CODE)),
    COMMON[-1],
]


def script(name: str) -> Callable[[Run], None]:
    """A loop that a script of `LOOPS` goes through."""

    def loop(run: Run) -> None:
        run.place.environment = {"LLAMAPOOL_URL": run.server.url, **QUIET}
        ended = run.place.run([run.installed / "bin" / "python", LOOPS / f"{name}.py"], limit_s=LIMIT_S)
        steps = [event for event in events(ended.out) if "step" in event]
        for one in steps:
            run.check(one["step"], one["done"], one.get("detail", ""))
        run.check("exit status 0", ended.status == 0 and steps, ended)
        until = time.monotonic() + IDLE_S
        while run.server.busy() and time.monotonic() < until:
            time.sleep(0.05)
        run.check("all slots are free", not run.server.busy())

    return loop


QUIET = {
    "OTEL_SDK_DISABLED": "true",
    "ANONYMIZED_TELEMETRY": "False",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "HF_HUB_OFFLINE": "1",
    "DO_NOT_TRACK": "1",
    "PYTHONDONTWRITEBYTECODE": "1",
}

# --- llm

LLM = """\
# extra-openai-models.yaml in the folder that `llm logs path` names
- model_id: {model}
  model_name: {model}
  api_base: {url}/v1
  supports_tools: true
  supports_schema: true
"""
FUNCTION = 'def get_weather(city: str) -> str:\n    "Tell the weather of a city."\n    return {"Paris": "SUNNY-21", "Rome": "RAINY-15"}[city]\n'  # noqa: E501


def llm(run: Run) -> None:
    place = run.place
    place.environment = {"LLM_USER_PATH": str(place.home / "llm"), **QUIET}
    (place.home / "llm").mkdir()
    settings = LLM.replace("{url}", run.server.url).replace("{model}", "scripted")
    (place.home / "llm" / "extra-openai-models.yaml").write_text(settings, encoding="utf-8")
    binary = run.installed / "bin" / "llm"
    ask: list[str | Path] = [binary, "-m", "scripted"]
    tools = [*ask, "--functions", FUNCTION]
    if talk(
        run,
        ("a streamed reply", [*ask, "SAY-HELLO"], HELLO),
        ("a tool call and its result", [*tools, "WEATHER-PLEASE"], "It is sunny."),
        ("parallel calls", [*tools, "-c", "BOTH-PLEASE"], "One is sunny, one rainy."),
        (RESUMED, [*ask, "-c", "GO-ON"], GOES_ON),
        ("structured output", [*ask, "--schema", "city, sunny bool", "REPORT-PLEASE"], '"sunny": true'),
        (OVERFLOW, [*ask, LONG], lambda ended: ended.status and "context" in ended.said),
    ):
        stopped(run, [*ask, "NEVER-END"])


# --- aider

AIDER = """\
export OPENAI_API_BASE={url}/v1
export OPENAI_API_KEY=none # or the server's key
aider --model openai/{model}
"""
EDIT = (
    'I change it.\n\nhello.py\n```python\n<<<<<<< SEARCH\nprint("old")\n=======\nprint("new")\n>>>>>>> REPLACE\n```\n'
)


def aider(run: Run) -> None:
    place = run.place
    place.environment = {"OPENAI_API_BASE": f"{run.server.url}/v1", "OPENAI_API_KEY": "none", **QUIET}
    made = place.work / "hello.py"
    made.write_text('print("old")\n', "utf-8")

    def edited(_: Ended) -> bool:
        return made.read_text("utf-8") == 'print("new")\n'

    flags = ["--model", "openai/scripted", "--edit-format", "diff", "--no-git", "--yes-always", "--no-check-update"]
    flags += ["--no-show-model-warnings", "--no-analytics", "--no-show-release-notes", "--no-pretty", "--map-tokens=0"]
    ask: list[str | Path] = [run.installed / "bin" / "aider", *flags]
    again = [*ask, "--restore-chat-history"]
    if talk(
        run,
        ("a streamed reply", [*ask, "--message", "/ask SAY-HELLO"], HELLO),
        ("an edit of a file", [*ask, "--message", "EDIT-IT", "hello.py"], edited),
        (RESUMED, [*again, "--message", "/ask GO-ON"], GOES_ON),
        (OVERFLOW, [*ask, "--message", "/ask " + LONG], lambda ended: "context" in ended.said),
    ):
        stopped(run, [*ask, "--message", "/ask NEVER-END"])


AGENTS_SDK = """\
from agents import Agent, OpenAIResponsesModel
from openai import AsyncOpenAI

client = AsyncOpenAI(base_url="{url}/v1", api_key="none")
agent = Agent(name="Weather", model=OpenAIResponsesModel("{model}", client))  # or OpenAIChatCompletionsModel
"""
LANGCHAIN = """\
from langchain_openai import ChatOpenAI

chat = ChatOpenAI(model="{model}", base_url="{url}/v1", api_key="none")
"""
LLAMA_INDEX = """\
from llama_index.llms.openai_like import OpenAILike

llm = OpenAILike(
    model="{model}",
    api_base="{url}/v1",
    api_key="none",
    is_chat_model=True,
    is_function_calling_model=True,
    context_window=32768,  # the model's n_ctx
)
"""
LITELLM = """\
import litellm

litellm.completion(model="openai/{model}", api_base="{url}/v1", api_key="none", messages=[...])
litellm.completion(model="anthropic/{model}", api_base="{url}", api_key="none", messages=[...])
litellm.completion(model="ollama_chat/{model}", api_base="{url}", messages=[...])
"""
INSTRUCTOR = """\
import instructor
from openai import OpenAI

openai = OpenAI(base_url="{url}/v1", api_key="none")
client = instructor.from_openai(openai, mode=instructor.Mode.JSON_SCHEMA)
"""
SMOLAGENTS_SNIPPET = """\
from smolagents import OpenAIServerModel, ToolCallingAgent

agent = ToolCallingAgent(tools=[], model=OpenAIServerModel("{model}", api_base="{url}/v1", api_key="none"))
"""
PYDANTIC_AI = """\
from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

agent = Agent(OpenAIChatModel("{model}", provider=OpenAIProvider(base_url="{url}/v1", api_key="none")))
"""
OLLAMA = """\
from ollama import Client

client = Client(host="{url}")  # or: export OLLAMA_HOST={url}
"""
SMALL = 1 << 15


def library(name: str, version: str, package: str, folder: str, snippet: str, loop: str, lines: list[Line]) -> Program:
    return Program(name, version, package, folder, snippet, lines, script(loop), context=SMALL)


LIBRARIES = (
    library("openai-agents", "0.24.0", "openai-agents", "agents", AGENTS_SDK, "agents_sdk", COMMON),
    library("langchain-openai", "1.7.3", "langchain-openai", "agents", LANGCHAIN, "langchain_loop", COMMON),
    library("Pydantic AI", "2.68.0", "pydantic-ai-slim", "agents", PYDANTIC_AI, "pydantic_ai_loop", COMMON),
    library("smolagents", "1.26.0", "smolagents", "agents", SMOLAGENTS_SNIPPET, "smolagents_loop", SMOLAGENTS),
    library("ollama", "0.6.3", "ollama", "agents", OLLAMA, "ollama_client", COMMON),
    library("LlamaIndex", "0.8.1", "llama-index-llms-openai-like", "routers", LLAMA_INDEX, "llama_index_agent", COMMON),
    library("litellm", "1.106.2", "litellm", "routers", LITELLM, "litellm_routes", COMMON),
    library("instructor", "1.17.0", "instructor", "instructor", INSTRUCTOR, "instructor_modes", COMMON),
    Program("llm", "0.36", "llm", "agents", LLM, COMMON, llm, context=SMALL),
    Program(
        "aider", "0.86.2", "aider-chat", "aider", AIDER, [*COMMON, Line("EDIT-IT", says(EDIT))], aider, context=SMALL
    ),
)  # fmt: skip
FIM = """\
" llama.vim
let g:llama_config = {'endpoint_fim': '{url}/infill', 'endpoint_inst': '{url}/v1/chat/completions'}
" llama.vscode: "llama-vscode.endpoint": "{url}"
" Continue: provider: llama.cpp, apiBase: {url}
"""
FILLING = [*COMMON, Line("FILL-PLEASE", says("answer = 42"), plain=True)]
EDITORS = (library("FIM editors", "as of 2026-11", "", "agents", FIM, "fim_editors", FILLING),)
"""Editors that fill in the middle are no packages of a registry: `loops/fim_editors.py` sends what they send."""
