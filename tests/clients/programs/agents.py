"""Coding agents for the command line: Codex CLI, Claude Code, opencode.

The loop of each agent has a tool call, parallel calls, an image in a tool result, a resumed session in a later process,
a context overflow and a cancelled stream.
"""

import json
import re
import sys
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from tests.clients.programs.harness import ProcessResult
from tests.clients.programs.loops import library_tools
from tests.clients.programs.loops.library_tools import N_TOOLS
from tests.clients.programs.program import Program, Run, call_message, json_lines, text_message
from tests.clients.programs.scripted_model import ScriptLine
from tests.media_files import png

NOTE, SECOND, THIRD = "NOTE-ALPHA", "NOTE-BETA", "NOTE-GAMMA"
WITHOUT_REASONING = ("mistral", "llama", "qwen3-coder")
ENDLESS_TOKENS = 100  # a reply with more decoded tokens is the endless one
IDLE_LIMIT_S = 20.0  # for slots to become idle
LONG = "OVERFLOW " + "lorem ipsum " * 10_000  # exceeds the context together with an agent's own prompt


def write_files(run: Run) -> None:
    for name, text in (("note.txt", NOTE), ("second.txt", SECOND), ("third.txt", THIRD)):
        (run.workspace.work / name).write_text(f"This file says {text}.\n", encoding="utf-8")
    (run.workspace.work / "picture.png").write_bytes(png(8, 8))


def script(read: Callable[[str], tuple[str, dict[str, object]]], needs: str, *more: ScriptLine) -> list[ScriptLine]:
    """Return the lines for the common steps. `read` returns the agent's tool call that reads a file."""
    return [
        ScriptLine("SAY-HELLO", text_message("Hello from the script."), needs),
        ScriptLine("READ-ONE", call_message(read("note.txt")), needs),
        ScriptLine(NOTE, text_message("The first note was read."), needs),
        ScriptLine("READ-BOTH", call_message(read("second.txt"), read("third.txt")), needs),
        # Families with one call in a message read the third note in a turn of its own. Results arrive in any order.
        ScriptLine(SECOND, call_message(read("third.txt")), needs, lacks=THIRD),
        ScriptLine(THIRD, text_message("Both notes were read."), needs),
        ScriptLine("GO-ON", text_message("The session goes on."), needs),
        ScriptLine("THINK-FIRST", text_message("It is four.", reasoning="Two and two."), needs),
        ScriptLine("picture.png", text_message("The image was seen."), needs),  # the cue is in the call itself
        ScriptLine("NEVER-END", text_message("and on "), needs, repeat=2000),
        ScriptLine("OVERFLOW", text_message("A summary of the conversation.")),
        *more,
    ]


def is_streaming(run: Run) -> bool:
    """Return whether the endless reply has started."""
    slots = run.server.process.get("/slots")
    return any(slot["is_processing"] and slot["next_token"][0]["n_decoded"] > ENDLESS_TOKENS for slot in slots)


def check_cancellation(run: Run, command: Sequence[str | Path]) -> None:
    """Check that the slot becomes idle after the program was interrupted in the middle of a stream."""
    result = run.workspace.run(command, limit_s=40, stop_when=lambda: is_streaming(run))
    deadline = time.monotonic() + IDLE_LIMIT_S
    disconnected = False
    while (run.server.n_busy_slots() or not disconnected) and time.monotonic() < deadline:
        time.sleep(0.05)
        disconnected = any(request["disconnected"] for request in run.server.requests())
    run.check("a cancelled stream", disconnected and not run.server.n_busy_slots(), result)


def succeeded(result: ProcessResult, text: str) -> bool:
    """Return whether the program ended with status 0 and printed `text`."""
    return result.status == 0 and text in result.out


CommandStep = tuple[str, Sequence[str | Path], str | Callable[[ProcessResult], object]]
"""The name of a step, its command, and the expected text of its output or a check of its result."""
HELLO = "Hello from the script."
RESUMED, GOES_ON = "a resumed session", "The session goes on."
OVERFLOW = "a context overflow is reported"


def run_steps(run: Run, *steps: CommandStep) -> bool:
    """Run and check the steps. If the first one fails, skip the others and return False."""
    for n, (name, command, expected) in enumerate(steps):
        result = run.workspace.run(command)
        done = run.check(name, succeeded(result, expected) if isinstance(expected, str) else expected(result), result)
        if not n and not done:
            return False
    return True


def common_steps(
    run: Run, start: Sequence[str | Path], resume: Sequence[str | Path], reasoning: str, *flags: str
) -> list[CommandStep]:
    """Return the steps that all agents have. ``reasoning``: a pattern in the output of an agent that received
    reasoning, which ``flags`` enable; not checked for families without reasoning.
    """

    def reasoned(result: ProcessResult) -> bool:
        return succeeded(result, "It is four.") and (
            run.family in WITHOUT_REASONING or re.search(reasoning, result.out) is not None
        )

    return [
        ("a streamed reply", [*start, "SAY-HELLO"], HELLO),
        ("a tool call and its result", [*resume, "READ-ONE of the notes"], "The first note was read."),
        ("parallel calls", [*resume, "READ-BOTH of the others"], "Both notes were read."),
        ("reasoning", [*resume, *flags, "THINK-FIRST"], reasoned),
        ("an image in a tool result", [*resume, "SHOW-PICTURE"], "The image was seen."),
    ]


