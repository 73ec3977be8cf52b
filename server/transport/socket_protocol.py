"""uvicorn's WebSocket protocol with what it lacks: who stops does not cut off what is being said."""

from typing import Any, cast

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from server.transport.streams.event_socket import LEAVING


class PatientSocketProtocol(WebSocketsSansIOProtocol):
    """For ``uvicorn.Config(ws=PatientSocketProtocol)``.

    uvicorn's own closes connections at once when it is to stop, and waits for HTTP's requests; here a connection is
    told (`event_socket`), and closes itself once its response has ended, or with the process.
    """

    def shutdown(self) -> None:
        """The server is to stop."""
        if self.handshake_complete and not self.close_sent:
            self.queue.put_nowait(cast(Any, {"type": LEAVING}))
        else:
            super().shutdown()
