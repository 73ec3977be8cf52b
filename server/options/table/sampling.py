"""The samplers' part of the option table: defaults of the requests' sampling parameters.

Names and defaults are those of `SamplingParams` (llama.cpp common/common.h, common_params_sampling), flags and
variables llama-server's.
"""

from typing import Annotated, ClassVar

from pydantic import Field

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

    n_predict: Annotated[Int, option("-n", "--predict", "--n-predict", env="LLAMA_ARG_N_PREDICT"), Field(ge=-1)] = -1
    """Most tokens of a completion whose request names no max_tokens; -1 = until the context ends."""
    reverse_prompt: Annotated[
        TextList, option("-r", "--reverse-prompt", metavar="TEXT", text=unescape, repeat=True)
    ] = ()
    """Stop strings of requests that name none."""
    grammar: Annotated[
        str, option("--grammar", metavar="GBNF", replaces=("grammar_file", "json_schema", "json_schema_file"))
    ] = ""
    """Grammar that holds for requests that bring no grammar, schema or tools of their own."""
    grammar_file: Annotated[
        FilePath | None,
        option("--grammar-file", metavar="FILE", is_path=True, replaces=("grammar", "json_schema", "json_schema_file")),
    ] = None
    """File with that grammar."""
    json_schema: Annotated[
        JsonObject,
        option("-j", "--json-schema", metavar="JSON", replaces=("grammar", "grammar_file", "json_schema_file")),
    ] = Field(default_factory=dict)
    """JSON Schema in place of that grammar; thoughts may come before what it holds."""
    json_schema_file: Annotated[
        FilePath | None,
        option(
            "-jf",
            "--json-schema-file",
            metavar="FILE",
            is_path=True,
            replaces=("grammar", "grammar_file", "json_schema"),
        ),
    ] = None
    """File with that schema."""
    special: Annotated[Bool, option("-sp", "--special")] = False
    """Control tokens are text, too, the one that ends a reply among them."""
    samplers: Annotated[Samplers, option("--samplers", metavar="A;B;C", replaces=("sampler_seq",))] = DEFAULT_SAMPLERS
    """The samplers and their order, separated by ';'."""
    sampler_seq: Annotated[
        SamplerChars,
        option("--sampler-seq", "--sampling-seq", metavar="LETTERS", replaces=("samplers",)),
    ] = ""
    """The samplers as one letter each, e.g. edskypmxt; empty = as samplers says."""
    seed: Annotated[Int, option("-s", "--seed"), Field(ge=-1, le=0xFFFFFFFF)] = -1
    """Seed; -1 = a new one for each request."""
    ignore_eos: Annotated[Bool, option("--ignore-eos")] = False
    """Never sample an end-of-generation token."""
    temperature: Annotated[Float, option("--temp", "--temperature", env="LLAMA_ARG_TEMPERATURE")] = 0.8
    """Temperature; 0 or less = greedy."""
    top_k: Annotated[Int, option("--top-k", env="LLAMA_ARG_TOP_K")] = 40
    """Keep the k most likely tokens; 0 = off."""
    top_p: Annotated[Float, option("--top-p", env="LLAMA_ARG_TOP_P"), Field(ge=0)] = 0.95
    """Keep the most likely tokens up to this probability; 1 = off."""
    min_p: Annotated[Float, option("--min-p", env="LLAMA_ARG_MIN_P"), Field(ge=0)] = 0.05
    """Drop tokens below this part of the best one's probability; 0 = off."""
    top_n_sigma: Annotated[Float, option("--top-nsigma", "--top-n-sigma")] = -1.0
    """Keep tokens within n standard deviations of the best logit; negative = off."""
    xtc_probability: Annotated[Float, option("--xtc-probability"), Field(ge=0)] = 0.0
    """Probability that XTC removes the top tokens; 0 = off."""
    xtc_threshold: Annotated[Float, option("--xtc-threshold"), Field(ge=0)] = 0.1
    """XTC's probability threshold; above 0.5 = off."""
    typical_p: Annotated[Float, option("--typical", "--typical-p"), Field(ge=0)] = 1.0
    """Locally typical sampling; 1 = off."""
    repeat_last_n: Annotated[Int, option("--repeat-last-n"), Field(ge=0)] = 64
    """Last tokens that the penalties look at; 0 = off."""
    repeat_penalty: Annotated[Float, option("--repeat-penalty", env="LLAMA_ARG_REPEAT_PENALTY"), Field(gt=0)] = 1.0
    """Penalty of repeated tokens; 1 = off."""
    presence_penalty: Annotated[Float, option("--presence-penalty", env="LLAMA_ARG_PRESENCE_PENALTY")] = 0.0
    """Penalty of tokens that occurred; 0 = off."""
    frequency_penalty: Annotated[Float, option("--frequency-penalty", env="LLAMA_ARG_FREQUENCY_PENALTY")] = 0.0
    """Penalty by how often a token occurred; 0 = off."""
    dry_multiplier: Annotated[Float, option("--dry-multiplier"), Field(ge=0)] = 0.0
    """DRY: strength; 0 = off."""
    dry_base: Annotated[Float, option("--dry-base"), Field(ge=1)] = 1.75
    """DRY: base of the exponential penalty."""
    dry_allowed_length: Annotated[Int, option("--dry-allowed-length"), Field(ge=0)] = 2
    """DRY: repetitions up to this length are free."""
    dry_penalty_last_n: Annotated[Int, option("--dry-penalty-last-n"), Field(ge=0)] = 64
    """DRY: last tokens to look at; 0 = off."""
    dry_sequence_breakers: Annotated[
        Breakers, option("--dry-sequence-breaker", metavar="TEXT", text=unescape, repeat=True)
    ] = ("\n", ":", '"', "*")
    """DRY: strings that end a repetition; the flag may be repeated, none = no breakers."""
    mirostat: Annotated[Int, option("--mirostat"), Field(ge=0, le=2)] = 0
    """Mirostat version; replaces the other samplers except temperature; 0 = off."""
    mirostat_tau: Annotated[Float, option("--mirostat-ent"), Field(ge=0)] = 5.0
    """Mirostat: target entropy."""
    mirostat_eta: Annotated[Float, option("--mirostat-lr"), Field(ge=0)] = 0.1
    """Mirostat: learning rate."""
    adaptive_target: Annotated[Float, option("--adaptive-target"), Field(le=1)] = -1.0
    """Adaptive-p: select tokens near this probability; negative = off."""
    adaptive_decay: Annotated[Float, option("--adaptive-decay"), Field(ge=0, le=0.99)] = 0.9
    """Adaptive-p: how slowly the target adapts."""
    dynatemp_range: Annotated[Float, option("--dynatemp-range"), Field(ge=0)] = 0.0
    """Dynamic temperature: range around the temperature; 0 = off."""
    dynatemp_exponent: Annotated[Float, option("--dynatemp-exp")] = 1.0
    """Dynamic temperature: exponent."""
    min_keep: Annotated[Int, option(), Field(ge=0)] = 0
    """Tokens that top-p, min-p, typical and XTC leave at least."""
    logit_bias: Annotated[
        LogitBias,
        option("-l", "--logit-bias", metavar="TOKEN_ID+BIAS", text=lambda text: text.split(","), repeat=True),
    ] = ()
    """Added to a token's logit, e.g. 15043+1 or 15043-1; in YAML also a mapping {15043: 1.0}."""
