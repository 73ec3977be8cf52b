"""The samplers' part of the option table: defaults of the requests' sampling parameters.

Names and defaults are those of `SamplingParams` (llama.cpp common/common.h, common_params_sampling), flags and
variables llama-server's.
"""

from typing import ClassVar

from server.engine.request import DEFAULT_SAMPLERS
from server.options.table.option import SettingsModel, option
from server.options.table.values import (
    Bool,
    Breakers,
    FilePath,
    Float,
    Int,
    JsonObject,
    LogitBias,
    SamplerChars,
    Samplers,
    TextList,
    unescape,
)


class SamplingSettings(SettingsModel):
    """Defaults of the requests' sampling parameters."""

    group: ClassVar[str] = "Sampling defaults"

    n_predict: Int = option(-1, "-n --predict --n-predict", env="LLAMA_ARG_N_PREDICT", ge=-1)
    """Most tokens of a completion without max_tokens; -1 = until the context is full."""
    reverse_prompt: TextList = option((), "-r --reverse-prompt", metavar="TEXT", text=unescape, repeat=True)
    """Stop strings of requests without any."""
    grammar: str = option("", "--grammar", metavar="GBNF", replaces=("grammar_file", "json_schema", "json_schema_file"))
    """GBNF grammar for requests without a grammar, schema or tools."""
    grammar_file: FilePath | None = option(
        None, "--grammar-file", replaces=("grammar", "json_schema", "json_schema_file")
    )
    """File with the grammar."""
    json_schema: JsonObject = option(
        {}, "-j --json-schema", metavar="JSON", replaces=("grammar", "grammar_file", "json_schema_file")
    )
    """JSON Schema instead of the grammar; reasoning before it is allowed."""
    json_schema_file: FilePath | None = option(
        None, "-jf --json-schema-file", replaces=("grammar", "grammar_file", "json_schema")
    )
    """File with the JSON Schema."""
    special: Bool = option(False, "-sp --special")
    """Render control tokens as text, including end-of-generation tokens."""
    samplers: Samplers = option(DEFAULT_SAMPLERS, "--samplers", metavar="A;B;C", replaces=("sampler_seq",))
    """Samplers in order, separated by ';'."""
    sampler_seq: SamplerChars = option("", "--sampler-seq --sampling-seq", metavar="LETTERS", replaces=("samplers",))
    """Samplers as one letter each, e.g. edskypmxt; empty = as samplers."""
    seed: Int = option(-1, "-s --seed", ge=-1, le=0xFFFFFFFF)
    """Random seed; -1 = a new one per request."""
    ignore_eos: Bool = option(False, "--ignore-eos")
    """Never sample an end-of-generation token."""
    temperature: Float = option(0.8, "--temp --temperature", env="LLAMA_ARG_TEMPERATURE")
    """Temperature; 0 or less = greedy."""
    top_k: Int = option(40, "--top-k", env=True)
    """Keep the k most likely tokens; 0 = off."""
    top_p: Float = option(0.95, "--top-p", env=True, ge=0)
    """Keep the most likely tokens up to this probability; 1 = off."""
    min_p: Float = option(0.05, "--min-p", env=True, ge=0)
    """Drop tokens below this part of the best one's probability; 0 = off."""
    top_n_sigma: Float = option(-1.0, "--top-nsigma --top-n-sigma")
    """Keep tokens within n standard deviations of the best logit; negative = off."""
    xtc_probability: Float = option(0.0, "--xtc-probability", ge=0)
    """Probability that XTC removes the top tokens; 0 = off."""
    xtc_threshold: Float = option(0.1, "--xtc-threshold", ge=0)
    """XTC: probability threshold; above 0.5 = off."""
    typical_p: Float = option(1.0, "--typical --typical-p", ge=0)
    """Locally typical sampling; 1 = off."""
    repeat_last_n: Int = option(64, "--repeat-last-n", ge=0)
    """Number of last tokens that penalties consider; 0 = off."""
    repeat_penalty: Float = option(1.0, "--repeat-penalty", env=True, gt=0)
    """Penalty for repeated tokens; 1 = off."""
    presence_penalty: Float = option(0.0, "--presence-penalty", env=True)
    """Penalty for tokens that occurred; 0 = off."""
    frequency_penalty: Float = option(0.0, "--frequency-penalty", env=True)
    """Penalty proportional to how often a token occurred; 0 = off."""
    dry_multiplier: Float = option(0.0, "--dry-multiplier", ge=0)
    """DRY: penalty multiplier; 0 = off."""
    dry_base: Float = option(1.75, "--dry-base", ge=1)
    """DRY: base of the exponential penalty."""
    dry_allowed_length: Int = option(2, "--dry-allowed-length", ge=0)
    """DRY: repetitions up to this length are not penalized."""
    dry_penalty_last_n: Int = option(64, "--dry-penalty-last-n", ge=0)
    """DRY: number of last tokens considered; 0 = off."""
    dry_sequence_breakers: Breakers = option(
        ("\n", ":", '"', "*"), "--dry-sequence-breaker", metavar="TEXT", text=unescape, repeat=True
    )
    """DRY: strings that interrupt a repetition; the flag may be repeated; none = no breakers."""
    mirostat: Int = option(0, "--mirostat", ge=0, le=2)
    """Mirostat version; replaces all samplers except temperature; 0 = off."""
    mirostat_tau: Float = option(5.0, "--mirostat-ent", ge=0)
    """Mirostat: target entropy."""
    mirostat_eta: Float = option(0.1, "--mirostat-lr", ge=0)
    """Mirostat: learning rate."""
    adaptive_target: Float = option(-1.0, "--adaptive-target", le=1)
    """Adaptive-p: target probability of selected tokens; negative = off."""
    adaptive_decay: Float = option(0.9, "--adaptive-decay", ge=0, le=0.99)
    """Adaptive-p: decay of the moving average; higher values adapt more slowly."""
    dynatemp_range: Float = option(0.0, "--dynatemp-range", ge=0)
    """Dynamic temperature: range around the temperature; 0 = off."""
    dynatemp_exponent: Float = option(1.0, "--dynatemp-exp")
    """Dynamic temperature: exponent."""
    min_keep: Int = option(0, ge=0)
    """Least tokens that top-p, min-p, typical and XTC keep."""
    backend_sampling: Bool = option(False, "-bs --backend-sampling", env="LLAMA_ARG_BACKEND_SAMPLING")
    """Sample in the compute graph for requests that need no logits (docs/speculation.md). A request opts out with
    backend_sampling: false.
    """
    logit_bias: LogitBias = option(
        (), "-l --logit-bias", metavar="TOKEN_ID+BIAS", text=lambda text: text.split(","), repeat=True
    )
    """Bias added to a token's logit, e.g. 15043+1 or 15043-1; in YAML also a mapping {15043: 1.0}."""
