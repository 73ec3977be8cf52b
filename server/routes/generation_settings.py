"""llama-server's ``params`` object of /props and /slots (tools/server/server-task.cpp, task_params::to_json)."""

from typing import Any

from server.engine.request import SamplingParams

_SAMPLING = (
    *("seed", "temperature", "dynatemp_range", "dynatemp_exponent", "top_k", "top_p", "min_p", "top_n_sigma"),
    *("xtc_probability", "xtc_threshold", "typical_p", "repeat_last_n", "repeat_penalty", "presence_penalty"),
    *("frequency_penalty", "dry_multiplier", "dry_base", "dry_allowed_length", "dry_penalty_last_n"),
    *("mirostat", "mirostat_tau", "mirostat_eta", "adaptive_target", "adaptive_decay"),
)


def generation_settings(
    sampling: SamplingParams,
    *,
    max_tokens: int = -1,
    n_probs: int = 0,
    timings_per_token: bool = False,
) -> dict[str, Any]:
    """The reference's keys in its order. What this server has no notion of has the reference's neutral value."""
    return {
        **{name: getattr(sampling, name) for name in _SAMPLING},
        "max_tokens": max_tokens,
        "n_predict": max_tokens,
        "n_keep": 0,
        "n_discard": 0,
        "ignore_eos": sampling.ignore_eos,
        "stream": False,
        "n_probs": n_probs,
        "min_keep": sampling.min_keep,
        "chat_format": "Content-only",
        "reasoning_format": "none",
        "reasoning_in_content": False,
        "generation_prompt": "",
        "samplers": list(sampling.samplers),
        "speculative.types": "none",
        "timings_per_token": timings_per_token,
        "post_sampling_probs": False,
        "backend_sampling": False,
        "lora": [],
    }
