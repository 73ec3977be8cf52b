"""``/lora-adapters``."""

from typing import Any

from llamapool.client.replies import LoraAdapter
from llamapool.client.shape import as_objects
from llamapool.client.transport import Transport

Adapters = list[LoraAdapter]  # inside the class, `list` is the method
Scales = list[dict[str, Any]]


class LoraClientAPI:
    """``client.lora``. All raise `LlamaCppError`."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def list(self) -> Adapters:
        """Every adapter that the server has loaded, with the scale that applies to requests without their own."""
        return [LoraAdapter.from_reply(adapter) for adapter in as_objects(self._transport.get("/lora-adapters"))]

    def set_scales(self, adapters: Scales) -> bool:
        """Set scales from ``[{"id", "scale"}, ...]``; adapters that are not named get 0. True: it is done."""
        return self._transport.post_object("/lora-adapters", adapters).get("success") is True