# --- Codex CLI

CODEX = """\
# ~/.codex/config.toml
model = "{model}"
model_provider = "llamapool"
model_context_window = 65536 # the model's n_ctx
show_raw_agent_reasoning = true

[model_providers.llamapool]
name = "Llamapool"
base_url = "{url}/v1"
wire_api = "responses"
"""
CODEX_BINARY = "node_modules/@openai/codex-*/vendor/*/bin/codex"
CODEX_OVERFLOW = "ran out of room in the model's context window"  # its text for context_length_exceeded
CODEX_REASONING = r'"reasoning_output_tokens":[1-9]'  # it prints only summaries, which the server does not send
CODEX_DEFERS = "features.tool_search_always_defer_mcp_tools=true"  # even a few
GENERATION_PROMPT = 16  # tokens at the end of a prompt that the next prompt need not contain
LIBRARY = Path(library_tools.__file__)
PATCH = "*** Begin Patch\n*** Add File: made.txt\n+PATCHED\n*** End Patch\n"


def codex(run: Run) -> None:
    write_files(run)
    home = run.workspace.home / ".codex"
    home.mkdir()
    config = CODEX.replace("{url}", run.server.url)
    (home / "config.toml").write_text(config.replace("{model}", "scripted"), encoding="utf-8")
    flags = ["--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox", "--json"]
    start: list[str | Path] = [run.binary(CODEX_BINARY), "exec", *flags]
    resume: list[str | Path] = [run.binary(CODEX_BINARY), "exec", "resume", *flags, "--last"]
    patched_file = run.workspace.work / "made.txt"

    def patched(result: ProcessResult) -> bool:
        return succeeded(result, "The patch is in.") and patched_file.exists()

    def overflowed(result: ProcessResult) -> bool:
        replies = (request["reply"] for request in run.server.requests())
        return any("context_length_exceeded" in reply for reply in replies) and CODEX_OVERFLOW in result.out

    if not run_steps(
        run,
        *common_steps(run, start, resume, CODEX_REASONING),
        ("a tool of a namespace", [*resume, "CALL-AGENTS"], "The agents were waited for."),
        ("a custom tool with a grammar", [*resume, "-m", "gpt-5.5", "PATCH-IT"], patched),
    ):
        return
    check_tool_search(run, [*start, "-m", "gpt-5.5", "-c", CODEX_DEFERS])
    run_steps(run, (RESUMED, [*resume, "GO-ON"], GOES_ON))
    run_steps(run, (OVERFLOW, [*resume, LONG], overflowed))
    check_cancellation(run, [*start, "NEVER-END"])


def check_tool_search(run: Run, command: Sequence[str | Path]) -> None:
    """Check a session in which the model searches a tool of an MCP server with many tools, calls it and reads its
    result. The prefix before the definition of the tool must stay cached.
    """
    n_before = len(run.server.requests())
    options = {"command": sys.executable, "args": [str(LIBRARY)], "startup_timeout_sec": 120, "required": True}
    flags = [
        word for name, value in options.items() for word in ("-c", f"mcp_servers.library.{name}={json.dumps(value)}")
    ]
    result = run.workspace.run([*command, *flags, "FIND-TOOL"])
    requests = run.server.requests()[n_before:]
    run.check(f"a tool found by search among {N_TOOLS} MCP tools", succeeded(result, "The page was read."), result)
    usages = [usage for request in requests if (usage := codex_usage(request["reply"]))]
    counts = [(usage["input_tokens"], usage["input_tokens_details"]["cached_tokens"]) for usage in usages]
    is_cached = all(cached >= n_prompt - GENERATION_PROMPT for (n_prompt, _), (_, cached) in pairwise(counts))
    run.check("the prompt stays cached when a tool is found", len(counts) > 1 and is_cached, str(counts))


def codex_usage(reply: str) -> dict[str, Any] | None:
    """Return the usage in the last event of a stream."""
    lines = [line for line in reply.splitlines() if line.startswith('data: {"type":"response.completed"')]
    return json.loads(lines[-1].removeprefix("data: "))["response"]["usage"] if lines else None


CODEX_SCRIPT = script(
    lambda file: ("exec_command", {"cmd": f"cat {file}"}),
    "exec_command",
    ScriptLine("SHOW-PICTURE", call_message(("view_image", {"path": "picture.png"}))),
    ScriptLine("CALL-AGENTS", call_message(("multi_agent_v1__wait_agent", {"targets": [], "timeout_ms": 12345}))),
    ScriptLine("12345", text_message("The agents were waited for.")),
    ScriptLine("PATCH-IT", call_message(("apply_patch", {"input": PATCH}))),
    ScriptLine("+PATCHED", text_message("The patch is in.")),
    ScriptLine("FIND-TOOL", call_message(("tool_search", {"query": "shelf 42", "limit": 1}))),
    ScriptLine("shelf_42", call_message(("mcp__library__shelf_42", {"page": 7}))),
    ScriptLine("BOOK-42", text_message("The page was read.")),
)

