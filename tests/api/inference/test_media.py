"""Pictures and sounds over a scripted model that says what it was shown, and transcriptions by the official client."""

import base64
import random
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import httpx
import openai
import pytest
from openai.types.audio import Translation, TranslationVerbose
from pydantic import TypeAdapter

from tests.api.conftest import Api, Serve
from tests.media_files import media_file, wav
from tests.support.fakes import ASSISTANT, FakeLoader

PICTURE = f"data:image/png;base64,{base64.b64encode(media_file('tiny.png')).decode()}"
SOUND = media_file("tiny.wav")
SEEN, HEARD = "(image 16x12)", "(audio 1600x1)"
WORDS = "Hello."
LOST = "[image: not shown, it could not be read]"


HINT = "The audio may continue this text or contain its names and terms; spell them in the same way: "


def asked(*parts: str) -> str:
    return f"<|im_start|>user\n{''.join(parts)}<|im_end|>\n{ASSISTANT}"


REPLIES = {
    asked("Transcribe audio to text", HEARD): WORDS,
    asked(f"Transcribe audio to text (language: en)\n{HINT}Aoife, Siobhán.", HEARD): "en",
    asked("Translate the speech in the audio into English text", HEARD): "In English.",
    asked("What?", SEEN): "A picture.",
    asked("What?", SEEN, "\nAnd?"): "wrong",
    f"{SEEN}What?": "Raw.",
    asked("What?", SEEN, "And?", HEARD): "Both.",
    asked("What?", LOST) + f"A.<|im_end|>\n{asked('And?', SEEN)}": "It goes on.",
}


@pytest.fixture
async def hearing(serve: Serve) -> AsyncIterator[Api]:
    async with serve(FakeLoader(replies=REPLIES, media=frozenset({"image", "audio"}))) as api:
        yield api


@pytest.fixture
def client(hearing: Api) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(
        api_key="x", base_url="http://test/v1", http_client=cast(Any, hearing.client), max_retries=0
    )


def chat(*content: dict[str, Any], **more: object) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": list(content)}], "temperature": 0, **more}


def text(said: str) -> dict[str, Any]:
    return {"type": "text", "text": said}


IMAGE = {"type": "image_url", "image_url": {"url": PICTURE}}
AUDIO = {"type": "input_audio", "input_audio": {"data": base64.b64encode(SOUND).decode(), "format": "wav"}}


async def test_ollamas_raw_prompt_has_its_pictures_before_it(hearing: Api) -> None:
    body = {"model": "demo", "raw": True, "prompt": "What?", "images": [PICTURE.partition(",")[2]], "stream": False}
    await hearing.expect("POST /api/generate", body, 200, {"response": "Raw."})


async def test_no_line_stands_beside_a_picture_as_in_llama_server(hearing: Api) -> None:
    for parts, said in (((text("What?"), IMAGE), "A picture."), ((text("What?"), IMAGE, text("And?"), AUDIO), "Both.")):
        await hearing.expect("POST /v1/chat/completions", chat(*parts), 200, f'"content":"{said}"')


@pytest.mark.parametrize("url", ["data:image/png;base64,aaaa", "http://127.0.0.1:9/gone.png", "data:text/html,x"])
async def test_a_picture_of_the_history_that_is_lost_ends_no_session(hearing: Api, url: str) -> None:
    path, lost = "POST /v1/chat/completions", {"type": "image_url", "image_url": {"url": url}}
    said = [{"role": "user", "content": [text("What?"), lost]}, {"role": "assistant", "content": "A."}]
    again = [*said, {"role": "user", "content": [text("And?"), IMAGE]}]
    reply = await hearing.expect(path, {"messages": again, "temperature": 0}, 200, '"content":"It goes on."')
    assert reply.headers["x-llamapool-warning"] == f"messages.0.content.1.type: {LOST}"
    stream = await hearing.expect(path, {"messages": again, "stream": True, "max_tokens": 1})
    assert stream.headers["x-llamapool-warning"].endswith(LOST)
    await hearing.expect(path, {"messages": said[:1]}, 400, '"message":"messages.0.content.1.type:')


