"""What a slot holds, as a value that can be kept outside of the engine."""

from dataclasses import dataclass

from server.engine.kv.checkpoints import Checkpoints
from server.engine.lora import Tuning
from server.engine.media import Spans
from server.engine.request import Adapters


@dataclass(frozen=True, slots=True)
class SlotState:
    """``state`` are the library's own bytes of the sequence (llama_state_seq_get_data), ``tokens`` what is in it.

    ``n_exact`` of the tokens lie in cells that a fresh computation would give, too; a context shift or
    ``n_cache_reuse`` leaves others. ``media``: what negative tokens stand for.
    """

    tokens: list[int]
    state: bytes
    tuning: Tuning
    n_exact: int
    checkpoints: Checkpoints = ()
    media: Spans = ()

    @property
    def states(self) -> list[bytes]:
        """All that is bytes of the library's."""
        return [self.state, *(c.state for c in self.checkpoints)]

    @property
    def adapters(self) -> Adapters:
        """The LoRA set of its cells."""
        return self.tuning.adapters
