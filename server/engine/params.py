"""The engine's own settings, as plain values."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class EngineParams:
    """How one instance batches and queues."""

    max_queue: int = 256  # requests that may wait for a slot before 429
    target_itl_ms: float = 250.0  # the step time that prompt chunks adapt to while other slots generate
    min_chunk: int = 32  # prompt tokens a step carries at least, in all
    cache_prompt: bool = True
    slot_prompt_similarity: float = 0.1
    context_shift: bool = False  # a full context drops its older half and goes on, where the model can
    n_keep: int = 0  # of requests that say nothing: prompt tokens that a shift keeps
    n_cache_reuse: int = 0  # of requests that say nothing; see `Request`
    ctx_checkpoints: int = 32  # states inside a slot, where the model's memory can't be cut; 0 = none
    checkpoint_min_step: int = 8192  # tokens between those that are not at a prompt's ends
    cache_ram: int = -2  # MiB of prompt states in RAM; -1 = no limit, -2 = automatic
    spec_type: str = "none"  # "ngram-simple": guess from the text so far
    spec_ngram_size: int = 3  # tokens that must repeat for a guess
    spec_draft_max: int = 16  # longest guess
    gather_ms: float = 4.0  # longest wait for requests that are being prepared
    check_integrity: bool = False  # prove the accounting after every step (slow; for debugging)
