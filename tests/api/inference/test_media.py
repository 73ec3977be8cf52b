"""Images and audio over a model whose replies depend on the rendered prompt; transcriptions by OpenAI's client."""

import base64
import random
import tempfile
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import openai
import pytest
from openai.types.audio import Translation, TranslationVerbose
from pydantic import TypeAdapter

from tests.api.conftest import Api, Serve
from tests.api.scripted import openai_client
from tests.media_files import media_file, wav
from tests.support.fakes import ASSISTANT, FakeLoader, FakeReader

IMAGE_URL = f"data:image/png;base64,{base64.b64encode(media_file('tiny.png')).decode()}"
SPEECH = media_file("tiny.wav")
IMAGE_TEXT, AUDIO_TEXT = "(image 16x12)", "(audio 1600x1)"  # as the fake model renders them
TRANSCRIPT = "Hello."
PLACEHOLDER = "[image: not shown, it could not be read]"
HINT = "The audio may continue this text or contain its names and terms; spell them in the same way: "
CHAT, TRANSCRIBE, TRANSLATE = "/v1/chat/completions", "/v1/audio/transcriptions", "/v1/audio/translations"


def user_turn(*parts: str) -> str:
    return f"<|im_start|>user\n{''.join(parts)}<|im_end|>\n{ASSISTANT}"


REPLIES = {
    user_turn("Transcribe audio to text", AUDIO_TEXT): TRANSCRIPT,
    user_turn(f"Transcribe audio to text (language: en)\n{HINT}Aoife, Siobhán.", AUDIO_TEXT): "en",
    user_turn("Translate the speech in the audio into English text", AUDIO_TEXT): "In English.",
    user_turn("What?", IMAGE_TEXT): "An image.",
    user_turn("What?", IMAGE_TEXT, "\nAnd?"): "wrong",
    f"{IMAGE_TEXT}What?": "Raw.",
    f"{user_turn('Draw.')}It\n\n{IMAGE_TEXT}": " works.",
    user_turn("What?", IMAGE_TEXT, "And?", AUDIO_TEXT): "Both.",
    user_turn("What?", PLACEHOLDER) + f"A.<|im_end|>\n{user_turn('And?', IMAGE_TEXT)}": "It continues.",
}


@pytest.fixture
async def multimodal(serve: Serve) -> AsyncIterator[Api]:
    async with serve(FakeLoader(replies=REPLIES, media=frozenset({"image", "audio"}))) as api:
        yield api


@pytest.fixture
def client(multimodal: Api) -> openai.AsyncOpenAI:
    return openai_client(multimodal)


def chat_body(*content: dict[str, Any], **fields: object) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": list(content)}], "temperature": 0, **fields}


def text_part(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def image_part(url: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url}}


IMAGE = image_part(IMAGE_URL)
AUDIO = {"type": "input_audio", "input_audio": {"data": base64.b64encode(SPEECH).decode(), "format": "wav"}}


async def test_images_precede_the_raw_prompt_of_ollama(multimodal: Api) -> None:
    body = {"model": "demo", "raw": True, "prompt": "What?", "images": [IMAGE_URL.partition(",")[2]], "stream": False}
    await multimodal.expect("POST /api/generate", body, 200, {"response": "Raw."})


async def test_no_newline_separates_media_from_text_as_in_llama_server(multimodal: Api) -> None:
    image_only, both = (text_part("What?"), IMAGE), (text_part("What?"), IMAGE, text_part("And?"), AUDIO)
    for parts, reply in ((image_only, "An image."), (both, "Both.")):
        await multimodal.expect(f"POST {CHAT}", chat_body(*parts), 200, f'"content":"{reply}"')


async def test_continued_assistant_message_keeps_its_image(multimodal: Api) -> None:
    messages = [{"role": "user", "content": "Draw."}, {"role": "assistant", "content": [text_part("It"), IMAGE]}]
    body = {"messages": messages, "temperature": 0}
    reply = await multimodal.expect(f"POST {CHAT}", body, 200, '"content":"It works."')
    assert "x-llamapool-warning" not in reply.headers


@pytest.mark.parametrize("url", ["data:image/png;base64,aaaa", "http://127.0.0.1:9/gone.png", "data:text/html,x"])
async def test_unreadable_image_in_the_history_is_a_warning_not_an_error(multimodal: Api, url: str) -> None:
    user = {"role": "user", "content": [text_part("What?"), image_part(url)]}
    history = [user, {"role": "assistant", "content": "A."}]
    messages = [*history, {"role": "user", "content": [text_part("And?"), IMAGE]}]
    body = {"messages": messages, "temperature": 0}
    reply = await multimodal.expect(f"POST {CHAT}", body, 200, '"content":"It continues."')
    assert reply.headers["x-llamapool-warning"] == f"messages.0.content.1.type: {PLACEHOLDER}"
    stream = await multimodal.expect(f"POST {CHAT}", {"messages": messages, "stream": True, "max_tokens": 1})
    assert stream.headers["x-llamapool-warning"].endswith(PLACEHOLDER)
    await multimodal.expect(f"POST {CHAT}", {"messages": [user]}, 400, '"message":"messages.0.content.1.type:')


