"""``llamapool launch AGENT``: start a coding agent that uses a running server.

Each agent gets its own configuration folder, so the user's configuration of the agent does not change. docs/clients.md
shows the same settings for agents that are started without this command.
"""

import json
import os
import shlex
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from server.cli.connection import ClientParser, Connection
from server.errors import LlamapoolError

_DESCRIPTION = """Start a coding agent configured for a running server: codex, claude, opencode or aider.
Words after -- are passed to the agent: llamapool launch codex -- exec "Explain this repository"

The agent's configuration and sessions are stored in $XDG_STATE_HOME/llamapool/agents/AGENT
(default: ~/.local/state). The environment is printed before the agent starts."""
_MIN_N_CTX = 65536  # claude's instructions and tools take 34,000 tokens; also assumed for a model that is not loaded
_MAX_OUTPUT = 8192  # tokens that opencode and aider reserve for a reply


@dataclass(frozen=True, slots=True)
class Target:
    """The server and model of an agent. ``n_ctx``: tokens of context per request. ``folder``: its configuration."""

    url: str
    key: str
    model: str
    n_ctx: int
    folder: Path


Setup = tuple[dict[str, str], str, str]
"""An agent's environment, and its configuration file: name and text, or ""."""


def _codex(target: Target) -> Setup:
    text = f"""model = {json.dumps(target.model)}
model_provider = "llamapool"
model_context_window = {target.n_ctx}
show_raw_agent_reasoning = true

[model_providers.llamapool]
name = "Llamapool"
base_url = {json.dumps(target.url + "/v1")}
env_key = "AGENT_API_KEY"
wire_api = "responses"
"""
    return {"CODEX_HOME": str(target.folder), "AGENT_API_KEY": target.key}, "config.toml", text


def _claude(target: Target) -> Setup:
    models = ("ANTHROPIC_MODEL", *(f"ANTHROPIC_DEFAULT_{size}_MODEL" for size in ("HAIKU", "SONNET", "OPUS")))
    environment = {
        "ANTHROPIC_BASE_URL": target.url,
        "ANTHROPIC_AUTH_TOKEN": target.key,
        **dict.fromkeys(models, target.model),
        "CLAUDE_CODE_MAX_CONTEXT_TOKENS": str(target.n_ctx),
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "CLAUDE_CONFIG_DIR": str(target.folder),
    }
    return environment, "", ""


def _opencode(target: Target) -> Setup:
    limit = {"context": target.n_ctx, "output": min(_MAX_OUTPUT, target.n_ctx // 2)}
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "name": "Llamapool",
        "options": {"baseURL": f"{target.url}/v1", "apiKey": "{env:AGENT_API_KEY}"},
        "models": {target.model: {"name": target.model, "limit": limit}},
    }
    name = f"llamapool/{target.model}"
    config = {"provider": {"llamapool": provider}, "model": name, "small_model": name}
    environment = {
        "OPENCODE_CONFIG": str(target.folder / "opencode.json"),
        "XDG_DATA_HOME": str(target.folder / "data"),
        "AGENT_API_KEY": target.key,
    }
    return environment, "opencode.json", json.dumps(config, indent=2)


def _aider(target: Target) -> Setup:
    name = f"openai/{target.model}"
    metadata = {
        "max_input_tokens": target.n_ctx,
        "max_output_tokens": min(_MAX_OUTPUT, target.n_ctx // 2),
        "litellm_provider": "openai",
        "mode": "chat",
    }
    environment = {
        "OPENAI_API_BASE": f"{target.url}/v1",
        "OPENAI_API_KEY": target.key,
        "AIDER_MODEL": name,
        "AIDER_MODEL_METADATA_FILE": str(target.folder / "models.json"),
        "AIDER_ANALYTICS": "false",
        "AIDER_CHECK_UPDATE": "false",
    }
    return environment, "models.json", json.dumps({name: metadata}, indent=2)


AGENTS: dict[str, tuple[Callable[[Target], Setup], str]] = {
    "codex": (_codex, "npm install -g @openai/codex"),
    "claude": (_claude, "npm install -g @anthropic-ai/claude-code"),
    "opencode": (_opencode, "npm install -g opencode-ai"),
    "aider": (_aider, "pip install aider-chat"),
}
"""The configuration of each agent, and the command that installs it."""


def main(argv: Sequence[str]) -> int:
    """Replace this process with the agent. Raises LlamapoolError if the agent or the server is missing."""
    own, passed = list(argv), list[str]()
    if "--" in own:
        at = own.index("--")
        own, passed = own[:at], own[at + 1 :]
    parser = ClientParser("launch", _DESCRIPTION)
    parser.add_argument("agent", choices=AGENTS)
    options = parser.parse_args(own)
    configure, install = AGENTS[options.agent]
    program = shutil.which(options.agent)
    if program is None:
        raise LlamapoolError(f"{options.agent} is not on the PATH; install it: {install}")
    model = Connection(options.url, options.api_key).model(options.model)
    state = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state")
    folder = state / "llamapool" / "agents" / options.agent
    n_ctx = model.get("meta", {}).get("n_ctx") or _MIN_N_CTX
    if n_ctx < _MIN_N_CTX:
        print(f"llamapool: {model['id']} has {n_ctx} tokens of context per request; agents need {_MIN_N_CTX} or more "
              "(llamapool --ctx-size)", file=sys.stderr)  # fmt: skip
    target = Target(options.url.rstrip("/"), options.api_key or "none", model["id"], n_ctx, folder)
    environment, file, text = configure(target)
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    if file:
        (folder / file).write_text(text, encoding="utf-8")
        print(f"wrote {folder / file}", file=sys.stderr)
    for name, value in environment.items():
        shown = "****" if value == options.api_key and value else shlex.quote(value)
        print(f"{name}={shown}", file=sys.stderr)
    print(shlex.join([options.agent, *passed]), file=sys.stderr, flush=True)
    inherited = {name: value for name, value in os.environ.items() if name != "ANTHROPIC_API_KEY"}
    os.execve(program, [program, *passed], inherited | environment)  # noqa: S606
