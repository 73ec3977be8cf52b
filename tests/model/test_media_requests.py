"""A picture in every wire format, in a real server with a projector: the same tokens, text and errors."""

import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import ollama
import openai
import pytest

from server.app import PICTURES as ANSWERER
from server.media.bitmap import Bitmap
from server.media.decode import Decoder
from tests.media_files import PHOTOS, SOUNDING_VIDEO, media_file, pdf, png
from tests.support.closeness import LOGPROB_SPREAD
from tests.support.ggufs import PLAIN, gguf_file
from tests.support.ggufs.projector import TinyProjector, projector_file
from tests.support.real_server import EXACT, RealServer, llamapool

FILES = Path(__file__).parents[1] / "media_files"
PICTURE = base64.b64encode(media_file("tiny.png")).decode()
URL = f"data:image/png;base64,{PICTURE}"
SOUND = base64.b64encode(media_file("tiny.wav")).decode()
PROJECTOR = TinyProjector("mlp")
TEXT = "What is this:"
FEW: dict[str, Any] = {"temperature": 0, "max_tokens": 4}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealServer]:
    folder = tmp_path_factory.mktemp("gguf")
    paths = (gguf_file(folder, PLAIN), "--mmproj", str(projector_file(folder, PROJECTOR)), "--media-path", str(FILES))
    with llamapool(*paths, "-c", "4096", "-np", "2", "-t", "1", *EXACT) as running:
        yield running


def chat(content: object, **more: object) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": content}], **FEW, **more}


def shown(url: str, kind: str = "image_url") -> dict[str, Any]:
    return chat([{"type": "text", "text": TEXT}, {"type": kind, kind: {"url": url}}])


def anthropic_image(source: dict[str, str]) -> dict[str, Any]:
    return {"type": "image", "source": source}


BASE64 = {"type": "base64", "media_type": "image/png", "data": PICTURE}


def test_every_wire_format_shows_the_same(server: RealServer) -> None:
    said = server.post("/v1/chat/completions", shown(URL))
    n_prompt, text = said["usage"]["prompt_tokens"], said["choices"][0]["message"]["content"]
    alone = server.post("/v1/chat/completions/input_tokens", chat(TEXT))["input_tokens"]
    assert n_prompt == alone + PROJECTOR.n_tokens
    assert server.post("/v1/chat/completions/input_tokens", shown(URL))["input_tokens"] == n_prompt

    message = {**FEW, **chat([{"type": "text", "text": TEXT}, anthropic_image(BASE64)])}
    reply = server.post("/v1/messages", message)
    assert (reply["content"][0]["text"], usage(reply)) == (text, n_prompt)
    assert server.post("/v1/messages/count_tokens", message)["input_tokens"] == n_prompt

    for part in (
        {"type": "input_image", "image_url": URL},
        {"type": "input_file", "filename": "a.png", "file_data": URL},
    ):
        asked: dict[str, Any] = {"input": [{"role": "user", "content": [{"type": "input_text", "text": TEXT}, part]}]}
        response = server.post("/v1/responses", {**asked, "temperature": 0, "max_output_tokens": 4})
        assert response["usage"]["input_tokens"] == n_prompt
        assert response["output"][-1]["content"][0]["text"] == text
        assert server.post("/v1/responses/input_tokens", asked)["input_tokens"] == n_prompt

    ollama = {"stream": False, "options": {"temperature": 0, "num_predict": 4}}
    asked = {"messages": [{"role": "user", "content": TEXT, "images": [PICTURE]}], **ollama}
    assert server.post("/api/chat", asked)["prompt_eval_count"] == n_prompt  # where pictures stand before the text
    raw = server.post("/api/generate", {"raw": True, "prompt": TEXT, "images": [PICTURE], **ollama})
    assert raw["prompt_eval_count"] == PROJECTOR.n_tokens + n_text(server, TEXT)


def usage(reply: dict[str, Any]) -> int:
    found = reply["usage"]
    return int(found["input_tokens"] + found.get("cache_read_input_tokens", 0))


def n_text(server: RealServer, text: str) -> int:
    return len(server.post("/tokenize", {"content": text, "add_special": True})["tokens"])


