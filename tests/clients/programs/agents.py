"""Coding agents of the command line: Codex CLI, Claude Code, opencode.

Each reads a note, reads two notes at once, is shown a picture, goes on in a later process, is given more than the
context holds, and is stopped in the middle of a stream.
"""

import json
import re
import sys
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from tests.clients.programs.harness import Ended
from tests.clients.programs.loops import library_tools
from tests.clients.programs.loops.library_tools import N_TOOLS
from tests.clients.programs.program import Program, Run, calls, events, says
from tests.clients.programs.scripted_model import Line
from tests.media_files import png

NOTE, SECOND, THIRD = "NOTE-ALPHA", "NOTE-BETA", "NOTE-GAMMA"
WITHOUT_THOUGHTS = ("mistral", "llama", "qwen3-coder")
BEGUN = 100  # tokens
IDLE_S = 20.0
LONG = "OVERFLOW " + "lorem ipsum " * 10_000  # with an agent's own prompt more than its context


def prepare(run: Run) -> None:
    for name, text in (("note.txt", NOTE), ("second.txt", SECOND), ("third.txt", THIRD)):
        (run.place.work / name).write_text(f"This file says {text}.\n", encoding="utf-8")
    (run.place.work / "picture.png").write_bytes(png(8, 8))


def lines(read: Callable[[str], tuple[str, dict[str, object]]], needs: str, *more: Line) -> list[Line]:
    """The part that all agents go through; `read` is a call that shows a file."""
    return [
        Line("SAY-HELLO", says("Hello from the script."), needs),
        Line("READ-ONE", calls(read("note.txt")), needs),
        Line(NOTE, says("The first note was read."), needs),
        Line("READ-BOTH", calls(read("second.txt"), read("third.txt")), needs),
        # It came alone, since its family shows one call at a time; results come in the order in which they are there.
        Line(SECOND, calls(read("third.txt")), needs, lacks=THIRD),
        Line(THIRD, says("Both notes were read."), needs),
        Line("GO-ON", says("The session goes on."), needs),
        Line("THINK-FIRST", says("It is four.", thoughts="Two and two."), needs),
        Line("picture.png", says("I went on behind the picture."), needs),  # in the call itself
        Line("NEVER-END", says("and on "), needs, repeat=2000),
        Line("OVERFLOW", says("A summary of what was said.")),
        *more,
    ]


def streaming(run: Run) -> bool:
    """Whether the reply that never ends has begun (others are shorter)."""
    slots = run.server.process.get("/slots")
    return any(slot["is_processing"] and slot["next_token"][0]["n_decoded"] > BEGUN for slot in slots)


def stopped(run: Run, command: Sequence[str | Path]) -> None:
    """A stream that is cut off by the program's end frees its slot."""
    ended = run.place.run(command, limit_s=40, stop_when=lambda: streaming(run))
    until = time.monotonic() + IDLE_S
    left = False
    while (run.server.busy() or not left) and time.monotonic() < until:
        time.sleep(0.05)
        left = any(one["left"] for one in run.server.asked())
    run.check("a cancelled stream", left and not run.server.busy(), ended)


def answered(ended: Ended, text: str) -> bool:
    """Ended well, and showed `text`."""
    return ended.status == 0 and text in ended.out


Turn = tuple[str, Sequence[str | Path], str | Callable[[Ended], object]]
"""A step's name, its command, and the text that this shows; or whether it did what it should."""
HELLO = "Hello from the script."
RESUMED, GOES_ON = "a resumed session", "The session goes on."
OVERFLOW = "a context overflow is reported"


def talk(run: Run, *turns: Turn) -> bool:
    """Check one step after another; whether the first is done, without which none of the others can be."""
    for n, (name, command, wanted) in enumerate(turns):
        ended = run.place.run(command)
        done = run.check(name, answered(ended, wanted) if isinstance(wanted, str) else wanted(ended), ended)
        if not n and not done:
            return False
    return True


