"""``/slots``."""

from typing import Any

from llamapool.client.replies import SlotInfo
from llamapool.client.transport import EndpointFamily, as_objects

Slots = list[SlotInfo]  # inside the class, `list` is the method


class SlotsClientAPI(EndpointFamily):
    """``client.slots``. All raise `LlamaCppError`; `NotSupported` without ``--slots`` or ``--slot-save-path``."""

    def list(self, fail_on_no_slot: bool = False) -> Slots:
        """Return the state of all slots. With `fail_on_no_slot`, raises `Unavailable` if all are busy."""
        params = {"fail_on_no_slot": "1"} if fail_on_no_slot else None
        return [SlotInfo.from_reply(slot) for slot in as_objects(self._transport.get("/slots", params))]

    def save(self, slot_id: int, filename: str) -> dict[str, Any]:
        """Save the slot's cache under `filename` in the server's directory: ``n_saved``, ``n_written``, ``timings``."""
        return self._act(slot_id, "save", {"filename": filename})

    def restore(self, slot_id: int, filename: str) -> dict[str, Any]:
        """Restore a saved cache into the slot: ``n_restored``, ``n_read``, ``timings``."""
        return self._act(slot_id, "restore", {"filename": filename})

    def erase(self, slot_id: int) -> dict[str, Any]:
        """Erase the slot's cache: ``n_erased``."""
        return self._act(slot_id, "erase", {})

    def _act(self, slot_id: int, action: str, body: dict[str, Any]) -> dict[str, Any]:
        return self._transport.post_object(f"/slots/{slot_id}", body, {"action": action})
