"""What a request must be before it is queued. Pure, so that it is said at once, wherever the engine runs."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from server.engine.lora import Adapter
from server.engine.request import Adapters, Request
from server.errors import ContextExceeded, InvalidRequest


@dataclass(frozen=True, slots=True)
class Bounds:
    """What an engine that generates can take. Counts are tokens, but for the slots."""

    n_vocab: int
    n_ctx_seq: int
    n_slots: int
    n_ubatch: int
    media: bool  # whether there is a projector

    def check(self, request: Request) -> None:
        """Raises `InvalidRequest`, `ContextExceeded`."""
        prompt = request.prompt
        if not prompt:
            raise InvalidRequest("the prompt is empty", "prompt")
        if len(prompt) >= self.n_ctx_seq:
            raise ContextExceeded(len(prompt), self.n_ctx_seq)
        if request.media:
            self._check_media(request)
        elif min(prompt) < 0 or max(prompt) >= self.n_vocab:
            raise self._outside()
        if not -1 <= request.id_slot < self.n_slots:
            raise InvalidRequest(f"id_slot must be -1 or one of 0 to {self.n_slots - 1}", "id_slot")
        if request.n < 1:
            raise InvalidRequest("n must be at least 1", "n")

    def check_slot(self, id_slot: int) -> None:
        """Raises `InvalidRequest` for one that is not there."""
        if not 0 <= id_slot < self.n_slots:
            raise InvalidRequest(f"id_slot must be one of 0 to {self.n_slots - 1}", "id_slot")

    def _check_media(self, request: Request) -> None:
        """Also that the library can decode each of them."""
        at = n_media = 0
        for span in request.media:
            if not self.media or span.chunk is None or span.start < at or span.end > len(request.prompt):
                raise InvalidRequest("the prompt has media that are not this model's", "prompt")
            at, n_media = span.end, n_media + span.n_tokens
            if not span.chunk.causal and span.n_tokens > self.n_ubatch:
                raise InvalidRequest(
                    f"a medium has {span.n_tokens} tokens, which this model reads all at once, and n_ubatch is "
                    f"{self.n_ubatch}: set ubatch-size to {span.n_tokens} or more",
                    "prompt",
                )
        if sum(token < 0 for token in request.prompt) != n_media or max(request.prompt) >= self.n_vocab:
            raise self._outside()
        if request.prompt_logprobs:
            raise InvalidRequest("there are no log probabilities of a prompt with media", "prompt")

    def _outside(self) -> InvalidRequest:
        return InvalidRequest(f"a token id is outside the vocabulary (0 to {self.n_vocab - 1})", "prompt")


def check_adapters(wanted: Adapters, loaded: Sequence[Adapter]) -> None:
    """Raises `InvalidRequest` for an adapter that is not there."""
    ids = [id_ for id_, _ in wanted]
    if ids != sorted(set(ids)) or any(scale == 0.0 or not math.isfinite(scale) for _, scale in wanted):
        raise InvalidRequest("lora: ids must ascend, and scales be finite and not 0", "lora")
    if any(not 0 <= id_ < len(loaded) for id_ in ids):
        raise InvalidRequest(f"lora: there are {len(loaded)} adapters", "lora")