def opening(
    run: Run, start: Sequence[str | Path], again: Sequence[str | Path], thoughts: str, *flags: str
) -> list[Turn]:
    """The turns that all coding agents begin with. ``thoughts``: what shows that there were some, for a family that has
    any; ``flags`` ask for them.
    """

    def thought(ended: Ended) -> bool:
        return answered(ended, "It is four.") and (
            run.family in WITHOUT_THOUGHTS or re.search(thoughts, ended.out) is not None
        )

    return [
        ("a streamed reply", [*start, "SAY-HELLO"], HELLO),
        ("a tool call and its result", [*again, "READ-ONE of the notes"], "The first note was read."),
        ("parallel calls", [*again, "READ-BOTH of the others"], "Both notes were read."),
        ("reasoning", [*again, *flags, "THINK-FIRST"], thought),
        ("an image in a tool result", [*again, "SHOW-PICTURE"], "I went on behind the picture."),
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
CODEX_OVERFLOW = "ran out of room in the model's context window"  # what it says of that code alone
CODEX_THOUGHT = r'"reasoning_output_tokens":[1-9]'  # it shows summaries alone, and thoughts have none
CODEX_DEFERS = "features.tool_search_always_defer_mcp_tools=true"  # however few there are
OPENING = 16  # tokens that a prompt opens the answer with, where the next one may differ
LIBRARY = Path(library_tools.__file__)
PATCH = "*** Begin Patch\n*** Add File: made.txt\n+PATCHED\n*** End Patch\n"


def codex(run: Run) -> None:
    prepare(run)
    home = run.place.home / ".codex"
    home.mkdir()
    config = CODEX.replace("{url}", run.server.url)
    (home / "config.toml").write_text(config.replace("{model}", "scripted"), encoding="utf-8")
    flags = ["--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox", "--json"]
    start: list[str | Path] = [run.binary(CODEX_BINARY), "exec", *flags]
    again: list[str | Path] = [run.binary(CODEX_BINARY), "exec", "resume", *flags, "--last"]
    made = run.place.work / "made.txt"

    def patched(ended: Ended) -> bool:
        return answered(ended, "The patch is in.") and made.exists()

    def overflowed(ended: Ended) -> bool:
        codes = (one for one in run.server.asked() if "context_length_exceeded" in one["reply"])
        return any(codes) and CODEX_OVERFLOW in ended.out

    if not talk(
        run,
        *opening(run, start, again, CODEX_THOUGHT),
        ("a tool of a namespace", [*again, "CALL-AGENTS"], "The agents were waited for."),
        ("a custom tool with a grammar", [*again, "-m", "gpt-5.5", "PATCH-IT"], patched),
    ):
        return
    found_tool(run, [*start, "-m", "gpt-5.5", "-c", CODEX_DEFERS])
    talk(run, (RESUMED, [*again, "GO-ON"], GOES_ON))
    talk(run, (OVERFLOW, [*again, LONG], overflowed))
    stopped(run, [*start, "NEVER-END"])


def found_tool(run: Run, command: Sequence[str | Path]) -> None:
    """A session with an MCP server of many tools, of which the model searches one, calls it and reads its result."""
    n_before = len(run.server.asked())
    options = {"command": sys.executable, "args": [str(LIBRARY)], "startup_timeout_sec": 120, "required": True}
    server = [
        word for name, value in options.items() for word in ("-c", f"mcp_servers.library.{name}={json.dumps(value)}")
    ]
    ended = run.place.run([*command, *server, "FIND-TOOL"])
    asked = run.server.asked()[n_before:]
    run.check(
        f"a tool that a search finds among {N_TOOLS} of an MCP server", answered(ended, "The page was read."), ended
    )
    usages = [usage for one in asked if (usage := codex_usage(one["reply"]))]
    counts = [(usage["input_tokens"], usage["input_tokens_details"]["cached_tokens"]) for usage in usages]
    kept = all(cached >= n_prompt - OPENING for (n_prompt, _), (_, cached) in pairwise(counts))
    run.check("the prompt stays cached when a tool is found", len(counts) > 1 and kept, str(counts))
    told = ", ".join(f"{n_prompt:,} ({cached:,} cached)" for n_prompt, cached in counts)
    run.notes.append(
        f"{run.family}: a search among {N_TOOLS} tools took {len(counts)} requests of {told} prompt tokens."
    )


def codex_usage(reply: str) -> dict[str, Any] | None:
    """The usage that the last event of a stream tells."""
    lines = [line for line in reply.splitlines() if line.startswith('data: {"type":"response.completed"')]
    return json.loads(lines[-1].removeprefix("data: "))["response"]["usage"] if lines else None


CODEX_LINES = lines(
    lambda file: ("exec_command", {"cmd": f"cat {file}"}),
    "exec_command",
    Line("SHOW-PICTURE", calls(("view_image", {"path": "picture.png"}))),
    Line("CALL-AGENTS", calls(("multi_agent_v1__wait_agent", {"targets": [], "timeout_ms": 12345}))),
    Line("12345", says("The agents were waited for.")),
    Line("PATCH-IT", calls(("apply_patch", {"input": PATCH}))),
    Line("+PATCHED", says("The patch is in.")),
    Line("FIND-TOOL", calls(("tool_search", {"query": "shelf 42", "limit": 1}))),
    Line("shelf_42", calls(("mcp__library__shelf_42", {"page": 7}))),
    Line("BOOK-42", says("The page was read.")),
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
    prepare(run)
    place = run.place
    place.environment = {**exports(CLAUDE, run.server.url), "IS_SANDBOX": "1"}
    binary = run.binary(CLAUDE_BINARY)
    flags = ["--output-format", "stream-json", "--verbose", "--dangerously-skip-permissions"]
    start: list[str | Path] = [binary, "-p", *flags]
    again: list[str | Path] = [binary, "-p", *flags, "--continue"]
    if talk(
        run,
        *opening(run, [*start, "--include-partial-messages"], again, '"type":"thinking"'),
        (RESUMED, [*again, "GO-ON"], GOES_ON),
        (OVERFLOW, [*again, LONG], lambda ended: "too long" in ended.out),
    ):
        stopped(run, [*start, "NEVER-END"])


def exports(snippet: str, url: str) -> dict[str, str]:
    """The variables of a shell snippet."""
    words = (line.split(" #")[0].removeprefix("export ") for line in snippet.splitlines() if line.startswith("export "))
    made = dict(word.split("=", 1) for word in words)
    return {name: value.replace("{url}", url).replace("{model}", "scripted").strip() for name, value in made.items()}


CLAUDE_LINES = lines(
    lambda file: ("Bash", {"command": f"cat {file}", "description": "Show a note"}),
    "Bash",
    Line("SHOW-PICTURE", calls(("Read", {"file_path": "{work}/picture.png"}))),
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
    prepare(run)
    place = run.place
    settings = json.loads(OPENCODE.split("\n", 1)[1].replace("{url}", run.server.url).replace("{model}", "scripted"))
    settings |= {"permission": "allow", "autoupdate": False, "share": "disabled"}
    (place.work / "opencode.json").write_text(json.dumps(settings), encoding="utf-8")
    place.environment = {"OPENCODE_DISABLE_MODELS_FETCH": "1", "OPENCODE_DISABLE_LSP_DOWNLOAD": "1"}
    start: list[str | Path] = [run.binary(OPENCODE_BINARY), "run", "--format", "json"]
    again: list[str | Path] = [*start, "--continue"]
    if talk(
        run,
        *opening(run, start, again, '"type":"reasoning"', "--thinking"),
        (RESUMED, [*again, "GO-ON"], GOES_ON),
        (OVERFLOW, [*again, LONG], lambda ended: events(ended.out)),
    ):
        stopped(run, [*start, "NEVER-END"])


OPENCODE_LINES = lines(
    lambda file: ("bash", {"command": f"cat {file}"}),
    "todowrite",
    Line("SHOW-PICTURE", calls(("read", {"filePath": "{work}/picture.png"})), "todowrite"),
)

AGENTS = (
    Program(
        "Codex CLI", "0.169.0", "@openai/codex", "npm/codex", CODEX, CODEX_LINES, codex,
        ("qwen3", "gpt-oss", "mistral", "llama"), flags=("-a", "gpt-5.5"),
    ),
    Program(
        "Claude Code", "2.1.330", "@anthropic-ai/claude-code", "npm/claude-code", CLAUDE, CLAUDE_LINES, claude,
        ("qwen3", "qwen3.5", "gpt-oss", "mistral", "llama"),
    ),
    Program(
        "opencode", "1.18.33", "opencode-ai", "npm/opencode", OPENCODE, OPENCODE_LINES, opencode,
        ("qwen3-coder", "mistral"),
    ),
)  # fmt: skip
