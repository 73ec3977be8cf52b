"""Flags of llama-server that stand for several others: a model of its hub with settings for it (llama.cpp
common/arg.cpp, from ``--embd-gemma-default`` on)."""

from collections.abc import Iterator, Sequence

_FIM = "--port 8012 -ub 1024 -b 1024 -c 0 --cache-reuse 256"
_OSS = "--port 8013 -ub 2048 -b 32768 -np 2 -c 262144 --temp 1 --top-p 1 --top-k 0 --min-p 0.01"
_HALF = "-hfd ggml-org/Qwen2.5-Coder-0.5B-Q8_0-GGUF"
_VISION = "--port 8014 -c 0"

SHORTHANDS = {
    "--embd-gemma-default": "-hf ggml-org/embeddinggemma-300M-qat-q4_0-GGUF -hff embeddinggemma-300M-qat-Q4_0.gguf "
    "--port 8011 -ub 2048 -b 2048 -np 32 -c 65536 --embedding",
    "--fim-qwen-1.5b-default": "-hf ggml-org/Qwen2.5-Coder-1.5B-Q8_0-GGUF -hff qwen2.5-coder-1.5b-q8_0.gguf " + _FIM,
    "--fim-qwen-3b-default": "-hf ggml-org/Qwen2.5-Coder-3B-Q8_0-GGUF -hff qwen2.5-coder-3b-q8_0.gguf " + _FIM,
    "--fim-qwen-7b-default": "-hf ggml-org/Qwen2.5-Coder-7B-Q8_0-GGUF -hff qwen2.5-coder-7b-q8_0.gguf " + _FIM,
    "--fim-qwen-7b-spec": f"-hf ggml-org/Qwen2.5-Coder-7B-Q8_0-GGUF -hff qwen2.5-coder-7b-q8_0.gguf {_HALF} {_FIM}",
    "--fim-qwen-14b-spec": f"-hf ggml-org/Qwen2.5-Coder-14B-Q8_0-GGUF -hff qwen2.5-coder-14b-q8_0.gguf {_HALF} {_FIM}",
    "--fim-qwen-30b-default": "-hf ggml-org/Qwen3-Coder-30B-A3B-Instruct-Q8_0-GGUF "
    "-hff qwen3-coder-30b-a3b-instruct-q8_0.gguf " + _FIM,
    "--gpt-oss-20b-default": "-hf ggml-org/gpt-oss-20b-GGUF -hff gpt-oss-20b-mxfp4.gguf " + _OSS,
    "--gpt-oss-120b-default": "-hf ggml-org/gpt-oss-120b-GGUF " + _OSS,
    "--vision-gemma-4b-default": "-hf ggml-org/gemma-3-4b-it-qat-GGUF " + _VISION,
    "--vision-gemma-12b-default": "-hf ggml-org/gemma-3-12b-it-qat-GGUF " + _VISION,
    "--spec-default": "--spec-type ngram-mod --spec-ngram-mod-n-match 24 --spec-ngram-mod-n-min 48 "
    "--spec-ngram-mod-n-max 64",
}


def written_out(words: Sequence[str]) -> Iterator[str]:
    """`words` with what shorthands stand for in their place; what comes later counts, as everywhere."""
    for word in words:
        yield from SHORTHANDS[word].split() if word in SHORTHANDS else (word,)