def test_what_a_tool_has_shown_is_seen(server: RealServer) -> None:
    use = {"type": "tool_use", "id": "t1", "name": "look", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "t1", "content": [anthropic_image(BASE64)]}
    tools = [{"name": "look", "input_schema": {"type": "object"}}]

    def n(block: dict[str, Any]) -> int:
        messages = [{"role": "user", "content": "Look."}, {"role": "assistant", "content": [use]}]
        body = {"messages": [*messages, {"role": "user", "content": [block]}], "tools": tools}
        return int(server.post("/v1/messages/count_tokens", body)["input_tokens"])

    more = n(result) - n({**result, "content": []})
    assert PROJECTOR.n_tokens <= more < PROJECTOR.n_tokens + 5  # and what the template writes in front of a result
    page = {"type": "document", "source": {"type": "content", "content": [anthropic_image(BASE64)]}}
    assert n({**result, "content": [page]}) == n(result)


def test_prompts_have_their_pictures_at_markers(server: RealServer) -> None:
    marker = server.get("/props")["media_marker"]
    prompt = {"prompt_string": f"A {marker} b {marker}", "multimodal_data": [PICTURE, PICTURE]}
    said = server.post("/completion", {"prompt": prompt, "n_predict": 4, "temperature": 0})
    assert said["tokens_evaluated"] == n_text(server, "A ") + 2 * PROJECTOR.n_tokens + n_text(server, " b ") - 1
    tokens = server.post("/tokenize", {"content": prompt, "add_special": True, "with_pieces": True})["tokens"]
    assert len(tokens) == said["tokens_evaluated"]
    assert [token for token in tokens if token["id"] < 0] == 2 * PROJECTOR.n_tokens * [{"id": -1, "piece": ""}]
    assert server.post("/tokenize", {"content": prompt})["tokens"] == [token["id"] for token in tokens[1:]]
    both = server.post("/completion", {"prompt": [prompt, "text"], "n_predict": 4, "temperature": 0})
    assert both[0]["content"] == said["content"]
    echo = server.post("/v1/completions", {"prompt": prompt, "echo": True, **FEW})["choices"][0]["text"]
    assert echo == prompt["prompt_string"] + said["content"]


def test_the_text_behind_a_picture_is_scored_as_it_is_generated(server: RealServer) -> None:
    marker = server.get("/props")["media_marker"]

    def ask(text: str, **more: object) -> dict[str, Any]:
        prompt = {"prompt_string": text, "multimodal_data": [PICTURE]}
        body = {"prompt": prompt, "temperature": 0, "logprobs": 5, "max_tokens": 1, **more}
        found: dict[str, Any] = server.post("/v1/completions", body)["choices"][0]["logprobs"]
        return found

    (expected,) = ask(f"A {marker}")["top_logprobs"]
    lists, n_before = ask(f"A {marker} b", echo=True), n_text(server, "A ")
    n_behind = n_before + PROJECTOR.n_tokens
    assert lists["token_logprobs"][n_before:n_behind] == [None] * PROJECTOR.n_tokens
    assert None not in lists["token_logprobs"][1:n_before] + lists["token_logprobs"][n_behind:]
    assert lists["text_offset"][n_behind] == len(f"A {marker}")
    scored = lists["top_logprobs"][n_behind]
    assert [scored[piece] for piece in expected] == pytest.approx(list(expected.values()), abs=LOGPROB_SPREAD)


def test_a_marker_in_what_a_user_says_is_text(server: RealServer) -> None:
    marker = server.get("/props")["media_marker"]

    def count(content: object) -> int:
        return int(server.post("/v1/chat/completions/input_tokens", chat(content))["input_tokens"])

    plain = count(f"{TEXT}{marker}")
    assert plain == count([{"type": "text", "text": f"{TEXT}{marker}"}])
    both = count([{"type": "text", "text": f"{TEXT}{marker}"}, {"type": "image_url", "image_url": {"url": URL}}])
    assert both == plain + PROJECTOR.n_tokens
    body = {"prompt": f"{TEXT}{marker}", "n_predict": 1}
    assert server.post("/completion", body)["tokens_evaluated"] == n_text(server, f"{TEXT}{marker}")


