"""Python libraries, whose loops are separate scripts (`loops`), and two command-line programs."""

import time
from collections.abc import Callable
from pathlib import Path

from tests.clients.programs.agents import (
    GOES_ON,
    HELLO,
    IDLE_LIMIT_S,
    LONG,
    OVERFLOW,
    RESUMED,
    check_cancellation,
    run_steps,
)
from tests.clients.programs.harness import LOOP_LIMIT_S, ProcessResult
from tests.clients.programs.program import Program, Run, call_message, json_lines, text_message
from tests.clients.programs.scripted_model import ScriptLine

LOOPS = Path(__file__).parent / "loops"
REPORT = '{"city": "Paris", "sunny": true}'
TYPED = {"city": "Paris", "sunny": True}
PARIS, ROME = ("get_weather", {"city": "Paris"}), ("get_weather", {"city": "Rome"})
COMMON_SCRIPT = [
    ScriptLine("SAY-HELLO", text_message("Hello from the script.")),
    ScriptLine("WEATHER-PLEASE", call_message(PARIS)),
    ScriptLine("SUNNY-21", text_message("It is sunny.")),
    ScriptLine("BOTH-PLEASE", call_message(PARIS, ROME)),
    ScriptLine("RAINY-15", text_message("One is sunny, one rainy.")),
    ScriptLine("THINK-FIRST", text_message("It is four.", reasoning="Two and two.")),
    ScriptLine("GO-ON", text_message("The session goes on.")),
    ScriptLine("REPORT-PLEASE", text_message(REPORT)),
    ScriptLine("REPORT-FENCED", text_message(f"```json\n{REPORT}\n```")),
    ScriptLine("CALL-REPORT", call_message(("Report", TYPED))),
    ScriptLine("CALL-REPORT-TWICE", call_message(("Report", TYPED), ("Report", {"city": "Rome", "sunny": False}))),
    ScriptLine("CALL-PARTIAL", call_message(("PartialReport", TYPED))),
    ScriptLine("CALL-SUNNY", call_message(("Sunny", TYPED))),
    ScriptLine("CALL-ANOTHER", call_message(("Sunny", {"city": "Rome", "sunny": True}))),
    ScriptLine("CALL-FINAL", call_message(("final_result", TYPED))),
    ScriptLine("NEVER-END", text_message("and on "), repeat=2000),
]
CODE = 'Thought: it is short.\n<code>\nfinal_answer(get_weather(city="Paris") + "!")\n</code>'
SMOLAGENTS_SCRIPT = [
    COMMON_SCRIPT[0],
    ScriptLine("FINAL-WEATHER", call_message(PARIS)),
    ScriptLine("SUNNY-21", call_message(("final_answer", {"answer": "It is sunny."}))),
    ScriptLine("FINAL-BOTH", call_message(PARIS, ROME)),
    ScriptLine("RAINY-15", call_message(("final_answer", {"answer": "One is sunny, one rainy."}))),
    # If the results have the other order:
    ScriptLine("SUNNY-21", call_message(("final_answer", {"answer": "One is sunny, one rainy."})), "RAINY-15"),
    ScriptLine("FINAL-GO-ON", call_message(("final_answer", {"answer": "The session goes on."}))),
    ScriptLine("CODE-PLEASE", text_message(CODE)),
    COMMON_SCRIPT[-1],
]


def script_loop(name: str) -> Callable[[Run], None]:
    """Return the loop that runs the script `name` in `LOOPS`. The script prints its steps as JSON."""

    def loop(run: Run) -> None:
        run.workspace.environment = {"LLAMAPOOL_URL": run.server.url, **QUIET}
        result = run.workspace.run([run.installed / "bin" / "python", LOOPS / f"{name}.py"], limit_s=LOOP_LIMIT_S)
        steps = [line for line in json_lines(result.out) if "step" in line]
        for step in steps:
            run.check(step["step"], step["done"], step.get("detail", ""))
        run.check("exit status 0", result.status == 0 and steps, result)
        deadline = time.monotonic() + IDLE_LIMIT_S
        while run.server.n_busy_slots() and time.monotonic() < deadline:
            time.sleep(0.05)
        run.check("all slots are free", not run.server.n_busy_slots())

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
    workspace = run.workspace
    workspace.environment = {"LLM_USER_PATH": str(workspace.home / "llm"), **QUIET}
    (workspace.home / "llm").mkdir()
    settings = LLM.replace("{url}", run.server.url).replace("{model}", "scripted")
    (workspace.home / "llm" / "extra-openai-models.yaml").write_text(settings, encoding="utf-8")
    binary = run.installed / "bin" / "llm"
    command: list[str | Path] = [binary, "-m", "scripted"]
    tools = [*command, "--functions", FUNCTION]
    if run_steps(
        run,
        ("a streamed reply", [*command, "SAY-HELLO"], HELLO),
        ("a tool call and its result", [*tools, "WEATHER-PLEASE"], "It is sunny."),
        ("parallel calls", [*tools, "-c", "BOTH-PLEASE"], "One is sunny, one rainy."),
        (RESUMED, [*command, "-c", "GO-ON"], GOES_ON),
        ("structured output", [*command, "--schema", "city, sunny bool", "REPORT-PLEASE"], '"sunny": true'),
        (OVERFLOW, [*command, LONG], lambda result: result.status and "context" in result.output),
    ):
        check_cancellation(run, [*command, "NEVER-END"])


