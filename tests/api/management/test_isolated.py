"""``isolation: process``: a model's end is its own, and it comes back."""

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
TWO = {name: {**ONE["demo"], "path": f"{name}.gguf"} for name in ("a", "b")}
Start = Callable[..., AbstractAsyncContextManager[Api]]
KEY = {"Authorization": "Bearer secret"}
CHAT = "POST /v1/chat/completions"
ASKED_AGAIN = "the model's process has ended: the request is retried"


class Here(FakeLoader):
    """The server's own, and what it did of what must be done in a model's process: ``opened`` has the models whose
    files the library opened, by isolation, ``n_looks`` counts looks at the memory of devices. ``has_gpu``: of the
    machine."""

    def __init__(self, *, has_gpu: bool = False) -> None:
        super().__init__()
        self.opened: list[str] = []
        self.n_looks = 0
        self._has_gpu = has_gpu

    def uses_devices(self, spec: ModelSpec) -> bool:
        return self._has_gpu

    def memory(self) -> Mapping[str, Memory]:
        self.n_looks += 1
        return super().memory()

    def least(self, spec: ModelSpec) -> Footprint:
        self.opened.append(spec.isolation)
        return super().least(spec)

    def fit(self, spec: ModelSpec, granted: Mapping[str, int] | None = None) -> Fit:
        self.opened.append(spec.isolation)
        return super().fit(spec, granted)


@pytest.fixture
def start() -> Start:
    """An application whose models are in processes of their own; none is left at the end."""

    @asynccontextmanager
    async def started(
        kind: str = "acting", models: Any = ONE, has_gpu: bool = False, **server: Any
    ) -> AsyncIterator[Api]:
        here = Here(has_gpu=has_gpu)
        app = create_app(make_settings(server=server, models=models), loader=here, in_process=in_process(kind))
        pids: list[int] = []
        async with running(app, FakeLoader()) as api:
            await api.settled()
            yield api
            loaded = [state.loaded for state in api.pool.states() if state.loaded is not None]
            weights = [model.weights for model in loaded if isinstance(model.weights, WorkerProcess)]
            pids = [one.pid for one in weights]
            await check_nothing_leaked(api)
        assert "process" not in here.opened
        assert not (has_gpu and here.n_looks)
        for pid in filter(None, pids):
            with pytest.raises(ProcessLookupError):
                os.kill(pid, 0)

    return started


@pytest.fixture
def new_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Start workers as in production: as children of this process, with an environment of their own."""
    monkeypatch.setattr("server.pool.worker.parent.subprocess", subprocess)


def engine(api: Api, model: str = "demo") -> IsolatedEngine:
    """A loaded model's engine."""
    loaded = api.pool.state(model).loaded
    assert loaded is not None
    assert isinstance(loaded.generator, IsolatedEngine)
    return loaded.generator


def n_restarts(api: Api, model: str = "demo") -> int:
    """How often the model's process has ended."""
    return api.pool._entries[model].n_restarts


async def is_back(api: Api, model: str = "demo", after: int = 0) -> None:
    """Wait until the model was started again more often than `after` times."""
    await until(lambda: n_restarts(api, model) > after and api.pool.serves(model))


def kill(api: Api, model: str = "demo") -> None:
    os.kill(engine(api, model).process.pid, signal.SIGKILL)


async def restart(api: Api, model: str = "demo") -> None:
    """Kill the model's process and wait for the next one."""
    kill(api, model)
    await is_back(api, model)


def chat(text: str, **more: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}], "temperature": 0, "max_tokens": 20, **more}


async def until_streamed(exchange: Exchange) -> None:
    """Wait for the first text."""
    assert await exchange.start() == 200
    while b'"content":"' not in await exchange.chunk():
        pass


