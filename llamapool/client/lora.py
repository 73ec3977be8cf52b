"""``/lora-adapters``."""

from typing import Any

from llamapool.client.replies import LoraAdapter
from llamapool.client.transport import EndpointFamily, as_objects

Adapters = list[LoraAdapter]  # inside the class, `list` is the method
Scales = list[dict[str, Any]]


class LoraClientAPI(EndpointFamily):
    """``client.lora``. All methods raise `LlamaCppError`."""

    def list(self) -> Adapters:
        """Return the loaded adapters with their default scales."""
        return [LoraAdapter.from_reply(adapter) for adapter in as_objects(self._transport.get("/lora-adapters"))]

    def set_scales(self, adapters: Scales) -> bool:
        """Set scales from ``[{"id", "scale"}, ...]``. Other adapters get 0. Return whether it succeeded."""
        return self._transport.post_object("/lora-adapters", adapters).get("success") is True