async def test_pictures_beyond_what_is_shown_or_fetched(hearing: Api) -> None:
    path = "POST /v1/chat/completions"
    links = [{"type": "image_url", "image_url": {"url": f"http://127.0.0.1:9/{n}.png"}} for n in range(40)]
    said: list[Any] = [{"role": "user", "content": links}]
    await hearing.expect(path, {"messages": said}, 400, "at most 32 addresses")
    said += [{"role": "assistant", "content": "A."}, {"role": "user", "content": "?"}]  # left out of a history
    placeholders = "exceeds the available context size"
    await hearing.expect(path, {"messages": said, "max_tokens": 1}, 400, placeholders)
    data = base64.b64encode(media_file("tiny.png")).decode()
    body = {"prompt": {"prompt_string": "<__media__>" * 257, "multimodal_data": [data] * 257}, "n_predict": 1}
    await hearing.expect("POST /completion", body, 400, "at most 256 files, this one shows 257")


async def test_a_picture_counts_as_often_as_it_stands_in_a_prompt(
    hearing: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("server.media.loader.MAX_DECODED_BYTES", 16 * 12 * 3 * 2)
    for n, status in ((3, 400), (2, 200)):
        await hearing.expect("POST /v1/chat/completions", chat(*[IMAGE] * n), status)


async def test_a_model_that_sees_nothing_says_what_it_is_told_instead(serve: Serve) -> None:
    said = [{"role": "user", "content": [text("What?"), IMAGE]}, {"role": "user", "content": "And?"}]
    async with serve() as api:
        body = {"messages": said, "max_tokens": 1, "tools": [{"type": "web_search"}]}
        reply = await api.client.post("/v1/chat/completions", json=body)
        counted = await api.client.post("/v1/chat/completions/input_tokens", json=body)
    told = "messages.0.content.1.type: [image: not shown, this model takes none]"
    for each in (reply, counted):
        assert each.headers["x-llamapool-warning"] == (
            f"tools of type 'web_search' are left out: only the provider's servers execute them; {told}"
        )


async def test_models_that_are_not_loaded_tell_what_they_take(serve: Serve, tmp_path: Any) -> None:
    projector = tmp_path / "mmproj.gguf"
    projector.touch()
    models = {"seer": {"path": "demo.gguf", "mmproj": str(projector), "load": "on_demand"}}
    async with serve(FakeLoader(media=frozenset({"image"})), models=models) as api:
        found = (await api.client.get("/v1/models")).json()
        assert found["data"][0]["status"]["value"] == "unloaded"
        assert found["data"][0]["architecture"]["input_modalities"] == ["text", "image"]
        assert found["models"][0]["capabilities"] == ["completion", "multimodal"]


async def test_the_official_client_transcribes(client: openai.AsyncOpenAI) -> None:
    given: Any = {"model": "demo", "file": ("a.wav", SOUND), "temperature": 0}
    found = await client.audio.transcriptions.create(**given)
    assert found.text == WORDS
    assert found.usage is not None
    assert found.usage.type == "tokens"
    assert found.usage.total_tokens == found.usage.input_tokens + found.usage.output_tokens
    assert (await client.audio.transcriptions.create(**given, prompt="Aoife, Siobhán.", language="en")).text == "en"
    long = await client.audio.transcriptions.create(**given, response_format="verbose_json", language="")
    assert (long.text, round(long.duration, 1), long.language) == (WORDS, 0.1, "unknown")
    (segment,) = long.segments
    assert (segment.text, segment.start, segment.end) == (WORDS, 0, long.duration)
    assert bytes(token for token in segment.tokens if token < 256).decode() == WORDS
    assert segment.avg_logprob <= 0


async def test_the_official_client_translates(hearing: Api, client: openai.AsyncOpenAI) -> None:
    given: Any = {"model": "demo", "file": ("a.wav", SOUND), "temperature": 0}
    with pytest.warns(DeprecationWarning, match="deprecated"):  # of OpenAI's endpoint
        found = await client.audio.translations.create(**given)
    TypeAdapter(Translation).validate_python(found.model_dump())
    assert found.text == "In English."
    form = {"temperature": "0", "response_format": "verbose_json"}
    verbose = (await hearing.client.post("/v1/audio/translations", files={"file": SOUND}, data=form)).json()
    TypeAdapter(TranslationVerbose).validate_python(verbose)
    assert (verbose["text"], verbose["language"], verbose["task"]) == ("In English.", "english", "translate")
    reply = await hearing.client.post(
        "/v1/audio/translations", files={"file": SOUND}, data={"temperature": "0", "stream": "true", "language": "de"}
    )
    assert reply.json()["text"] == "In English."
    assert reply.headers["x-llamapool-warning"] == (
        "'stream' is ignored: unknown field; 'language' is ignored: unknown field"
    )


async def test_the_official_client_transcribes_while_it_is_written(client: openai.AsyncOpenAI) -> None:
    stream = await client.audio.transcriptions.create(
        model="demo", file=("a.wav", SOUND), temperature=0, response_format="json", stream=True
    )
    events = [event async for event in stream]
    assert [event.type for event in events] == ["transcript.text.delta"] * (len(events) - 1) + ["transcript.text.done"]
    assert "".join(event.delta for event in events[:-1]) == events[-1].text == WORDS  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("form", "expected"),
    [
        ("text", f"{WORDS}\n"),
        ("srt", f"1\n00:00:00,000 --> 00:00:00,100\n{WORDS}\n\n"),
        ("vtt", f"WEBVTT\n\n00:00:00.000 --> 00:00:00.100\n{WORDS}\n\n"),
    ],
)
async def test_texts_and_subtitles(client: openai.AsyncOpenAI, form: Any, expected: str) -> None:
    found: Any = await client.audio.transcriptions.create(
        model="demo", file=("a.wav", SOUND), temperature=0, response_format=form
    )
    assert found == expected