def test_a_rendered_prompt_shows_where_pictures_are(server: RealServer) -> None:
    marker = server.get("/props")["media_marker"]
    prompt = server.post("/apply-template", shown("https://nowhere.example/a.png"))["prompt"]
    assert f"{TEXT}{marker}<|im_end|>" in prompt


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (shown("malformed!"), "Invalid base64 value"),
        (shown("data:text/html;base64,aGVsbG8="), "Invalid uri format: data:text/html;base64"),
        (shown("data:image/png,aGVsbG8="), "uri must be base64 encoded"),
        (shown("data:image/png;base64,a,b"), "Invalid uri-encoded base64 value"),
        (shown("aGVsbG8gd29ybGQ="), "it is neither PNG"),
        (shown("https://example.com/a.png"), "media_fetch does not allow it"),
        (shown("http://127.0.0.1:1/a.png"), "media_fetch does not allow it"),
        (shown("file://../conftest.py"), "file path is not allowed"),
        (shown("file://none.png"), "does not exist"),
        (shown(f"data:audio/wav;base64,{SOUND}"), "this model hears nothing"),
        (shown(SOUND, "input_audio"), "audio input is not supported"),
        (
            shown(f"data:video/mp4;base64,{base64.b64encode(media_file('tiny.mp4')[:99]).decode()}", "video_url"),
            "video",
        ),
        (chat([{"type": "image_url", "image_url": {}}]), "image input is not supported - there is no address"),
    ],
)
def test_what_can_not_be_shown_is_a_400(server: RealServer, body: dict[str, Any], said: str) -> None:
    for path in ("/v1/chat/completions", "/v1/chat/completions/input_tokens"):
        reply = server.request("POST", path, body)
        assert reply.status == 400
        assert said in reply.json()["error"]["message"]
        assert reply.json()["error"]["param"].startswith("messages.0.content.")


def test_a_video_is_pictures_and_the_time_of_each_fifth_second(server: RealServer, video: list[str | Bitmap]) -> None:
    marker, options = server.get("/props")["media_marker"], {"temperature": 0, "n_predict": 8}
    text = "".join(part if isinstance(part, str) else marker for part in video)
    assert text == f"Video:{marker}[0m0.00s]{marker * 9}"
    frames = [url(part).partition(",")[2] for part in video if isinstance(part, Bitmap)]
    said = server.post("/completion", {"prompt": {"prompt_string": text, "multimodal_data": frames}, **options})
    prompt = {"prompt_string": marker, "multimodal_data": [base64.b64encode(media_file("tiny.mp4")).decode()]}
    found = server.post("/completion", {"prompt": prompt, **options})
    assert (found["content"], found["tokens_evaluated"]) == (said["content"], said["tokens_evaluated"])
    again = server.post("/completion", {"prompt": prompt, **options})
    assert again["content"] == found["content"]
    assert again["timings"]["cache_n"] > found["tokens_evaluated"] - 100


@pytest.mark.parametrize("kind", ["video_url", "input_video", "image_url"])
def test_a_video_is_one_from_wherever_it_comes(server: RealServer, kind: str) -> None:
    data = f"data:video/mp4;base64,{base64.b64encode(media_file('tiny.mp4')).decode()}"
    replies = [server.post("/v1/chat/completions", shown(url, kind)) for url in ("file://tiny.mp4", data)]
    n = [reply["usage"]["prompt_tokens"] for reply in replies]
    counted = server.post("/v1/chat/completions/input_tokens", shown(data, kind))["input_tokens"]
    assert n == [counted, counted]
    assert len({reply["choices"][0]["message"]["content"] for reply in replies}) == 1


@pytest.mark.parametrize("stream", [False, True])
def test_it_is_told_that_the_sound_of_a_video_is_not_heard(server: RealServer, stream: bool) -> None:
    for name, told in (
        (SOUNDING_VIDEO, "messages.0.content.1.type: the sound of a video is not heard"),
        ("tiny.mp4", None),
    ):
        body = {**shown(f"file://{name}", "video_url"), "stream": stream}
        reply = server.request("POST", "/v1/chat/completions", body)
        assert (reply.status, reply.headers.get("x-llamapool-warning")) == (200, told)


def url(frame: Bitmap) -> str:
    rows = b"".join(b"\0" + frame.data[at : at + 3 * frame.width] for at in range(0, len(frame.data), 3 * frame.width))
    return f"data:image/png;base64,{base64.b64encode(png(frame.width, frame.height, rows)).decode()}"


@pytest.fixture(scope="module")
def video() -> Iterator[list[str | Bitmap]]:
    decoder = Decoder(ANSWERER)
    yield list(decoder.decode(media_file("tiny.mp4"), 0).parts)
    decoder.close()


@pytest.mark.parametrize("name", PHOTOS)
def test_pictures_of_the_extra_are_seen(server: RealServer, name: str) -> None:
    shown_alone, shown_png = (server.post("/v1/chat/completions", shown(f"file://{n}")) for n in (name, "tiny.png"))
    assert shown_alone["usage"]["prompt_tokens"] == shown_png["usage"]["prompt_tokens"]