@pytest.mark.usefixtures("new_processes")
async def test_a_reply_is_the_same_as_in_the_servers_own_process(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLAMA_API_KEY", "secret")
    async with start("plain", metrics=True) as api:
        assert environment_of_child().keys() & {"PATH", "LLAMA_API_KEY"} == {"PATH"}
        isolated = (await api.client.post("/v1/chat/completions", json=chat("Hi", seed=1))).json()
        counts = (await api.client.get("/metrics")).text
        slots = (await api.client.get("/slots")).json()
    own = create_app(make_settings(), loader=FakeLoader())
    async with running(own, FakeLoader()) as api:
        await api.settled()
        here = (await api.client.post("/v1/chat/completions", json=chat("Hi", seed=1))).json()
    assert isolated["choices"] == here["choices"]
    assert isolated["usage"]["completion_tokens"] == 20
    assert "llamacpp:tokens_predicted_total 20" in counts
    assert [slot["is_processing"] for slot in slots] == [False] * 4


async def test_by_itself_a_model_has_a_process_where_a_gpu_computes(start: Start) -> None:
    own = {"demo": {**ONE["demo"], "isolation": "auto"}}
    async with start("plain", own, has_gpu=True, memory="50%") as api:
        await api.expect(CHAT, chat("Hi"))
        assert engine(api).process.pid


def environment_of_child() -> dict[str, str]:
    """The environment of a model's process; empty while there is none (Linux)."""
    me = os.getpid()
    for child in Path(f"/proc/{me}/task/{me}/children").read_text().split():
        with suppress(FileNotFoundError, ProcessLookupError):  # it may end meanwhile
            if "worker.child" in Path(f"/proc/{child}/cmdline").read_text():
                lines = Path(f"/proc/{child}/environ").read_text().split("\0")
                return dict(line.split("=", 1) for line in lines if line)
    return {}


async def test_killed_under_streams_it_ends_only_its_own_with_an_error_and_comes_back(
    start: Start, tmp_path: Path
) -> None:
    async with start(models=TWO) as api, AsyncExitStack() as stack:
        body = chat("!wait 3!", stream=True, max_tokens=3000)
        of_a = [
            await stack.enter_async_context(posting(api.app, "/v1/chat/completions", {"model": "a", **body}))
            for _ in range(3)
        ]
        await asyncio.gather(*map(until_streamed, of_a))
        other = engine(api, "b").process.pid
        kill(api, "a")
        for exchange in of_a:
            raw = b"".join([part async for part in exchange.chunks()])
            last = orjson.loads(raw.rpartition(b"data: {")[2].partition(b"\n\n")[0].join([b"{", b""]))
            assert "SIGKILL" in last["error"]["message"]
        await api.expect(CHAT, chat("Hi", model="b"))
        await is_back(api, "a")
        await api.expect(CHAT, chat("Hi", model="a"))
        assert engine(api, "b").process.pid == other
        assert (await api.client.get("/readyz")).status_code == 200
        # what has said nothing yet is asked once more
        reply = await api.expect("POST /v1/chat/completions", chat(f"!die once {tmp_path / 'died'}!", model="b"))
        assert reply.json()["usage"]["completion_tokens"] == 20
        assert (n_restarts(api, "a"), n_restarts(api, "b")) == (1, 1)


async def test_a_stream_that_a_ping_has_begun_goes_on_after_a_retry(start: Start, tmp_path: Path) -> None:
    hangs = tmp_path / "hangs"
    image = f"data:image/png;base64,{base64.b64encode(media_file('tiny.png')).decode()}"
    async with start(f"encodes {hangs}") as api:
        used = api.app.state.services
        api.app.state.services = replace(used, options=replace(used.options, sse_ping_interval=0.02))
        content = [{"type": "input_image", "image_url": image}]
        body = {"input": [{"role": "user", "content": content}], "stream": True}
        async with posting(api.app, "/v1/responses", body) as exchange:
            assert await exchange.start() == 200
            raw = b""
            while b"event: response.created" not in raw or not hangs.exists():
                raw += await exchange.chunk()
            kill(api)
            raw += b"".join([part async for part in exchange.chunks()])
        lines = [line for line in raw.splitlines() if b'"sequence_number"' in line]  # pings before it began have none
        events = [orjson.loads(line.removeprefix(b"data: ")) for line in lines]
        assert [event["sequence_number"] for event in events] == list(range(len(events)))
        assert [event["type"] for event in events].count("response.created") == 1
        assert events[-1]["type"] == "response.incomplete"


async def test_a_request_that_is_prepared_as_the_process_ends_is_retried(start: Start) -> None:
    prepared = threading.Event()
    async with start() as api:
        threads = api.app.state.services.prepare
        for _ in range(threads._max_workers):
            threads.submit(prepared.wait)
        asked = asyncio.create_task(api.expect(CHAT, chat("Hi")))
        await until(lambda: api.pool.state("demo").n_leases == 1)
        kill(api)
        await is_back(api)
        prepared.set()
        await asked


async def test_a_retry_does_not_get_the_lost_model_again(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    ended = scheduler.Scheduler._ended

    def after_the_request(self: scheduler.Scheduler, *arguments: Any) -> None:
        asyncio.get_running_loop().call_soon(ended, self, *arguments)

    monkeypatch.setattr(scheduler.Scheduler, "_ended", after_the_request)
    async with start() as api:
        asked = asyncio.create_task(api.expect(CHAT, chat("!wait 9!")))
        await until(lambda: engine(api).busy)
        kill(api)
        await asked


async def test_a_whole_reply_that_had_begun_is_asked_for_once_more_and_counts_once(
    start: Start, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with start(metrics=True, api_keys=["secret"]) as api:
        asked = chat(f"!die late {tmp_path / 'died'}!", seed=7, n=2)
        reply = await api.expect("POST /v1/chat/completions", asked, headers=KEY)
        assert reply.json()["usage"]["completion_tokens"] == 40
        assert [choice["finish_reason"] for choice in reply.json()["choices"]] == ["length"] * 2
        assert n_restarts(api) == 1
        again = await api.client.post("/v1/chat/completions", json=asked, headers=KEY)  # nobody dies any more
        assert again.json()["choices"] == reply.json()["choices"]
        counts = (await api.client.get("/metrics", headers=KEY)).text
        predicted = [line for line in counts.splitlines() if "key_tokens" in line and 'kind="predicted"' in line]
        assert [float(line.rpartition(" ")[2]) for line in predicted] == [80.0]
        assert 'llamapool_model_restarts_total{model="demo"} 1' in counts
    assert [record.message for record in caplog.records].count(ASKED_AGAIN) == 1


async def test_nothing_is_asked_a_third_time(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduler, "FIRST_PAUSE_S", 0.01)
    async with start() as api:
        await api.expect(CHAT, chat("!die late /nowhere/at/all!"), 503, "SIGKILL")
        await is_back(api, after=1)
        reply = await api.expect(CHAT, chat("!die once /nowhere/at/all!"), 503, "SIGKILL")
        assert reply.headers["retry-after"] == "1"
        await is_back(api, after=3)
        assert n_restarts(api) == 4


async def test_a_model_that_ends_again_and_again_pauses_and_is_not_ready(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scheduler, "FIRST_PAUSE_S", 60.0)
    async with start(models=TWO) as api:
        await restart(api, "a")
        killed = time.monotonic()
        kill(api, "a")
        await until(lambda: not api.pool.serves("a"))
        reply = await api.expect(CHAT, chat("Hi", model="a"), 503, "SIGKILL")
        assert 60 - (time.monotonic() - killed) <= int(reply.headers["retry-after"]) <= 60
        await api.expect("GET /readyz", part={"failed": {"a": api.pool.state("a").failure}})
        await api.expect(CHAT, chat("Hi", model="b"))
        await restart(api, "b")
        kill(api, "b")
        await until(lambda: not api.pool.serves("b"))
        await api.expect("GET /readyz", status=503, part="SIGKILL")
        await api.expect("POST /models/unload", {"model": "a"})  # not loaded again
        assert "a" not in api.pool._scheduler.queue
        await api.expect(CHAT, chat("Hi", model="a"))


async def test_a_lease_that_is_still_held_does_not_delay_the_restart(start: Start) -> None:
    async with start() as api:
        with await api.pool.acquire("demo") as lease:  # as of a client that does not read its stream
            kill(api)
            await is_back(api)
            await api.expect(CHAT, chat("Hi"))
            assert lease.model.vocab.tokenize("Hi", add_special=False, parse_special=False)
            assert (len(lease.model.leases), api.pool.state("demo").n_leases) == (1, 0)
            assert api.pool._scheduler.freeing
        await until(lambda: not api.pool._scheduler.freeing)


async def test_a_picture_that_was_seen_before_is_neither_decoded_nor_encoded(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoded: list[bytes] = []

    def read_header(data: bytes) -> header.MediaHeader:
        decoded.append(data)
        return header.read_header(data)

    monkeypatch.setattr("server.media.decode.read_header", read_header)
    kept = {"cache_disk": 16, "cache_disk_path": str(tmp_path)}
    picture = f"data:image/png;base64,{base64.b64encode(media_file('tiny.png')).decode()}"
    content = [{"type": "text", "text": "What?"}, {"type": "image_url", "image_url": {"url": picture}}]
    first: list[dict[str, Any]] = [{"role": "user", "content": content}]
    second = [*first, {"role": "assistant", "content": "A."}, {"role": "user", "content": "And?"}]
    async with start("seeing", {"demo": {**ONE["demo"], **kept}}) as api:

        async def ask(messages: list[dict[str, Any]], **more: Any) -> Any:
            body = {"messages": messages, "temperature": 0, "max_tokens": 8, **more}
            return (await api.expect("POST /v1/chat/completions", body)).json()["choices"]

        said = await ask(first, id_slot=0)
        await ask(second, id_slot=1, cache_prompt=False)
        assert await ask(first, id_slot=2, cache_prompt=False) == said
        assert (len(decoded), engine(api).stats.n_media_encoded) == (1, 1)

        await until(lambda: any(tmp_path.rglob(f"*{EMBEDDINGS_SUFFIX}")))
        kill(api)
        await is_back(api)
        assert await ask(first, cache_prompt=False) == said
        assert (len(decoded), engine(api).stats.n_media_encoded) == (1, 0)


@asynccontextmanager
async def calling(start: Start, end: Callable[[], Any]) -> AsyncIterator[tuple[Api, str]]:
    """An application whose model calls the tool `end` of an MCP server, and its URL."""

    class Ending(Tools):
        def make(self) -> MCPServer:
            server = super().make()
            server.tool(structured_output=False)(end)
            return server

    async with served(Ending()) as url:
        settings = {"mcp_servers": {"calc": {"url": url}}, "mcp_api": "calc"}
        async with start("calling", {"demo": {**ONE["demo"], "chat_template": "chatml"}}, **settings) as api:
            yield api, url


TOOLS = [{"type": "mcp", "server_label": "calc", "require_approval": "never"}]
GO = {"input": "Go", "temperature": 0, "max_output_tokens": 500, "tools": TOOLS}


async def test_a_process_that_ends_during_a_tool_call_does_not_end_the_reply(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scheduler, "FIRST_PAUSE_S", 0.01)

    async def end() -> str:
        n = n_restarts(api)
        kill(api)
        await (is_back(api, after=n) if n < 2 else until(lambda: not api.pool.serves("demo")))
        return "ended"

    async with calling(start, end) as (api, _):
        await api.expect("POST /v1/responses", GO, 200, "It goes on.")
        await api.expect("POST /v1/responses", {**GO, "stream": True}, 200, "It goes on.")
        assert n_restarts(api) == 2
        monkeypatch.setattr(scheduler, "FIRST_PAUSE_S", 100.0)
        await api.expect("POST /v1/responses", GO, 503, "SIGKILL")
        (used,) = (await api.expect("GET /v1/usage")).json()["data"]
        assert used["requests"] == 3  # the last one's first round counts


@pytest.mark.parametrize("path", ["/v1/responses", "/v1/messages"])
async def test_a_process_that_ends_in_the_second_round_ends_the_reply_with_an_error(
    start: Start, tmp_path: Path, path: str
) -> None:
    def end() -> str:
        return f"!die once {tmp_path}/{path[4:]}!"  # ends the model's process when it is read

    async with calling(start, end) as (api, url):
        body = GO
        if path == "/v1/messages":
            body = {"messages": [{"role": "user", "content": "Go"}], "temperature": 0, "max_tokens": 500}
            body["mcp_servers"] = [{"type": "url", "name": "calc", "url": url}]
        beta = {"anthropic-beta": "mcp-client-2025-04-04"}
        events = typed_events((await api.expect(f"POST {path}", {**body, "stream": True}, headers=beta)).text)
        assert n_restarts(api) == 1
    assert events[-1]["type"] == ("response.failed" if path == "/v1/responses" else "error"), events[-3:]
    assert "SIGKILL" in str(events[-1])


async def test_vectors_are_asked_for_once_more_too(start: Start, tmp_path: Path) -> None:
    picture = {"prompt_string": "a<__media__>", "multimodal_data": [base64.b64encode(media_file("tiny.png")).decode()]}
    models = {"demo": {**ONE["demo"], "embedding": True, "pooling": "mean"}}
    async with start(str(tmp_path / "died"), models=models) as api:
        reply = await api.expect("POST /v1/embeddings", {"input": [picture, "c"]})
        assert len(reply.json()["data"]) == 2


async def test_a_file_that_the_library_does_not_survive_fails_its_model_only(start: Start) -> None:
    models = {"bad": {**ONE["demo"], "load": "on_demand"}, "good": {"path": "good.gguf"}}
    async with start("aborting", models=models) as api:
        await api.expect(CHAT, chat("Hi", model="bad"), 503, "SIGABRT")
        await api.expect(CHAT, chat("Hi", model="good"))


async def test_the_process_that_measures_a_model_loads_it_or_ends(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[parent.WorkerProcess] = []

    class Counted(parent.WorkerProcess):
        def _start(self) -> None:
            super()._start()
            started.append(self)

    monkeypatch.setattr("server.pool.worker.loaders.WorkerProcess", Counted)
    models = {name: {**model, "load": "on_demand"} for name, model in TWO.items()}
    async with start("sized", models=models) as api:
        await api.expect(CHAT, chat("Hi", model="a"))
        assert len(started) == 1
        await api.pool._scheduler.memory.measure(api.pool._entries["b"])
        assert len(started) == 2
    for child in started:
        await asyncio.wait_for(child.ended, 60)


async def test_the_process_saves_and_restores_slots(start: Start, tmp_path: Path) -> None:
    asked = {"prompt": "x" * 100, "n_predict": 4, "temperature": 0}
    async with start("plain", slot_save_path=str(tmp_path)) as api:
        first = (await api.expect("POST /completion", {**asked, "id_slot": 1})).json()
        saved = (await api.expect("POST /slots/1?action=save", {"filename": "a.bin"})).json()
        assert saved["n_written"] == (tmp_path / "a.bin").stat().st_size
        restored = (await api.expect("POST /slots/2?action=restore", {"filename": "a.bin"})).json()
        assert (restored["n_restored"], restored["n_read"]) == (saved["n_saved"], saved["n_written"])
        again = (await api.expect("POST /completion", {**asked, "id_slot": 2})).json()
        assert (again["content"], again["timings"]["prompt_n"]) == (first["content"], 1)
        await api.expect("POST /slots/2?action=restore", {"filename": "b.bin"}, 400, "there is no such file")


async def test_what_is_told_outside_crosses(start: Start) -> None:
    async with start() as api:
        await api.expect("POST /v1/completions", {"prompt": "x" * 40, "max_tokens": 2, "ignore_eos": True})
        report = await engine(api).block_changes()
        stored = [change for change in report.changes if isinstance(change, BlocksStored)]
        assert sum(len(change.hashes) for change in stored) == 2
        assert (await engine(api).block_changes()).changes == ()
        await until(lambda: 0 < engine(api).stats.kv_cells_cached < engine(api).stats.kv_cells)


async def test_a_request_that_the_full_queue_of_the_process_refuses_uses_no_tokens(start: Start) -> None:
    async with start(models={"demo": {**ONE["demo"], "max_queue": 1}}) as api:
        running = [asyncio.create_task(api.expect(CHAT, chat("!wait 9!"))) for _ in range(5)]
        await until(lambda: len(api.app.state.services.running) == 5)
        await api.expect(CHAT, chat("Hi"), 429, "queue is full")
        counts = [(await each).json()["usage"]["prompt_tokens"] for each in running]
        (row,) = (await api.expect("GET /v1/usage")).json()["data"]
        assert row["prompt_tokens"] == sum(counts)


async def test_vectors_that_the_full_queue_of_the_process_refuses_use_no_tokens(
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
async def test_a_load_that_never_ends_ends_with_an_unload_and_with_the_server(
    start: Start, at: str, unloads: bool
) -> None:
    models = {"demo": {**ONE["demo"], "load": "on_demand"}}
    limits = {"memory": "1GiB"} if at == "least" else {}
    async with start(f"hanging in {at}", models=models, **limits) as api:
        asked = asyncio.ensure_future(api.client.post("/v1/chat/completions", json=chat("Hi")))
        entry = api.pool._entries["demo"]
        await until(lambda: entry.load is not None if at != "least" else entry.sizing is not None)
        if unloads:
            assert (await api.client.post("/models/unload", json={"model": "demo"})).status_code == 200
            await api.settled()
            assert (await asked).status_code == 503
            await until(lambda: not environment_of_child())
    assert (await asked).status_code == 503


async def killed(api: Api) -> None:
    """Kill the only process, wherever it is."""
    await until(lambda: any(process.pid for process in api.pool._loaders._processes))
    (pid,) = [process.pid for process in api.pool._loaders._processes]
    os.kill(pid, signal.SIGKILL)
    await until(lambda: pid not in {process.pid for process in api.pool._loaders._processes})


async def test_a_process_that_is_killed_while_it_measures_is_replaced(start: Start) -> None:
    async with start("hanging in least", models={"demo": {**ONE["demo"], "load": "on_demand"}}, memory="1GiB") as api:
        asked = asyncio.create_task(api.expect(CHAT, chat("Hi")))
        await killed(api)
        await asked


async def test_a_process_that_is_killed_while_its_load_waits_is_replaced(start: Start) -> None:
    models = {"here": {"path": "here.gguf"}, "demo": {**ONE["demo"], "load": "on_demand"}}
    async with start("sized", models, memory="1GiB", models_max=1) as api:
        with await api.pool.acquire("here"):
            asked = asyncio.create_task(api.expect(CHAT, chat("Hi", model="demo")))
            await until(lambda: any(api.pool._loaders._processes.values()))
            await killed(api)
        await asked


async def test_a_process_that_is_killed_while_it_loads_fails_the_load(start: Start) -> None:
    async with start("hanging in load", models={"demo": {**ONE["demo"], "load": "on_demand"}}) as api:
        asked = asyncio.create_task(api.expect(CHAT, chat("Hi"), 503, "SIGKILL"))
        await until(lambda: api.pool.state("demo").status is Status.LOADING)
        await killed(api)
        await asked
        await api.expect(CHAT, chat("Hi"), 503, "SIGKILL")  # it is not tried again at once


async def test_a_process_that_is_killed_while_its_model_drains_is_not_replaced(start: Start) -> None:
    async with start() as api:
        with await api.pool.acquire("demo"):
            await api.expect("POST /models/unload", {"model": "demo"})
            waiting = asyncio.create_task(api.expect(CHAT, chat("Hi")))
            await until(lambda: api.pool.state("demo").n_waiting == 1)
            await killed(api)
            assert (api.pool.state("demo").status, n_restarts(api)) == (Status.DRAINING, 0)
        await waiting  # for the next load
        assert n_restarts(api) == 0


async def test_an_unload_ends_a_frozen_process(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
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


async def test_a_step_that_hangs_is_ended_by_the_watchdog(start: Start, capfd: pytest.CaptureFixture[str]) -> None:
    async with start() as api:
        body = chat("!wait 1!", stream=True, max_tokens=3000)
        async with posting(api.app, "/v1/chat/completions", body) as exchange:
            await until_streamed(exchange)
            await until(lambda: sum(slot.is_processing for slot in engine(api).slots()) == 1)
            checks = asyncio.ensure_future(every(0.05, lambda: api.pool.check_progress(0.2)))
            raw = b"".join([part async for part in exchange.chunks()])
            checks.cancel()
        assert b"no step has ended" in raw
        assert "most recent call first" in capfd.readouterr().err  # where it hangs
        assert (await api.client.get("/livez")).status_code == 200
        await is_back(api)
        assert not engine(api).busy
        await api.expect(CHAT, chat("Hi"))


async def test_scales_of_an_adapter_that_is_leaving_do_not_end_its_process(start: Start, tmp_path: Path) -> None:
    (tmp_path / "poet.gguf").touch()
    async with start(lora_dir=str(tmp_path)) as api:
        await api.expect("POST /v1/load_lora_adapter", {"lora_name": "poet", "lora_path": "poet.gguf"})
        poem = chat("!wait 9!", max_tokens=50, lora=[{"id": 0, "scale": 1}])
        asked = asyncio.create_task(api.expect(CHAT, poem))
        await until(lambda: engine(api).busy)
        leaving = asyncio.create_task(api.expect("POST /v1/unload_lora_adapter", {"lora_name": "poet"}))
        process = engine(api).process
        await until(lambda: process._calls)  # of the unload
        await process.call("ping")
        await api.expect("POST /lora-adapters", [{"id": 0, "scale": 0.5}])
        assert not asked.done()
        await asked
        await leaving
        assert (await api.client.get("/lora-adapters")).json() == []
        assert n_restarts(api) == 0
