"""How the server under test is started: attributes of the suite's ServerProcess as llama-server's flags.

Beside the suite's own attributes there are (`plugin.settings_of`): ``model_path``, ``mmproj_path``, ``draft_path``,
``lora_paths``; ``is_router``, when there is no model; ``remote_preset``, a repository with a preset.ini; ``hub_cache``
and ``hub_url``, where the substitutes are.
"""

import os
from typing import Any

Command = tuple[list[Any], dict[str, str], str]
"""Arguments, environment, working directory."""

WITH_VALUE = {
    "server_port": "--port",
    "server_host": "--host",
    "temperature": "--temp",
    "seed": "--seed",
    "model_path": "--model",
    "mmproj_path": "--mmproj",
    "draft_path": "--model-draft",
    "models_dir": "--models-dir",
    "models_max": "--models-max",
    "models_preset": "--models-preset",
    "cors_origins": "--cors-origins",
    "n_batch": "--batch-size",
    "n_ubatch": "--ubatch-size",
    "n_threads": "--threads",
    "n_gpu_layer": "--n-gpu-layers",
    "pooling": "--pooling",
    "model_alias": "--alias",
    "model_tags": "--tags",
    "n_ctx": "--ctx-size",
    "n_slots": "--parallel",
    "ctk": "-ctk",
    "ctv": "-ctv",
    "fa": "-fa",
    "n_predict": "--n-predict",
    "slot_save_path": "--slot-save-path",
    "n_ga": "--grp-attn-n",
    "n_ga_w": "--grp-attn-w",
    "spec_type": "--spec-type",
    "api_key": "--api-key",
    "spec_draft_n_max": "--spec-draft-n-max",
    "spec_draft_n_min": "--spec-draft-n-min",
    "spec_synth_len": "--spec-synth-len",
    "reasoning_format": "--reasoning-format",
    "reasoning": "--reasoning",
    "chat_template": "--chat-template",
    "chat_template_file": "--chat-template-file",
    "media_path": "--media-path",
    "sleep_idle_seconds": "--sleep-idle-seconds",
    "cache_ram": "--cache-ram",
    "server_tools": "--tools",
    "server_tools_runtime": "--tools-runtime",
    "mcp_servers_config": "--mcp-servers-config",
    "mcp_servers_json": "--mcp-servers-json",
    "remote_preset": "--hf-repo",
}
"""Flags that take the attribute's value."""
SWITCH = {
    "server_continuous_batching": "--cont-batching",
    "server_embeddings": "--embedding",
    "server_reranking": "--reranking",
    "server_metrics": "--metrics",
    "kv_unified": "--kv-unified",
    "swa_full": "--swa-full",
    "debug": "--verbose",
    "enable_ctx_shift": "--context-shift",
    "no_ui": "--no-ui",
    "no_models_autoload": "--no-models-autoload",
    "no_mmproj": "--no-mmproj",
    "no_cache_idle_slots": "--no-cache-idle-slots",
    "ui_mcp_proxy": "--ui-mcp-proxy",
    "backend_sampling": "--backend_sampling",
}
"""Flags that are given when the attribute is true."""
ZERO_COUNTS = {"models_max", "spec_synth_len", "sleep_idle_seconds", "cache_ram", "temperature", "seed", "server_port"}
"""Where 0 is a value; elsewhere the suite means by it that nothing is given."""


def command(settings: dict[str, Any], server: dict[str, Any]) -> Command:
    """How to start the target of `settings`, for what the suite says of its `server`."""
    make = {"llama-server": _llama_server, "ours": _llamapool}[settings["target"]]
    return make(settings, server)


def _llama_server(settings: dict[str, Any], server: dict[str, Any]) -> Command:
    argv = [settings["binary"]]
    for name, flag in WITH_VALUE.items():
        value = server.get(name)
        if value is not None and value is not False and value != "" and (value != 0 or name in ZERO_COUNTS):
            argv += [flag, value]
    argv += [flag for name, flag in SWITCH.items() if server.get(name)]
    argv.append("--slots" if server.get("server_slots") else "--no-slots")
    argv.append("--jinja" if server.get("jinja") else "--no-jinja")
    for path in server["lora_paths"]:
        argv += ["--lora", path]
    if server.get("spec_synth_rates") is not None:
        argv += ["--spec-synth-rates", ",".join(map(str, server["spec_synth_rates"]))]
    if server.get("offline") and server["is_router"]:
        argv.append("--offline")
    argv += settings["extra_args"]
    env = os.environ | {"LLAMA_CACHE": server["hub_cache"], "MODEL_ENDPOINT": server["hub_url"]}
    env["LLAMA_SERVER_DEBUG_FAKE_TIMING"] = "1"
    if server.get("gcp_compat"):
        env |= {"AIP_MODE": "PREDICTION", "AIP_HTTP_PORT": str(server["server_port"])}
    return argv, env, settings["tests_dir"]


def _llamapool(settings: dict[str, Any], server: dict[str, Any]) -> Command:
    """llama-server's flags and environment are Llamapool's: only the program has another name."""
    argv, env, _ = _llama_server(settings, server)
    for name in ("PYTHONPATH", "PYTHONDONTWRITEBYTECODE"):  # the test process's own
        env.pop(name, None)
    env["LLAMAPOOL_SERVER__MEDIA_FETCH"] = (
        "127.0.0.1"  # where the stand-in has the pictures; nothing is fetched by default
    )
    return [settings["python"], "-m", "server", *argv[1:]], env, settings["project"]