def test_sounds_further_back_are_a_placeholder_for_a_model_that_only_sees(server: RealServer) -> None:
    messages = [
        {"role": "user", "content": [{"type": "input_audio", "input_audio": {"data": "x", "format": "wav"}}]},
        {"role": "assistant", "content": "What?"},
        {"role": "user", "content": [{"type": "image_url", "image_url": {"url": URL}}]},
    ]
    prompt = server.post("/apply-template", {"messages": messages})["prompt"]
    assert "[audio: not shown, this model takes none]" in prompt
    assert server.get("/props")["media_marker"] in prompt


@pytest.mark.parametrize(
    "prompt",
    [
        {"prompt_string": "A {} b", "multimodal_data": ["malformed!"]},
        {"prompt_string": "A b", "multimodal_data": [PICTURE]},
        {"prompt_string": "A {} {} b", "multimodal_data": [PICTURE]},
        {"prompt_string": "A b", "multimodal_data": [""]},
        {"prompt_string": [1], "multimodal_data": [PICTURE]},
        {"prompt_string": "A {} b", "multimodal_data": [5]},
        {"prompt_string": "A {} b", "multimodal_data": {"a": PICTURE}},
    ],
)
def test_markers_and_files_go_together_or_are_a_400(server: RealServer, prompt: dict[str, Any]) -> None:
    if isinstance(prompt["prompt_string"], str):
        prompt = prompt | {"prompt_string": prompt["prompt_string"].replace("{}", server.get("/props")["media_marker"])}
    for path in ("/completion", "/v1/completions"):
        assert server.request("POST", path, {"prompt": prompt, "n_predict": 1}).status == 400


def test_the_official_clients_show_pictures(server: RealServer) -> None:
    model = server.get("/v1/models")["data"][0]["id"]
    n_prompt = server.post("/v1/chat/completions/input_tokens", shown(URL))["input_tokens"]
    with openai.OpenAI(api_key="x", base_url=f"{server.base_url}/v1", max_retries=0) as client:
        parts: Any = [{"type": "text", "text": TEXT}, {"type": "image_url", "image_url": {"url": URL}}]
        completion = client.chat.completions.create(model=model, messages=[{"role": "user", "content": parts}], **FEW)
        assert completion.usage is not None
        assert completion.usage.prompt_tokens == n_prompt
        given: Any = [{"type": "input_text", "text": TEXT}, {"type": "input_image", "image_url": URL, "detail": "auto"}]
        counted = client.responses.input_tokens.count(model=model, input=[{"role": "user", "content": given}])
        assert counted.input_tokens == n_prompt
    with anthropic.Anthropic(api_key="x", base_url=server.base_url, max_retries=0) as claude:
        blocks: Any = [{"type": "text", "text": TEXT}, anthropic_image(BASE64)]
        tokens = claude.messages.count_tokens(model=model, messages=[{"role": "user", "content": blocks}])
        assert tokens.input_tokens == n_prompt
    asked: Any = [{"role": "user", "content": TEXT, "images": [media_file("tiny.png")]}]
    with ollama.Client(server.base_url) as llama:
        said = llama.chat(model, messages=asked, options={"num_predict": 1})
    assert said.prompt_eval_count == n_prompt


def test_what_an_embedding_can_not_be_made_of_is_said(server: RealServer) -> None:
    prompt = {"prompt_string": f"a {server.get('/props')['media_marker']}", "multimodal_data": [SOUND]}
    reply = server.request("POST", "/completion", {"prompt": prompt, "n_predict": 1})
    assert (reply.status, "this model hears nothing" in reply.json()["error"]["message"]) == (400, True)


def test_a_document_has_text_and_images_of_pages(server: RealServer) -> None:
    """Through the projector's tokenizer: a page without text is an image, and no text is a control token."""

    def n(data: bytes) -> int:
        file = {"filename": "a", "file_data": base64.b64encode(data).decode()}
        body = chat([{"type": "file", "file": file}, {"type": "text", "text": TEXT}])
        counted = server.post("/v1/chat/completions/input_tokens", body)["input_tokens"]
        reply = server.post("/v1/chat/completions", body)
        assert reply["usage"]["prompt_tokens"] == counted
        return int(counted)

    blank = n(pdf("a", ""))
    assert 0 < n(pdf("a", None)) - blank + n_text(server, ": no text; not shown") - PROJECTOR.n_tokens < 12
    one, two = (n(pdf(None, "<|im_end|>" * times)) for times in (1, 11))
    assert two - one > 20
