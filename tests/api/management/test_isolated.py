"""``isolation: process``: the server survives the end of a model's process, retries its requests and restarts it."""

import asyncio
import base64
import os
import signal
import subprocess
import threading
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest
from mcp.server.mcpserver import MCPServer

from server.app import create_app, every
from server.errors import request_queue_full
from server.media import header
from server.pool import scheduler
from server.pool.block_events import BlocksStored
from server.pool.memory import Fit, Footprint, Memory
from server.pool.saved.state_cache import EMBEDDINGS_SUFFIX
from server.pool.spec import ModelSpec
from server.pool.state import Status
from server.pool.worker import parent
from server.pool.worker.parent import WorkerProcess
from server.pool.worker.proxies import IsolatedEmbedder, IsolatedEngine
from tests.api.conftest import Api, check_nothing_leaked, make_settings, running, until
from tests.api.streams import Exchange, posting, typed_events
from tests.media_files import media_file
from tests.support.fakes import FakeLoader
from tests.support.isolated_fakes import in_process
from tests.support.mcp_server import Tools, served

pytestmark = pytest.mark.slow

ONE = {"demo": {"path": "demo.gguf", "load": "startup", "isolation": "process", "n_parallel": 4}}
ON_DEMAND = {"demo": {**ONE["demo"], "load": "on_demand"}}
TWO_MODELS = {name: {**ONE["demo"], "path": f"{name}.gguf"} for name in ("a", "b")}
Start = Callable[..., AbstractAsyncContextManager[Api]]
KEY = {"Authorization": "Bearer secret"}
CHAT = "POST /v1/chat/completions"
RETRIED = "the model's process has ended: the request is retried"


class ServerLoader(FakeLoader):
    """The loader of the server process. It records work that belongs in a model's process: `opened` has the isolation
    of each model whose file was opened, `n_memory_reads` counts reads of device memory."""

    def __init__(self, *, has_gpu: bool = False) -> None:
        super().__init__()
        self.opened: list[str] = []
        self.n_memory_reads = 0
        self._has_gpu = has_gpu

    def uses_devices(self, spec: ModelSpec) -> bool:
        return self._has_gpu

    def memory(self) -> Mapping[str, Memory]:
        self.n_memory_reads += 1
        return super().memory()

    def least(self, spec: ModelSpec) -> Footprint:
        self.opened.append(spec.isolation)
        return super().least(spec)

    def fit(self, spec: ModelSpec, granted: Mapping[str, int] | None = None) -> Fit:
        self.opened.append(spec.isolation)
        return super().fit(spec, granted)


@pytest.fixture
def start() -> Start:
    """Start applications with isolated models, and check that all model processes end with them."""

    @asynccontextmanager
    async def started(
        kind: str = "acting", models: Any = ONE, has_gpu: bool = False, **server: Any
    ) -> AsyncIterator[Api]:
        loader = ServerLoader(has_gpu=has_gpu)
        app = create_app(make_settings(server=server, models=models), loader=loader, in_process=in_process(kind))
        pids: list[int] = []
        async with running(app, FakeLoader()) as api:
            await api.settled()
            yield api
            loaded = [state.loaded for state in api.pool.states() if state.loaded is not None]
            pids = [model.weights.pid for model in loaded if isinstance(model.weights, WorkerProcess)]
            await check_nothing_leaked(api)
        assert "process" not in loader.opened
        assert not (has_gpu and loader.n_memory_reads)
        for pid in filter(None, pids):
            with pytest.raises(ProcessLookupError):
                os.kill(pid, 0)

    return started


@pytest.fixture
def new_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Start workers as in production: as children of this process, with a cleaned environment."""
    monkeypatch.setattr("server.pool.worker.parent.subprocess", subprocess)


def engine(api: Api, model: str = "demo") -> IsolatedEngine:
    """Return the engine of a loaded model."""
    loaded = api.pool.state(model).loaded
    assert loaded is not None
    assert isinstance(loaded.generator, IsolatedEngine)
    return loaded.generator


def n_restarts(api: Api, model: str = "demo") -> int:
    """Return how often the model's process was restarted."""
    return api.pool._entries[model].n_restarts


