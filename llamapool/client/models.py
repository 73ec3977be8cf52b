"""``/v1/models``, and the endpoints of a server with several models."""

from urllib.parse import quote

from llamapool.client.replies import ModelInfo
from llamapool.client.stream import EventStream
from llamapool.client.transport import EndpointFamily, as_object, as_objects

Models = list[ModelInfo]  # inside the class, `list` is the method


class ModelsClientAPI(EndpointFamily):
    """``client.models``. All methods raise `LlamaCppError`."""

    def list(self) -> Models:
        """Return all configured models."""
        reply = as_object(self._transport.get("/v1/models"))
        return [ModelInfo.from_reply(model) for model in as_objects(reply.get("data"))]

    def retrieve(self, model: str) -> ModelInfo:
        """Return one model."""
        return ModelInfo.from_reply(as_object(self._transport.get(f"/v1/models/{quote(model)}")))

    def events(self) -> EventStream:
        """Return an endless stream of status changes and progress of loads."""
        return self._transport.stream_get("/models/sse")

    def load(self, model: str) -> bool:
        """Start to load a model; `list` shows the progress. llama-server supports it in router mode only."""
        return self._transport.post_object("/models/load", {"model": model}).get("success") is True

    def unload(self, model: str) -> bool:
        """Unload a model."""
        return self._transport.post_object("/models/unload", {"model": model}).get("success") is True

    def download(self, model: str) -> bool:
        """Start to download ``owner/name[:quantization]``; `events` and `list` show the progress."""
        return self._transport.post_object("/models", {"model": model}).get("success") is True

    def remove(self, model: str) -> bool:
        """Unload a downloaded model, or stop its download, and delete its files."""
        return as_object(self._transport.delete("/models", {"model": model})).get("success") is True
