"""The command line of the tested server: attributes of the suite's ServerProcess as llama-server's flags.

`plugin.settings_of` adds attributes: ``model_path``, ``mmproj_path``, ``draft_path``, ``lora_paths``; ``is_router``, if
there is no model; ``remote_preset``, a repository with a preset.ini; ``hub_cache`` and ``hub_url`` of the substitutes.
"""

import os
from typing import Any

Command = tuple[list[Any], dict[str, str], str]
"""Arguments, environment, working directory."""


def _flags(*names: str, **other: str) -> dict[str, str]:
    """Return attribute -> flag: `names` have equal flags with hyphens, `other` attributes have other flags."""
    return {name: "--" + name.replace("_", "-") for name in names} | other


WITH_VALUE = _flags(
    *("seed", "pooling", "n_predict", "slot_save_path", "media_path", "cache_ram", "api_key", "cors_origins"),
    *("models_dir", "models_max", "models_preset", "sleep_idle_seconds", "mcp_servers_config", "mcp_servers_json"),
    *("spec_type", "spec_draft_n_max", "spec_draft_n_min", "spec_synth_len"),
    *("reasoning", "reasoning_format", "chat_template", "chat_template_file"),
    server_port="--port",
    server_host="--host",
    server_tools="--tools",
    server_tools_runtime="--tools-runtime",
    temperature="--temp",
    model_path="--model",
    mmproj_path="--mmproj",
    draft_path="--model-draft",
    model_alias="--alias",
    model_tags="--tags",
    remote_preset="--hf-repo",
    n_batch="--batch-size",
    n_ubatch="--ubatch-size",
    n_threads="--threads",
    n_gpu_layer="--n-gpu-layers",
    n_ctx="--ctx-size",
    n_slots="--parallel",
    n_ga="--grp-attn-n",
    n_ga_w="--grp-attn-w",
    ctk="-ctk",
    ctv="-ctv",
    fa="-fa",
)
"""Attribute -> flag with its value."""
SWITCH = _flags(
    *("kv_unified", "swa_full", "no_ui", "no_models_autoload", "no_mmproj", "no_cache_idle_slots", "ui_mcp_proxy"),
    server_continuous_batching="--cont-batching",
    server_embeddings="--embedding",
    server_reranking="--reranking",
    server_metrics="--metrics",
    debug="--verbose",
    enable_ctx_shift="--context-shift",
    backend_sampling="--backend_sampling",
)
"""Attribute -> flag that is passed if the attribute is true."""
ZERO_COUNTS = {"models_max", "spec_synth_len", "sleep_idle_seconds", "cache_ram", "temperature", "seed", "server_port"}
"""Attributes for which 0 is a value; for the others, 0 means that the flag is not passed."""


def command(settings: dict[str, Any], server: dict[str, Any]) -> Command:
    """Return the command of the target in `settings` for the attributes of the suite's `server`."""
    return {"llama-server": _llama_server, "llamapool": _llamapool}[settings["target"]](settings, server)


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
    """Return llama-server's flags and environment with Llamapool's program."""
    argv, env, _ = _llama_server(settings, server)
    for name in ("PYTHONPATH", "PYTHONDONTWRITEBYTECODE"):  # only for the test process
        env.pop(name, None)
    env["LLAMAPOOL_SERVER__MEDIA_FETCH"] = "127.0.0.1"  # the local hub serves the images; the default permits no host
    return [settings["python"], "-m", "server", *argv[1:]], env, settings["project"]
