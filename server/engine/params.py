"""The engine's settings, as plain values."""

import math
from dataclasses import dataclass, field, replace
from pathlib import Path

LOOKUP = "lookup"
"""The default speculation type: n-gram lookup in the text so far, used when it pays."""

CPU_ITL_MS, GPU_ITL_MS = 300.0, 60.0
"""Automatic targets. A GPU decodes a token in 5 to 30 ms, so a step of 300 ms would be a visible pause."""

PREFILL_ONLY_S = 3.0
"""Target step time while no sequence decodes. It limits how long new and cancelled requests wait. Shorter steps would
have fewer tokens than one evaluation of the library: 512 tokens took 3 s at a depth of 12,000 tokens on two cores
(benchmarks/experiments.md).
"""


@dataclass(frozen=True, slots=True)
class EngineParams:
    """How one instance batches, queues and caches, and which CPUs it uses."""

    max_queue: int = 256  # queued requests per instance before 429
    queue_timeout_s: float = 0.0  # longest wait for a slot; 0 = unlimited
    first_token_timeout_s: float = 0.0  # longest time from arrival to the first token; 0 = unlimited
    request_timeout_s: float = 0.0  # longest time from arrival to end; 0 = unlimited
    target_itl_ms: float = -1.0  # target step time for prefill chunks while slots decode; 0 = none, -1 = automatic
    max_prefill_tokens: int = 0  # most prefill tokens of a step that also decodes; 0 = no other limit
    max_prefills: int = 0  # most prompts that such a step prefills; 0 = unlimited
    min_chunk: int = 64  # smallest prefill budget of a step: smaller chunks take as long (`scheduler.TILE_TOKENS`)
    cache_prompt: bool = True
    slot_prompt_similarity: float = 0.1
    cache_disk: int = 0  # MiB of the disk tier, for all instances; 0 = off
    cache_disk_path: Path | str | None = None  # its folder or URL
    cache_disk_shared: bool = False  # with other processes
    cache_disk_secret: bytes = field(default=b"", repr=False)  # key that signs the files
    media_cache: int = 256  # MiB of cached media embeddings
    context_shift: bool = False  # a full context drops its older half and continues, if the model supports it
    n_keep: int = 0  # default of requests: prompt tokens kept by a context shift
    n_cache_reuse: int = 0  # default of requests; see `Request`
    ctx_checkpoints: int = 32  # checkpoints per slot for models whose memory cannot be truncated; 0 = none
    checkpoint_min_step: int = 8192  # tokens between checkpoints in the middle of a prompt
    cache_ram: int = -2  # MiB of the RAM tier, for all instances; -1 = no limit, -2 = automatic
    spec_type: str = "none"  # speculation types, separated by commas
    spec_ngram: tuple[int, int] = (3, 16)  # n-gram size and longest draft of drafts from the text
    spec_draft_max: int = 16  # longest draft of the draft model
    spec_draft_min: int = 0  # shorter drafts are dropped
    spec_draft_p_min: float = 0.0  # the draft model stops at a less probable token
    spec_synth: tuple[float, ...] = ()  # synthetic acceptance rate of each draft token after an accepted one
    backend_sampling: bool = False  # requests may sample in the compute graph
    special: bool = False  # control tokens are rendered as text
    gather_ms: float = 4.0  # longest wait for requests that arrive together, so that they share a batch
    cpus: tuple[
        frozenset[int], ...
    ] = ()  # CPUs of the compute threads, one set for all instances or one each; none = any
    prio: int = 0  # priority of the compute threads: low (-1), normal, medium, high, realtime (3)
    check_integrity: bool = False  # verify the accounting after every step (slow; for debugging)

    @property
    def disk_place(self) -> Path | str | None:
        """Path or URL of the disk tier; None = off."""
        return self.cache_disk_path if self.cache_disk else None

    @property
    def target_s(self) -> float:
        """Target duration of a step in seconds while other sequences decode; infinity = none."""
        return (self.target_itl_ms if self.target_itl_ms >= 0 else CPU_ITL_MS) / 1e3 or math.inf

    def on_device(self, *, is_gpu: bool) -> "EngineParams":
        """Return the settings with the automatic step target of the device that computes."""
        return self if self.target_itl_ms >= 0 or not is_gpu else replace(self, target_itl_ms=GPU_ITL_MS)

    @property
    def asked_spec_type(self) -> str:
        """The speculation types that were requested explicitly, as llama-server shows them."""
        return ",".join(kind for kind in self.spec_type.split(",") if kind != LOOKUP) or "none"

    @property
    def looks_up(self) -> bool:
        """Whether drafts are made from n-grams of the text."""
        return "ngram-" in self.spec_type or LOOKUP in self.spec_type

    @property
    def drafts(self) -> bool:
        """Whether drafts are made by a draft model or MTP heads."""
        return "draft-" in self.spec_type

    @property
    def n_draft_max(self) -> int:
        """The largest number of draft tokens per sequence and step."""
        return max(self.spec_ngram[1] if self.looks_up else 0, self.spec_draft_max if self.drafts else 0)
