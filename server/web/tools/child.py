"""Processes that run a tool: a shell for commands, this interpreter for the rest.

They have the server's permissions, without its API keys in their environment. At the time limit or when the client
disconnects, the process and all its children are killed.
"""

import asyncio
import codecs
import json
import os
import signal
import sys
import time
from asyncio.subprocess import DEVNULL, PIPE, STDOUT, Process
from collections.abc import AsyncGenerator
from contextlib import suppress
from pathlib import Path
from typing import Any

from server.sandbox.process import public_environment

WORK_S = 30.0
MOST_SHELL_S = 60
MOST_OUTPUT_BYTES = 16 * 1024
_MOST_ANSWER_BYTES = 64 << 20
_READ_BYTES = 4096
_BOOT = "import sys; sys.path[:] = sys.argv[1:]; from server.web.tools.work import main; main()"
Json = dict[str, Any]


async def work(tool: str, params: Json, folder: Path | None) -> Json:
    """Return the reply of `server.web.tools.work`; a failure is an ``error`` in it."""
    request = json.dumps({"tool": tool, "params": params}).encode()
    try:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-I", "-B", "-c", _BOOT, *map(os.path.abspath, sys.path)),
            stdin=PIPE,
            stdout=PIPE,
            stderr=DEVNULL,
            cwd=folder,
            env=public_environment(),
            start_new_session=True,
            limit=_MOST_ANSWER_BYTES,
        )
    except OSError as error:
        return {"error": f"can't work in {folder}: {error.strerror}"}
    try:
        async with asyncio.timeout(WORK_S):
            answer, _ = await process.communicate(request)
        said: Json = json.loads(answer)
        return said
    except TimeoutError:
        return {"error": f"took more than {WORK_S:.0f} seconds"}
    except ValueError:
        return {"error": "took more memory than it may"}
    finally:
        await _end(process)


async def shell(params: Json, folder: Path | None) -> AsyncGenerator[str, None]:
    """Yield a command's output as it is produced, then its exit code in llama-server's format."""
    deadline = time.monotonic() + min(max(params.get("timeout", 10), 0), MOST_SHELL_S)
    left = min(max(params.get("max_output_size", MOST_OUTPUT_BYTES), 0), MOST_OUTPUT_BYTES)
    try:
        process = await asyncio.create_subprocess_exec(
            *("sh", "-c", params["command"]),
            stdin=DEVNULL,
            stdout=PIPE,
            stderr=STDOUT,
            cwd=folder,
            env=public_environment(),
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        yield f"failed to spawn process: {error}\n[exit code: -1]"
        return
    assert process.stdout is not None
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    cut = over = False
    try:
        while chunk := await asyncio.wait_for(process.stdout.read(_READ_BYTES), deadline - time.monotonic()):
            if text := decoder.decode(chunk[:left]):
                yield text
            cut, left = cut or len(chunk) > left, max(left - len(chunk), 0)
        await asyncio.wait_for(process.wait(), deadline - time.monotonic())
    except TimeoutError:
        over = True
    finally:
        await _end(process)
    tail = "\n[output truncated]" if cut else decoder.decode(b"", final=True)
    yield f"{tail}\n[exit code: {process.returncode}]{' [exit due to timed out]' if over else ''}"


async def _end(process: Process) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)  # it leads its own process group
    await process.wait()
