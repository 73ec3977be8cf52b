"""Downloads in Ollama's words: what a client may call a model of the hub, and a line for each part that has come."""

from collections.abc import AsyncIterable, AsyncIterator

from server.dialects.common import Json
from server.pool.events import DownloadEnded, DownloadProgress, PoolEvent, StatusChanged
from server.pool.names import LATEST
from server.pool.state import Status

_HUBS = ("hf.co/", "huggingface.co/")
SUCCESS: Json = {"status": "success"}


def hub_name(name: str) -> str:
    """``owner/name[:quantization]`` of what Ollama calls ``hf.co/owner/name[:quantization]``."""
    name = name.removesuffix(LATEST)
    return next((name.removeprefix(hub) for hub in _HUBS if name.startswith(hub)), name)


async def pull_lines(model: str, events: AsyncIterable[PoolEvent]) -> AsyncIterator[Json]:
    """What happens to the download of `model`, up to its end: success, or ``error``."""
    yield {"status": "pulling manifest"}
    failure = f"the download of '{model}' was stopped"
    async for event in events:
        match event:
            case DownloadProgress(name, files) if name == model:
                for file in files:
                    part = file.url.rpartition("/")[2]
                    yield {"status": f"pulling {part}", "digest": part, "total": file.total, "completed": file.done}
            case StatusChanged(name, Status.FAILED, _, reason) if name == model:
                failure = reason
            case DownloadEnded(name, ok) if name == model:
                yield SUCCESS if ok else {"error": failure}
                return
    yield {"error": "the server is stopping"}