# --- aider

AIDER = """\
export OPENAI_API_BASE={url}/v1
export OPENAI_API_KEY=none # or the server's key
aider --model openai/{model}
"""
EDIT = (
    'I change it.\n\nhello.py\n```python\n<<<<<<< SEARCH\nprint("old")\n=======\nprint("new")\n>>>>>>> REPLACE\n```\n'
)
AIDER_SCRIPT = [*COMMON_SCRIPT, ScriptLine("EDIT-IT", text_message(EDIT))]


def aider(run: Run) -> None:
    workspace = run.workspace
    workspace.environment = {"OPENAI_API_BASE": f"{run.server.url}/v1", "OPENAI_API_KEY": "none", **QUIET}
    file = workspace.work / "hello.py"
    file.write_text('print("old")\n', "utf-8")

    def edited(_: ProcessResult) -> bool:
        return file.read_text("utf-8") == 'print("new")\n'

    flags = ["--model", "openai/scripted", "--edit-format", "diff", "--no-git", "--yes-always", "--no-check-update"]
    flags += ["--no-show-model-warnings", "--no-analytics", "--no-show-release-notes", "--no-pretty", "--map-tokens=0"]
    command: list[str | Path] = [run.installed / "bin" / "aider", *flags]
    resume = [*command, "--restore-chat-history"]
    if run_steps(
        run,
        ("a streamed reply", [*command, "--message", "/ask SAY-HELLO"], HELLO),
        ("an edit of a file", [*command, "--message", "EDIT-IT", "hello.py"], edited),
        (RESUMED, [*resume, "--message", "/ask GO-ON"], GOES_ON),
        (OVERFLOW, [*command, "--message", "/ask " + LONG], lambda result: "context" in result.output),
    ):
        check_cancellation(run, [*command, "--message", "/ask NEVER-END"])


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
SMOLAGENTS = """\
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
SMALL_CONTEXT = 1 << 15


def library(
    name: str,
    version: str,
    package: str,
    folder: str,
    snippet: str,
    loop: str,
    script: list[ScriptLine] = COMMON_SCRIPT,
) -> Program:
    return Program(name, version, package, folder, snippet, script, script_loop(loop), context=SMALL_CONTEXT)


LIBRARIES = (
    library("openai-agents", "0.24.0", "openai-agents", "agents", AGENTS_SDK, "agents_sdk"),
    library("langchain-openai", "1.7.3", "langchain-openai", "agents", LANGCHAIN, "langchain_loop"),
    library("Pydantic AI", "2.68.0", "pydantic-ai-slim", "agents", PYDANTIC_AI, "pydantic_ai_loop"),
    library("smolagents", "1.26.0", "smolagents", "agents", SMOLAGENTS, "smolagents_loop", SMOLAGENTS_SCRIPT),
    library("ollama", "0.6.3", "ollama", "agents", OLLAMA, "ollama_client"),
    library("LlamaIndex", "0.8.1", "llama-index-llms-openai-like", "routers", LLAMA_INDEX, "llama_index_agent"),
    library("litellm", "1.106.2", "litellm", "routers", LITELLM, "litellm_routes"),
    library("instructor", "1.17.0", "instructor", "instructor", INSTRUCTOR, "instructor_modes"),
    Program("llm", "0.36", "llm", "agents", LLM, COMMON_SCRIPT, llm, context=SMALL_CONTEXT),
    Program("aider", "0.86.2", "aider-chat", "aider", AIDER, AIDER_SCRIPT, aider, context=SMALL_CONTEXT),
)
FIM = """\
" llama.vim
let g:llama_config = {'endpoint_fim': '{url}/infill', 'endpoint_inst': '{url}/v1/chat/completions'}
" llama.vscode: "llama-vscode.endpoint": "{url}"
" Continue: provider: llama.cpp, apiBase: {url}
"""
FIM_SCRIPT = [*COMMON_SCRIPT, ScriptLine("FILL-PLEASE", text_message("answer = 42"), plain=True)]
EDITORS = (library("FIM editors", "as of 2026-11", "", "agents", FIM, "fim_editors", FIM_SCRIPT),)
"""Plugins of editors can not be installed from a registry; `loops/fim_editors.py` sends their requests."""