# --- Claude Code

CLAUDE = """\
export ANTHROPIC_BASE_URL={url}
export ANTHROPIC_AUTH_TOKEN=none # or the server's key
export ANTHROPIC_MODEL={model}
export ANTHROPIC_DEFAULT_HAIKU_MODEL={model} # titles and summaries
export CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC=1
claude
"""
CLAUDE_BINARY = "node_modules/@anthropic-ai/claude-code-*/claude"


def claude(run: Run) -> None:
    write_files(run)
    workspace = run.workspace
    workspace.environment = {**exports(CLAUDE, run.server.url), "IS_SANDBOX": "1"}
    binary = run.binary(CLAUDE_BINARY)
    flags = ["--output-format", "stream-json", "--verbose", "--dangerously-skip-permissions"]
    start: list[str | Path] = [binary, "-p", *flags]
    resume: list[str | Path] = [binary, "-p", *flags, "--continue"]
    if run_steps(
        run,
        *common_steps(run, [*start, "--include-partial-messages"], resume, '"type":"thinking"'),
        (RESUMED, [*resume, "GO-ON"], GOES_ON),
        (OVERFLOW, [*resume, LONG], lambda result: "too long" in result.out),
    ):
        check_cancellation(run, [*start, "NEVER-END"])


def exports(snippet: str, url: str) -> dict[str, str]:
    """Return the variables that a shell snippet exports."""
    words = (line.split(" #")[0].removeprefix("export ") for line in snippet.splitlines() if line.startswith("export "))
    values = dict(word.split("=", 1) for word in words)
    return {name: value.replace("{url}", url).replace("{model}", "scripted").strip() for name, value in values.items()}


CLAUDE_SCRIPT = script(
    lambda file: ("Bash", {"command": f"cat {file}", "description": "Show a note"}),
    "Bash",
    ScriptLine("SHOW-PICTURE", call_message(("Read", {"file_path": "{work}/picture.png"}))),
)

# --- opencode

OPENCODE = """\
// opencode.json
{
  "$schema": "https://opencode.ai/config.json",
  "provider": {
    "llamapool": {
      "npm": "@ai-sdk/openai-compatible",
      "name": "Llamapool",
      "options": { "baseURL": "{url}/v1" },
      "models": { "{model}": { "name": "{model}", "limit": { "context": 65536, "output": 8192 } } }
    }
  },
  "model": "llamapool/{model}",
  "small_model": "llamapool/{model}"
}
"""
OPENCODE_BINARY = "node_modules/opencode-*-*/bin/opencode"


def opencode(run: Run) -> None:
    write_files(run)
    workspace = run.workspace
    settings = json.loads(OPENCODE.split("\n", 1)[1].replace("{url}", run.server.url).replace("{model}", "scripted"))
    settings |= {"permission": "allow", "autoupdate": False, "share": "disabled"}
    (workspace.work / "opencode.json").write_text(json.dumps(settings), encoding="utf-8")
    workspace.environment = {"OPENCODE_DISABLE_MODELS_FETCH": "1", "OPENCODE_DISABLE_LSP_DOWNLOAD": "1"}
    start: list[str | Path] = [run.binary(OPENCODE_BINARY), "run", "--format", "json"]
    resume: list[str | Path] = [*start, "--continue"]
    if run_steps(
        run,
        *common_steps(run, start, resume, '"type":"reasoning"', "--thinking"),
        (RESUMED, [*resume, "GO-ON"], GOES_ON),
        (OVERFLOW, [*resume, LONG], lambda result: json_lines(result.out)),
    ):
        check_cancellation(run, [*start, "NEVER-END"])


OPENCODE_SCRIPT = script(
    lambda file: ("bash", {"command": f"cat {file}"}),
    "todowrite",
    ScriptLine("SHOW-PICTURE", call_message(("read", {"filePath": "{work}/picture.png"})), "todowrite"),
)

AGENTS = (
    Program(
        "Codex CLI", "0.169.0", "@openai/codex", "npm/codex", CODEX, CODEX_SCRIPT, codex,
        ("qwen3", "gpt-oss", "mistral", "llama"), flags=("-a", "gpt-5.5"),
    ),
    Program(
        "Claude Code", "2.1.330", "@anthropic-ai/claude-code", "npm/claude-code", CLAUDE, CLAUDE_SCRIPT, claude,
        ("qwen3", "qwen3.5", "gpt-oss", "mistral", "llama"),
    ),
    Program(
        "opencode", "1.18.33", "opencode-ai", "npm/opencode", OPENCODE, OPENCODE_SCRIPT, opencode,
        ("qwen3-coder", "mistral"),
    ),
)  # fmt: skip
