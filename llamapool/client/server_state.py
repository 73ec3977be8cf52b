"""``/health``, ``/props`` and ``/metrics``."""

import time
from typing import Any

from llamapool.client.errors import ApiError, ServerUnreachable
from llamapool.client.replies import HealthStatus
from llamapool.client.transport import EndpointFamily, as_object


class ServerCalls(EndpointFamily):
    """Endpoints about the server. All methods except `is_ready` and `wait_until_ready` raise `LlamaCppError`."""

    def health(self) -> HealthStatus:
        """Return the server's status. Raises `ServerUnreachable` if it does not answer."""
        return self._health(None)

    def is_ready(self) -> bool:
        """Return whether the server's health is "ok". False if it is unreachable."""
        return self._is_ready(None)

    def wait_until_ready(self, timeout: float = 60.0, poll_interval: float = 1.0) -> bool:
        """Poll every `poll_interval` seconds until the server is ready. Return False after `timeout` seconds."""
        deadline = time.monotonic() + timeout
        while not self._is_ready(max(deadline - time.monotonic(), poll_interval)):
            remaining_s = deadline - time.monotonic()
            if remaining_s <= 0:
                return False
            time.sleep(min(poll_interval, remaining_s))
        return True

    def props(self) -> dict[str, Any]:
        """Return the server's properties: ``default_generation_settings``, ``total_slots``, ``chat_template``, ..."""
        return as_object(self._transport.get("/props"))

    def set_props(self, **kwargs: Any) -> dict[str, Any]:
        """Change properties. Raises `NotSupported` without ``--props``."""
        return self._transport.post_object("/props", kwargs)

    def metrics(self) -> str:
        """Return the metrics in Prometheus' text format. Raises `NotSupported` without ``--metrics``."""
        return self._transport.get_text("/metrics")

    def _health(self, timeout_s: float | None) -> HealthStatus:
        try:
            return HealthStatus.from_reply(as_object(self._transport.get("/health", timeout_s=timeout_s)))
        except ApiError as error:
            return HealthStatus.from_error(error)

    def _is_ready(self, timeout_s: float | None) -> bool:
        try:
            return self._health(timeout_s).status == "ok"
        except ServerUnreachable:
            return False