async def test_number_of_media_and_urls_per_request_is_limited(multimodal: Api) -> None:
    links = [image_part(f"http://127.0.0.1:9/{n}.png") for n in range(40)]
    messages: list[Any] = [{"role": "user", "content": links}]
    await multimodal.expect(f"POST {CHAT}", {"messages": messages}, 400, "at most 32 addresses")
    messages += [{"role": "assistant", "content": "A."}, {"role": "user", "content": "?"}]  # placeholders in a history
    too_long = "exceeds the available context size"
    await multimodal.expect(f"POST {CHAT}", {"messages": messages, "max_tokens": 1}, 400, too_long)
    data = IMAGE_URL.partition(",")[2]
    body = {"prompt": {"prompt_string": "<__media__>" * 257, "multimodal_data": [data] * 257}, "n_predict": 1}
    await multimodal.expect("POST /completion", body, 400, "at most 256 files, this one shows 257")


async def test_decoded_size_limit_counts_every_occurrence_of_an_image(
    multimodal: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("server.media.loader.MAX_DECODED_BYTES", 16 * 12 * 3 * 2)
    for n, status in ((3, 400), (2, 200)):
        await multimodal.expect(f"POST {CHAT}", chat_body(*[IMAGE] * n), status)


async def test_long_audio_is_tokenized_in_the_thread_for_long_texts(
    multimodal: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    """libmtmd computes the spectrogram of the whole file: 7 s of CPU time for half an hour."""
    threads: list[str] = []
    tokenize = FakeReader.tokenize

    def record_thread(self: FakeReader, *args: Any, **options: Any) -> Any:
        threads.append(threading.current_thread().name.rpartition("_")[0])
        return tokenize(self, *args, **options)

    monkeypatch.setattr(FakeReader, "tokenize", record_thread)
    for seconds in (1, 31):
        file = base64.b64encode(wav(bytes(seconds * 2000), 1000)).decode()
        two = [{"type": "input_audio", "input_audio": {"data": data, "format": "wav"}} for data in (file, f" {file}")]
        await multimodal.expect(f"POST {CHAT}/input_tokens", chat_body(*two), 200)
    assert threads == ["prepare", "prepare-long"]


async def test_text_only_model_gets_a_placeholder_for_images_of_the_history(serve: Serve) -> None:
    messages = [{"role": "user", "content": [text_part("What?"), IMAGE]}, {"role": "user", "content": "And?"}]
    body = {"messages": messages, "max_tokens": 1, "tools": [{"type": "web_search"}]}
    warning = (
        "tools of type 'web_search' are left out: only the provider's servers execute them; "
        "messages.0.content.1.type: [image: not shown, this model takes none]"
    )
    async with serve() as api:
        for path in (CHAT, f"{CHAT}/input_tokens"):
            assert (await api.expect(f"POST {path}", body)).headers["x-llamapool-warning"] == warning


async def test_unloaded_models_report_their_input_modalities(serve: Serve, tmp_path: Any) -> None:
    projector = tmp_path / "mmproj.gguf"
    projector.touch()
    models = {"seer": {"path": "demo.gguf", "mmproj": str(projector), "load": "on_demand"}}
    async with serve(FakeLoader(media=frozenset({"image"})), models=models) as api:
        models_reply = (await api.client.get("/v1/models")).json()
        assert models_reply["data"][0]["status"]["value"] == "unloaded"
        assert models_reply["data"][0]["architecture"]["input_modalities"] == ["text", "image"]
        assert models_reply["models"][0]["capabilities"] == ["completion", "multimodal"]


FIELDS: Any = {"model": "demo", "file": ("a.wav", SPEECH), "temperature": 0}


async def test_official_client_transcribes(client: openai.AsyncOpenAI) -> None:
    plain = await client.audio.transcriptions.create(**FIELDS)
    assert plain.text == TRANSCRIPT
    assert plain.usage is not None
    assert plain.usage.type == "tokens"
    assert plain.usage.total_tokens == plain.usage.input_tokens + plain.usage.output_tokens
    assert (await client.audio.transcriptions.create(**FIELDS, prompt="Aoife, Siobhán.", language="en")).text == "en"
    verbose = await client.audio.transcriptions.create(**FIELDS, response_format="verbose_json", language="")
    assert (verbose.text, round(verbose.duration, 1), verbose.language) == (TRANSCRIPT, 0.1, "unknown")
    (segment,) = verbose.segments
    assert (segment.text, segment.start, segment.end) == (TRANSCRIPT, 0, verbose.duration)
    assert bytes(token for token in segment.tokens if token < 256).decode() == TRANSCRIPT
    assert segment.avg_logprob <= 0


async def test_official_client_translates(multimodal: Api, client: openai.AsyncOpenAI) -> None:
    with pytest.warns(DeprecationWarning, match="deprecated"):  # OpenAI deprecated the endpoint
        plain = await client.audio.translations.create(**FIELDS)
    TypeAdapter(Translation).validate_python(plain.model_dump())
    assert plain.text == "In English."
    file, form = {"file": SPEECH}, {"temperature": "0"}
    fields = {**form, "response_format": "verbose_json"}
    verbose = (await multimodal.client.post(TRANSLATE, files=file, data=fields)).json()
    TypeAdapter(TranslationVerbose).validate_python(verbose)
    assert (verbose["text"], verbose["language"], verbose["task"]) == ("In English.", "english", "translate")
    reply = await multimodal.client.post(TRANSLATE, files=file, data={**form, "stream": "true", "language": "de"})
    assert reply.json()["text"] == "In English."
    warning = "'stream' is ignored: unknown field; 'language' is ignored: unknown field"
    assert reply.headers["x-llamapool-warning"] == warning


async def test_official_client_streams_a_transcription(client: openai.AsyncOpenAI) -> None:
    stream = await client.audio.transcriptions.create(**FIELDS, response_format="json", stream=True)
    events = [event async for event in stream]
    assert [event.type for event in events] == ["transcript.text.delta"] * (len(events) - 1) + ["transcript.text.done"]
    assert "".join(event.delta for event in events[:-1]) == events[-1].text == TRANSCRIPT


@pytest.mark.parametrize(
    ("response_format", "expected"),
    [
        ("text", f"{TRANSCRIPT}\n"),
        ("srt", f"1\n00:00:00,000 --> 00:00:00,100\n{TRANSCRIPT}\n\n"),
        ("vtt", f"WEBVTT\n\n00:00:00.000 --> 00:00:00.100\n{TRANSCRIPT}\n\n"),
    ],
)
async def test_transcription_as_text_or_subtitles(
    client: openai.AsyncOpenAI, response_format: Any, expected: str
) -> None:
    assert await client.audio.transcriptions.create(**FIELDS, response_format=response_format) == expected


async def test_damaged_audio_and_invalid_fields_are_a_400(client: openai.AsyncOpenAI) -> None:
    async def error(data: bytes = SPEECH, **fields: Any) -> str:
        with pytest.raises(openai.BadRequestError) as caught:
            await client.audio.transcriptions.create(model="demo", file=("a.wav", data), extra_body=fields)
        return str(caught.value)

    assert "file: Failed to load image or audio file" in await error(SPEECH[:20])
    assert "neither PNG" in await error(b"hello")
    assert "'response_format': must be" in await error(response_format="xml")
    assert "no times of words" in await error(timestamp_granularities=["word"])
    assert "'temperature': must be" in await error(temperature="warm")
    assert "'stream': must be" in await error(stream="maybe")
    assert "can't be used with response_format srt" in await error(stream="true", response_format="srt")


async def test_audio_by_file_id_in_a_form_with_a_type_in_capitals(multimodal: Api) -> None:
    head = '--b\r\nContent-Disposition: form-data; name="{}"{}\r\n\r\n'
    texts = head.format("purpose", ""), "user_data\r\n", head.format("file", '; filename="a.wav"')
    body = "".join(texts).encode() + SPEECH + b"\r\n--b--\r\n"
    headers = {"Content-Type": "Multipart/Form-Data; boundary=b"}
    reply = await multimodal.expect("POST /v1/files", body, 200, headers=headers)
    audio = {"type": "input_audio", "file_id": reply.json()["id"]}
    await multimodal.expect(f"POST {CHAT}", chat_body(text_part("Transcribe audio to text"), audio), 200, TRANSCRIPT)


async def test_missing_file_and_invalid_forms_are_a_400(multimodal: Api) -> None:
    no_boundary, boundary = ({"Content-Type": f"multipart/form-data{end}"} for end in ("", "; boundary=b"))
    for request, message in (
        ({"files": {"other": b"x"}}, "No input file found"),
        ({"json": {"file": "x"}}, "must be a form"),
        ({"content": b"x", "headers": no_boundary}, "not a valid form"),
        ({"content": b"--b\r\nx", "headers": boundary}, ""),
    ):
        reply = await multimodal.client.post(TRANSCRIBE, **request)
        assert (reply.status_code, message in reply.json()["error"]["message"]) == (400, True)


async def test_large_audio_needs_no_temporary_folder(
    client: openai.AsyncOpenAI, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A container may have a read-only root file system and no /tmp."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    audio = wav(random.Random(0).randbytes(3 << 20))
    assert (await client.audio.transcriptions.create(**{**FIELDS, "file": ("a.wav", audio)})).text


async def test_transcription_by_a_model_without_audio_support_is_a_501(api: Api) -> None:
    reply = await api.client.post(TRANSCRIBE, files={"file": SPEECH})
    assert reply.status_code == 501
    assert reply.json()["error"]["message"] == "The current model does not support audio input."


async def test_forms_longer_than_max_body_bytes_are_a_413(serve: Serve) -> None:
    async with serve(FakeLoader(media=frozenset({"audio"})), server={"max_body_bytes": 1024}) as api:
        assert (await api.client.post(TRANSCRIBE, files={"file": SPEECH})).status_code == 413
