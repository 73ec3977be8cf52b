"""The engine's own settings, as plain values."""

import math
from dataclasses import dataclass, field
from pathlib import Path

LOOKUP = "lookup"
"""The kind of guesses that are made where nobody asked for any: from the text so far, where that pays."""


@dataclass(frozen=True, slots=True)
class EngineParams:
    """How one instance batches and queues, and where it runs."""

    max_queue: int = 256  # requests that may wait for a slot before 429
    queue_timeout_s: float = 0.0  # longest wait for a slot; 0 = any
    request_timeout_s: float = 0.0  # longest time from a request's arrival to its end; 0 = any
    target_itl_ms: float = 300.0  # the step time that prompt chunks adapt to while other slots generate; 0 = any
    min_chunk: int = 64  # prompt tokens a step carries at least, in all: fewer are attended to one by one (prefill)
    cache_prompt: bool = True
    slot_prompt_similarity: float = 0.1
    cache_disk: int = 0  # MiB of prompt states on disk of all instances together; 0 = off
    cache_disk_path: Path | str | None = None  # their folder, or its address
    cache_disk_shared: bool = False  # with other processes
    cache_disk_secret: bytes = field(default=b"", repr=False)  # signs them
    media_cache: int = 256  # MiB of embeddings of media
    context_shift: bool = False  # a full context drops its older half and goes on, where the model can
    n_keep: int = 0  # of requests that say nothing: prompt tokens that a shift keeps
    n_cache_reuse: int = 0  # of requests that say nothing; see `Request`
    ctx_checkpoints: int = 32  # states inside a slot, where the model's memory can't be cut; 0 = none
    checkpoint_min_step: int = 8192  # tokens between those that are not at a prompt's ends
    cache_ram: int = -2  # MiB of prompt states in RAM, of all instances; -1 = no limit, -2 = automatic
    spec_type: str = "none"  # kinds of guesses, separated by commas
    spec_lookup_size: int = 3  # tokens that must repeat for a guess that nobody asked for
    spec_lookup_max: int = 16  # longest guess that nobody asked for
    spec_ngram_simple_size_n: int = 12  # of llama-server's kinds of guesses from the text: see `speculate/lookup.py`
    spec_ngram_simple_size_m: int = 48
    spec_ngram_map_k_size_n: int = 12
    spec_ngram_map_k_size_m: int = 48
    spec_ngram_map_k4v_size_n: int = 12
    spec_ngram_map_k4v_size_m: int = 48
    spec_ngram_map_k4v_min_hits: int = 1
    spec_ngram_mod_n_match: int = 24
    spec_ngram_mod_n_min: int = 48
    spec_ngram_mod_n_max: int = 64
    lookup_cache_static: Path | None = None
    lookup_cache_dynamic: Path | None = None
    spec_draft_max: int = 16  # longest guess of the draft model
    spec_draft_min: int = 0  # a shorter one is not checked
    spec_draft_p_min: float = 0.0  # the draft model stops at a less probable token
    spec_synth: tuple[float, ...] = ()  # how often each guess of a step is taken by chance; for benchmarks
    backend_sampling: bool = False  # there may be requests whose tokens are chosen in the graph
    special: bool = False  # control tokens are text, too
    gather_ms: float = 4.0  # longest wait for requests that are being prepared
    cpus: tuple[frozenset[int], ...] = ()  # that compute: of all instances, or of each; none = any
    prio: int = 0  # of the threads that compute: low (-1), normal, medium, high, as high as can be (3)
    check_integrity: bool = False  # prove the accounting after every step (slow; for debugging)

    @property
    def disk_place(self) -> Path | str | None:
        """Where prompt states are kept on disk; None = nowhere."""
        return self.cache_disk_path if self.cache_disk else None

    @property
    def target_s(self) -> float:
        """Seconds that a step may take while others stream; infinity: any."""
        return self.target_itl_ms / 1e3 or math.inf

    @property
    def asked_spec_type(self) -> str:
        """The kinds of guesses that were asked for, as llama-server shows them."""
        return ",".join(kind for kind in self.spec_type.split(",") if kind != LOOKUP) or "none"

    @property
    def looks_up(self) -> bool:
        """Guesses come from the text so far."""
        return "ngram-" in self.spec_type or LOOKUP in self.spec_type

    @property
    def drafts(self) -> bool:
        """Guesses come from a draft model, or the model's own heads."""
        return "draft-" in self.spec_type

    @property
    def n_guesses(self) -> int:
        """Tokens of a sequence that may be guessed at once."""
        most = {
            LOOKUP: self.spec_lookup_max,
            "ngram-simple": self.spec_ngram_simple_size_m,
            "ngram-map-k": self.spec_ngram_map_k_size_m,
            "ngram-map-k4v": self.spec_ngram_map_k4v_size_m,
            "ngram-mod": self.spec_ngram_mod_n_max,
            "ngram-cache": 8,
            "draft-simple": self.spec_draft_max,
            "draft-mtp": self.spec_draft_max,
        }
        return max(most.get(kind, 0) for kind in self.spec_type.split(","))