async def test_damaged_sounds_and_wrong_fields_are_the_clients_fault(client: openai.AsyncOpenAI) -> None:
    async def refused(data: bytes = SOUND, **fields: Any) -> str:
        with pytest.raises(openai.BadRequestError) as caught:
            await client.audio.transcriptions.create(model="demo", file=("a.wav", data), extra_body=fields)
        return str(caught.value)

    assert "file: Failed to load image or audio file" in await refused(SOUND[:20])
    assert "neither PNG" in await refused(b"hello")
    assert "'response_format': must be" in await refused(response_format="xml")
    assert "no times of words" in await refused(timestamp_granularities=["word"])
    assert "'temperature': must be" in await refused(temperature="warm")
    assert "'stream': must be" in await refused(stream="maybe")
    assert "can't be used with response_format srt" in await refused(stream="true", response_format="srt")


async def test_a_form_without_a_file_and_no_form_at_all(hearing: Api) -> None:
    form, bounded = ({"Content-Type": f"multipart/form-data{end}"} for end in ("", "; boundary=b"))
    for sent, said in (
        ({"files": {"other": b"x"}}, "No input file found"),
        ({"json": {"file": "x"}}, "must be a form"),
        ({"content": b"x", "headers": form}, "not a valid form"),
        ({"content": b"--b\r\nx", "headers": bounded}, ""),
    ):
        reply = await hearing.client.post("/v1/audio/transcriptions", **sent)
        assert (reply.status_code, said in reply.json()["error"]["message"]) == (400, True)


async def test_a_large_sound_needs_no_folder_for_temporary_files(
    client: openai.AsyncOpenAI, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Such as a container with a read-only root file system and no /tmp."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    sound = wav(random.Random(0).randbytes(3 << 20))
    found = await client.audio.transcriptions.create(model="demo", file=("a.wav", sound), temperature=0)
    assert found.text  # the scripted model knows no words for this sound


async def test_a_model_that_hears_nothing_says_so(api: Api) -> None:
    reply = await api.client.post("/v1/audio/transcriptions", files={"file": SOUND})
    assert reply.status_code == 501
    assert reply.json()["error"]["message"] == "The current model does not support audio input."


async def test_a_form_is_bounded_as_other_bodies_are(serve: Serve) -> None:
    async with serve(FakeLoader(media=frozenset({"audio"})), server={"max_body_bytes": 1024}) as api:
        reply: httpx.Response = await api.client.post("/v1/audio/transcriptions", files={"file": SOUND})
    assert reply.status_code == 413