async def wait_for_restart(api: Api, model: str = "demo", after: int = 0) -> None:
    """Wait for more than `after` restarts of the model in all."""
    await until(lambda: n_restarts(api, model) > after and api.pool.serves(model))


def kill(api: Api, model: str = "demo") -> None:
    os.kill(engine(api, model).process.pid, signal.SIGKILL)


async def restart(api: Api, model: str = "demo") -> None:
    """Kill the model's process and wait for the next one."""
    kill(api, model)
    await wait_for_restart(api, model)


def chat(text: str, **more: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}], "temperature": 0, "max_tokens": 20, **more}


async def until_streamed(exchange: Exchange) -> None:
    """Wait for the first content."""
    assert await exchange.start() == 200
    while b'"content":"' not in await exchange.chunk():
        pass


@pytest.mark.usefixtures("new_processes")
async def test_reply_equals_that_of_a_model_in_the_server_process(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LLAMA_API_KEY", "secret")
    async with start("plain", metrics=True) as api:
        assert child_environment().keys() & {"PATH", "LLAMA_API_KEY"} == {"PATH"}
        isolated = (await api.expect(CHAT, chat("Hi", seed=1, dry_multiplier=1.0))).json()
        counts = (await api.client.get("/metrics")).text
        slots = (await api.client.get("/slots")).json()
    async with running(create_app(make_settings(), loader=FakeLoader()), FakeLoader()) as api:
        await api.settled()
        local = (await api.expect(CHAT, chat("Hi", seed=1, dry_multiplier=1.0))).json()
    assert isolated["choices"] == local["choices"]
    assert isolated["usage"]["completion_tokens"] == 20
    assert "llamacpp:tokens_predicted_total 20" in counts
    assert [slot["is_processing"] for slot in slots] == [False] * 4


async def test_auto_isolation_starts_a_process_on_a_machine_with_gpu(start: Start) -> None:
    models = {"demo": {**ONE["demo"], "isolation": "auto"}}
    async with start("plain", models, has_gpu=True, memory="50%") as api:
        await api.expect(CHAT, chat("Hi"))
        assert engine(api).process.pid


def child_environment() -> dict[str, str]:
    """Return the environment of the only model process, empty without a process. Linux only."""
    pid = os.getpid()
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        with suppress(FileNotFoundError, ProcessLookupError):  # the child has ended
            if "worker.child" in Path(f"/proc/{child}/cmdline").read_text():
                lines = Path(f"/proc/{child}/environ").read_text().split("\0")
                return dict(line.split("=", 1) for line in lines if line)
    return {}


async def test_killed_process_fails_only_its_own_streams_and_restarts(start: Start, tmp_path: Path) -> None:
    async with start(models=TWO_MODELS) as api, AsyncExitStack() as stack:
        body = chat("!wait 3!", stream=True, max_tokens=3000)
        exchanges = [
            await stack.enter_async_context(posting(api.app, "/v1/chat/completions", {"model": "a", **body}))
            for _ in range(3)
        ]
        await asyncio.gather(*map(until_streamed, exchanges))
        other = engine(api, "b").process.pid
        kill(api, "a")
        for exchange in exchanges:
            raw = b"".join([part async for part in exchange.chunks()])
            last = orjson.loads(raw.rpartition(b"data: {")[2].partition(b"\n\n")[0].join([b"{", b""]))
            assert "SIGKILL" in last["error"]["message"]
        await api.expect(CHAT, chat("Hi", model="b"))
        await wait_for_restart(api, "a")
        await api.expect(CHAT, chat("Hi", model="a"))
        assert engine(api, "b").process.pid == other
        await api.expect("GET /readyz")
        # a request without output so far is retried
        reply = await api.expect(CHAT, chat(f"!die once {tmp_path / 'died'}!", model="b"))
        assert reply.json()["usage"]["completion_tokens"] == 20
        assert (n_restarts(api, "a"), n_restarts(api, "b")) == (1, 1)


async def test_stream_without_output_continues_after_a_retry(start: Start, tmp_path: Path) -> None:
    hangs = tmp_path / "hangs"
    image = f"data:image/png;base64,{base64.b64encode(media_file('tiny.png')).decode()}"
    async with start(f"encodes {hangs}") as api:
        services = api.app.state.services
        api.app.state.services = replace(services, options=replace(services.options, sse_ping_interval=0.02))
        content = [{"type": "input_image", "image_url": image}]
        body = {"input": [{"role": "user", "content": content}], "stream": True}
        async with posting(api.app, "/v1/responses", body) as exchange:
            assert await exchange.start() == 200
            raw = b""
            while b"event: response.created" not in raw or not hangs.exists():
                raw += await exchange.chunk()
            kill(api)
            raw += b"".join([part async for part in exchange.chunks()])
        lines = [line for line in raw.splitlines() if b'"sequence_number"' in line]  # the first pings have none
        events = [orjson.loads(line.removeprefix(b"data: ")) for line in lines]
        assert [event["sequence_number"] for event in events] == list(range(len(events)))
        assert [event["type"] for event in events].count("response.created") == 1
        assert events[-1]["type"] == "response.incomplete"


async def test_request_in_preparation_when_its_process_ends_is_retried(start: Start) -> None:
    prepared = threading.Event()
    async with start() as api:
        threads = api.app.state.services.prepare
        for _ in range(threads._max_workers):
            threads.submit(prepared.wait)
        request = asyncio.create_task(api.expect(CHAT, chat("Hi")))
        await until(lambda: api.pool.state("demo").n_leases == 1)
        kill(api)
        await wait_for_restart(api)
        prepared.set()
        await request


async def test_retry_does_not_acquire_the_ended_model(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    ended = scheduler.Scheduler._ended

    def after_the_request(self: scheduler.Scheduler, *arguments: Any) -> None:
        asyncio.get_running_loop().call_soon(ended, self, *arguments)

    monkeypatch.setattr(scheduler.Scheduler, "_ended", after_the_request)
    async with start() as api:
        request = asyncio.create_task(api.expect(CHAT, chat("!wait 9!")))
        await until(lambda: engine(api).busy)
        kill(api)
        await request


async def test_unstreamed_reply_is_retried_in_the_middle_and_counts_once(
    start: Start, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with start(metrics=True, api_keys=["secret"]) as api:
        request = chat(f"!die late {tmp_path / 'died'}!", seed=7, n=2)
        reply = await api.expect(CHAT, request, headers=KEY)
        assert reply.json()["usage"]["completion_tokens"] == 40
        assert [choice["finish_reason"] for choice in reply.json()["choices"]] == ["length"] * 2
        assert n_restarts(api) == 1
        again = await api.expect(CHAT, request, headers=KEY)  # the process survives this one
        assert again.json()["choices"] == reply.json()["choices"]
        counts = (await api.client.get("/metrics", headers=KEY)).text
        predicted = [line for line in counts.splitlines() if "key_tokens" in line and 'kind="predicted"' in line]
        assert [float(line.rpartition(" ")[2]) for line in predicted] == [80.0]
        assert 'llamapool_model_restarts_total{model="demo"} 1' in counts
    assert [record.message for record in caplog.records].count(RETRIED) == 1


async def test_request_is_retried_only_once(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduler, "FIRST_PAUSE_S", 0.01)
    async with start() as api:
        await api.expect(CHAT, chat("!die late /nowhere/at/all!"), 503, "SIGKILL")
        await wait_for_restart(api, after=1)
        reply = await api.expect(CHAT, chat("!die once /nowhere/at/all!"), 503, "SIGKILL")
        assert reply.headers["retry-after"] == "1"
        await wait_for_restart(api, after=3)
        assert n_restarts(api) == 4


async def test_repeated_crashes_pause_restarts_and_fail_readiness(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scheduler, "FIRST_PAUSE_S", 60.0)
    async with start(models=TWO_MODELS) as api:
        await restart(api, "a")
        killed_at = time.monotonic()
        kill(api, "a")
        await until(lambda: not api.pool.serves("a"))
        reply = await api.expect(CHAT, chat("Hi", model="a"), 503, "SIGKILL")
        assert 60 - (time.monotonic() - killed_at) <= int(reply.headers["retry-after"]) <= 60
        await api.expect("GET /readyz", part={"failed": {"a": api.pool.state("a").failure}})
        await api.expect(CHAT, chat("Hi", model="b"))
        await restart(api, "b")
        kill(api, "b")
        await until(lambda: not api.pool.serves("b"))
        await api.expect("GET /readyz", status=503, part="SIGKILL")
        await api.expect("POST /models/unload", {"model": "a"})  # cancels the pending restart
        assert "a" not in api.pool._scheduler.queue
        await api.expect(CHAT, chat("Hi", model="a"))


async def test_held_lease_does_not_delay_the_restart(start: Start) -> None:
    async with start() as api:
        with await api.pool.acquire("demo") as lease:  # e.g. of a client that does not read its stream
            kill(api)
            await wait_for_restart(api)
            await api.expect(CHAT, chat("Hi"))
            assert lease.model.vocab.tokenize("Hi", add_special=False, parse_special=False)
            assert (len(lease.model.leases), api.pool.state("demo").n_leases) == (1, 0)
            assert api.pool._scheduler.freeing
        await until(lambda: not api.pool._scheduler.freeing)


async def test_cached_image_is_neither_decoded_nor_encoded_again(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoded: list[bytes] = []

    def read_header(data: bytes) -> header.MediaHeader:
        decoded.append(data)
        return header.read_header(data)

    monkeypatch.setattr("server.media.decode.read_header", read_header)
    disk_cache = {"cache_disk": 16, "cache_disk_path": str(tmp_path)}
    image = f"data:image/png;base64,{base64.b64encode(media_file('tiny.png')).decode()}"
    content = [{"type": "text", "text": "What?"}, {"type": "image_url", "image_url": {"url": image}}]
    first: list[dict[str, Any]] = [{"role": "user", "content": content}]
    second = [*first, {"role": "assistant", "content": "A."}, {"role": "user", "content": "And?"}]
    async with start("vision", {"demo": {**ONE["demo"], **disk_cache}}) as api:

        async def post_chat(messages: list[dict[str, Any]], **more: Any) -> Any:
            body = {"messages": messages, "temperature": 0, "max_tokens": 8, **more}
            return (await api.expect(CHAT, body)).json()["choices"]

        choices = await post_chat(first, id_slot=0)
        await post_chat(second, id_slot=1, cache_prompt=False)
        assert await post_chat(first, id_slot=2, cache_prompt=False) == choices
        assert (len(decoded), engine(api).stats.n_media_encoded) == (1, 1)

        await until(lambda: any(tmp_path.rglob(f"*{EMBEDDINGS_SUFFIX}")))
        kill(api)
        await wait_for_restart(api)
        assert await post_chat(first, cache_prompt=False) == choices
        assert (len(decoded), engine(api).stats.n_media_encoded) == (1, 0)


@asynccontextmanager
async def serve_tool(start: Start, end: Callable[[], Any]) -> AsyncIterator[tuple[Api, str]]:
    """Start an application whose model calls the tool `end` of an MCP server. Yields it with the server's URL."""

    class EndTool(Tools):
        def make(self) -> MCPServer:
            server = super().make()
            server.tool(structured_output=False)(end)
            return server

    async with served(EndTool()) as url:
        settings = {"mcp_servers": {"calc": {"url": url}}, "mcp_api": "calc"}
        async with start("calling", {"demo": {**ONE["demo"], "chat_template": "chatml"}}, **settings) as api:
            yield api, url


TOOLS = [{"type": "mcp", "server_label": "calc", "require_approval": "never"}]
TOOL_REQUEST = {"input": "Go", "temperature": 0, "max_output_tokens": 500, "tools": TOOLS}


async def test_process_that_ends_during_a_tool_call_does_not_fail_the_reply(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scheduler, "FIRST_PAUSE_S", 0.01)

    async def end() -> str:
        n = n_restarts(api)
        kill(api)
        await (wait_for_restart(api, after=n) if n < 2 else until(lambda: not api.pool.serves("demo")))
        return "ended"

    async with serve_tool(start, end) as (api, _):
        await api.expect("POST /v1/responses", TOOL_REQUEST, 200, "It goes on.")
        await api.expect("POST /v1/responses", {**TOOL_REQUEST, "stream": True}, 200, "It goes on.")
        assert n_restarts(api) == 2
        monkeypatch.setattr(scheduler, "FIRST_PAUSE_S", 100.0)
        await api.expect("POST /v1/responses", TOOL_REQUEST, 503, "SIGKILL")
        (used,) = (await api.expect("GET /v1/usage")).json()["data"]
        assert used["requests"] == 3  # the failed request counts: its first round succeeded


@pytest.mark.parametrize("path", ["/v1/responses", "/v1/messages"])
async def test_process_that_ends_after_a_tool_call_fails_the_reply(start: Start, tmp_path: Path, path: str) -> None:
    def end() -> str:
        return f"!die once {tmp_path}/{path[4:]}!"  # ends the model's process in the prefill

    async with serve_tool(start, end) as (api, url):
        body = TOOL_REQUEST
        if path == "/v1/messages":
            body = {"messages": [{"role": "user", "content": "Go"}], "temperature": 0, "max_tokens": 500}
            body["mcp_servers"] = [{"type": "url", "name": "calc", "url": url}]
        beta = {"anthropic-beta": "mcp-client-2025-04-04"}
        events = typed_events((await api.expect(f"POST {path}", {**body, "stream": True}, headers=beta)).text)
        assert n_restarts(api) == 1
    assert events[-1]["type"] == ("response.failed" if path == "/v1/responses" else "error"), events[-3:]
    assert "SIGKILL" in str(events[-1])


async def test_embeddings_are_retried(start: Start, tmp_path: Path) -> None:
    image = {"prompt_string": "a<__media__>", "multimodal_data": [base64.b64encode(media_file("tiny.png")).decode()]}
    models = {"demo": {**ONE["demo"], "embedding": True, "pooling": "mean"}}
    async with start(str(tmp_path / "died"), models=models) as api:
        reply = await api.expect("POST /v1/embeddings", {"input": [image, "c"]})
        assert len(reply.json()["data"]) == 2


async def test_file_that_aborts_the_library_fails_only_its_model(start: Start) -> None:
    models = {"bad": {**ONE["demo"], "load": "on_demand"}, "good": {"path": "good.gguf"}}
    async with start("aborting", models=models) as api:
        await api.expect(CHAT, chat("Hi", model="bad"), 503, "SIGABRT")
        await api.expect(CHAT, chat("Hi", model="good"))


async def test_process_that_measures_a_model_loads_it_or_ends(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[parent.WorkerProcess] = []

    class Counted(parent.WorkerProcess):
        def _start(self) -> None:
            super()._start()
            started.append(self)

    monkeypatch.setattr("server.pool.worker.loaders.WorkerProcess", Counted)
    models = {name: {**model, "load": "on_demand"} for name, model in TWO_MODELS.items()}
    async with start("sized", models=models) as api:
        await api.expect(CHAT, chat("Hi", model="a"))
        assert len(started) == 1
        await api.pool._scheduler.memory.measure(api.pool._entries["b"])
        assert len(started) == 2
    for child in started:
        await asyncio.wait_for(child.ended, 60)


async def test_isolated_model_saves_and_restores_slots(start: Start, tmp_path: Path) -> None:
    request = {"prompt": "x" * 100, "n_predict": 4, "temperature": 0}
    async with start("plain", slot_save_path=str(tmp_path)) as api:
        first = (await api.expect("POST /completion", {**request, "id_slot": 1})).json()
        saved = (await api.expect("POST /slots/1?action=save", {"filename": "a.bin"})).json()
        assert saved["n_written"] == (tmp_path / "a.bin").stat().st_size
        restored = (await api.expect("POST /slots/2?action=restore", {"filename": "a.bin"})).json()
        assert (restored["n_restored"], restored["n_read"]) == (saved["n_saved"], saved["n_written"])
        again = (await api.expect("POST /completion", {**request, "id_slot": 2})).json()
        assert (again["content"], again["timings"]["prompt_n"]) == (first["content"], 1)
        await api.expect("POST /slots/2?action=restore", {"filename": "b.bin"}, 400, "there is no such file")


async def test_block_events_and_cell_counts_reach_the_server_process(start: Start) -> None:
    async with start() as api:
        await api.expect("POST /v1/completions", {"prompt": "x" * 40, "max_tokens": 2, "ignore_eos": True})
        report = await engine(api).block_changes()
        stored = [change for change in report.changes if isinstance(change, BlocksStored)]
        assert sum(len(change.hashes) for change in stored) == 2
        assert (await engine(api).block_changes()).changes == ()
        await until(lambda: 0 < engine(api).stats.kv_cells_cached < engine(api).stats.kv_cells)


async def test_request_refused_by_a_full_process_queue_counts_no_tokens(start: Start) -> None:
    async with start(models={"demo": {**ONE["demo"], "max_queue": 1}}) as api:
        running = [asyncio.create_task(api.expect(CHAT, chat("!wait 9!"))) for _ in range(5)]
        await until(lambda: len(api.app.state.services.running) == 5)
        await api.expect(CHAT, chat("Hi"), 429, "queue is full")
        counts = [(await each).json()["usage"]["prompt_tokens"] for each in running]
        (row,) = (await api.expect("GET /v1/usage")).json()["data"]
        assert row["prompt_tokens"] == sum(counts)


async def test_embeddings_refused_by_a_full_process_queue_count_no_tokens(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(*_: object) -> None:
        raise request_queue_full(1, 1)

    monkeypatch.setattr(IsolatedEmbedder, "_embed", refuse)
    async with start("plain", {"demo": {**ONE["demo"], "embedding": True, "pooling": "mean"}}) as api:
        await api.expect("POST /v1/embeddings", {"input": "a"}, 429, "queue is full")
        (row,) = (await api.expect("GET /v1/usage")).json()["data"]
        assert row["prompt_tokens"] == 0


@pytest.mark.usefixtures("new_processes")
@pytest.mark.parametrize(("at", "unloads"), [("least", True), ("load", False)])
async def test_hanging_load_ends_on_unload_and_on_shutdown(start: Start, at: str, unloads: bool) -> None:
    limits = {"memory": "1GiB"} if at == "least" else {}
    async with start(f"hanging in {at}", ON_DEMAND, **limits) as api:
        request = asyncio.ensure_future(api.client.post("/v1/chat/completions", json=chat("Hi")))
        entry = api.pool._entries["demo"]
        await until(lambda: entry.load is not None if at != "least" else entry.sizing is not None)
        if unloads:
            await api.expect("POST /models/unload", {"model": "demo"})
            await api.settled()
            assert (await request).status_code == 503
            await until(lambda: not child_environment())
    assert (await request).status_code == 503


async def kill_only_process(api: Api) -> None:
    """Kill the only model process, in any state, and wait until the loaders drop it."""
    await until(lambda: any(process.pid for process in api.pool._loaders._processes))
    (pid,) = [process.pid for process in api.pool._loaders._processes]
    os.kill(pid, signal.SIGKILL)
    await until(lambda: pid not in {process.pid for process in api.pool._loaders._processes})


async def test_process_killed_while_measuring_is_replaced(start: Start) -> None:
    async with start("hanging in least", models=ON_DEMAND, memory="1GiB") as api:
        request = asyncio.create_task(api.expect(CHAT, chat("Hi")))
        await kill_only_process(api)
        await request


async def test_process_killed_while_its_load_waits_is_replaced(start: Start) -> None:
    models = {"other": {"path": "other.gguf"}, **ON_DEMAND}
    async with start("sized", models, memory="1GiB", models_max=1) as api:
        with await api.pool.acquire("other"):
            request = asyncio.create_task(api.expect(CHAT, chat("Hi", model="demo")))
            await until(lambda: any(api.pool._loaders._processes.values()))
            await kill_only_process(api)
        await request


async def test_process_killed_while_loading_fails_the_load(start: Start) -> None:
    async with start("hanging in load", models=ON_DEMAND) as api:
        request = asyncio.create_task(api.expect(CHAT, chat("Hi"), 503, "SIGKILL"))
        await until(lambda: api.pool.state("demo").status is Status.LOADING)
        await kill_only_process(api)
        await request
        await api.expect(CHAT, chat("Hi"), 503, "SIGKILL")  # the load is not retried immediately


async def test_process_killed_while_draining_is_not_replaced(start: Start) -> None:
    async with start() as api:
        with await api.pool.acquire("demo"):
            await api.expect("POST /models/unload", {"model": "demo"})
            waiting = asyncio.create_task(api.expect(CHAT, chat("Hi")))
            await until(lambda: api.pool.state("demo").n_waiting == 1)
            await kill_only_process(api)
            assert (api.pool.state("demo").status, n_restarts(api)) == (Status.DRAINING, 0)
        await waiting  # served by the next load
        assert n_restarts(api) == 0


async def test_unload_ends_a_frozen_process(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parent, "ANSWER_S", 0.05)
    monkeypatch.setattr(parent, "STACKS_S", 0.01)
    async with start() as api:
        process = engine(api).process
        os.kill(process.pid, signal.SIGSTOP)
        await api.expect("POST /models/unload", {"model": "demo"})
        await api.settled()
        assert (await process.ended, n_restarts(api)) == ("it has not answered for 0.05 s", 0)
        assert api.pool.state("demo").failure == ""
        await api.expect(CHAT, chat("Hi"))


async def test_watchdog_ends_a_hanging_step(start: Start, capfd: pytest.CaptureFixture[str]) -> None:
    async with start() as api:
        body = chat("!wait 1!", stream=True, max_tokens=3000)
        async with posting(api.app, "/v1/chat/completions", body) as exchange:
            await until_streamed(exchange)
            await until(lambda: sum(slot.is_processing for slot in engine(api).slots()) == 1)
            checks = asyncio.ensure_future(every(0.05, lambda: api.pool.check_progress(0.2)))
            raw = b"".join([part async for part in exchange.chunks()])
            checks.cancel()
        assert b"no step has ended" in raw
        assert "most recent call first" in capfd.readouterr().err  # the stacks of the hanging process
        await api.expect("GET /livez")
        await wait_for_restart(api)
        assert not engine(api).busy
        await api.expect(CHAT, chat("Hi"))


async def test_scaling_an_adapter_during_its_unload_does_not_end_the_process(start: Start, tmp_path: Path) -> None:
    (tmp_path / "poet.gguf").touch()
    async with start(lora_dir=str(tmp_path)) as api:
        await api.expect("POST /v1/load_lora_adapter", {"lora_name": "poet", "lora_path": "poet.gguf"})
        body = chat("!wait 9!", max_tokens=50, lora=[{"id": 0, "scale": 1}])
        request = asyncio.create_task(api.expect(CHAT, body))
        await until(lambda: engine(api).busy)
        unload = asyncio.create_task(api.expect("POST /v1/unload_lora_adapter", {"lora_name": "poet"}))
        process = engine(api).process
        await until(lambda: process._calls)  # the unload is sent
        await process.call("ping")
        await api.expect("POST /lora-adapters", [{"id": 0, "scale": 0.5}])
        assert not request.done()
        await request
        await unload
        assert (await api.client.get("/lora-adapters")).json() == []
        assert n_restarts(api) == 0
