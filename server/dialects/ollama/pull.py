"""Downloads in Ollama's format: names of hub models, and progress lines."""

from collections.abc import AsyncIterable, AsyncIterator

from server.dialects.common import Json
from server.pool.events import DownloadEnded, DownloadProgress, PoolEvent, StatusChanged
from server.pool.names import LATEST
from server.pool.state import Status

_HUBS = ("hf.co/", "huggingface.co/")
SUCCESS: Json = {"status": "success"}


def hub_name(name: str) -> str:
    """Convert Ollama's ``hf.co/owner/name[:quantization]`` to ``owner/name[:quantization]``."""
    name = name.removesuffix(LATEST)
    return next((name.removeprefix(hub) for hub in _HUBS if name.startswith(hub)), name)


async def pull_lines(model: str, events: AsyncIterable[PoolEvent]) -> AsyncIterator[Json]:
    """Yield the progress of the download of `model`, up to ``success`` or ``error``."""
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
