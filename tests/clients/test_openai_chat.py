"""Chat with the official client: replies, streams, and every option that OpenAI's schema has and the server takes."""

from typing import Any

import pytest
from openai import OpenAI
from openai.types.chat import ChatCompletionChunk, ChatCompletionMessageParam

HELLO: list[ChatCompletionMessageParam] = [
    {"role": "system", "content": "be brief"},
    {"role": "user", "content": [{"type": "text", "text": "hello world"}]},
]
MODEL = "gpt-4o-mini"  # with one model, any name is accepted
ON = {"ignore_eos": True}  # random weights may end at once


def deltas(chunks: list[ChatCompletionChunk], index: int = 0) -> str:
    choices = [choice for chunk in chunks for choice in chunk.choices if choice.index == index]
    return "".join(choice.delta.content or "" for choice in choices)


def test_a_chat_has_a_message_usage_and_a_reason(client: OpenAI) -> None:
    reply = client.chat.completions.create(
        model=MODEL, messages=HELLO, max_completion_tokens=12, temperature=0, extra_body=ON
    )
    assert reply.object == "chat.completion"
    assert reply.choices[0].message.role == "assistant"
    assert reply.choices[0].message.content
    assert reply.choices[0].finish_reason == "length"
    assert reply.usage is not None
    assert reply.usage.completion_tokens == 12
    assert reply.usage.total_tokens == reply.usage.prompt_tokens + 12
    assert reply.id.startswith("chatcmpl-")


def test_a_stream_says_what_the_reply_says(client: OpenAI) -> None:
    options: dict[str, Any] = {"model": MODEL, "messages": HELLO, "max_tokens": 30, "temperature": 0, "extra_body": ON}
    whole = client.chat.completions.create(**options)
    chunks = list(client.chat.completions.create(**options, stream=True))
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[0].choices[0].delta.content == ""
    assert deltas(chunks) == whole.choices[0].message.content
    assert [chunk.choices[0].finish_reason for chunk in chunks] == [None] * (len(chunks) - 1) + ["length"]
    assert len({chunk.id for chunk in chunks}) == 1


def test_usage_is_streamed_when_asked_for(client: OpenAI) -> None:
    *chunks, last = client.chat.completions.create(
        model=MODEL, messages=HELLO, max_tokens=5, stream=True, stream_options={"include_usage": True}, extra_body=ON
    )
    assert last.choices == []
    assert last.usage is not None
    assert last.usage.completion_tokens == 5
    assert all(chunk.usage is None for chunk in chunks)


def test_the_stream_helper_accumulates_a_completion(client: OpenAI) -> None:
    options: dict[str, Any] = {"model": MODEL, "messages": HELLO, "temperature": 0, "max_tokens": 40, "extra_body": ON}
    text = client.chat.completions.create(**options).choices[0].message.content
    assert text
    with client.chat.completions.stream(**options, stop=text[20:23]) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_completion()
    assert "content.delta" in kinds
    assert final.choices[0].message.content == text[: text.index(text[20:23])]
    assert final.choices[0].finish_reason == "stop"


@pytest.mark.parametrize("stream", [False, True])
def test_n_choices_come_from_one_prompt(client: OpenAI, stream: bool) -> None:
    options: dict[str, Any] = {
        "model": MODEL,
        "messages": HELLO,
        "max_tokens": 8,
        "n": 2,
        "temperature": 1.5,
        "seed": 5,
    }
    reply = client.chat.completions.create(**options, extra_body=ON)
    texts = [choice.message.content for choice in reply.choices]
    if stream:
        chunks = list(client.chat.completions.create(**options, extra_body=ON, stream=True))
        assert [deltas(chunks, 0), deltas(chunks, 1)] == texts
    assert [choice.index for choice in reply.choices] == [0, 1]
    assert texts[0] != texts[1]
    assert reply.usage is not None
    assert reply.usage.completion_tokens == 16


def test_logprobs_have_one_entry_for_each_token(client: OpenAI) -> None:
    reply = client.chat.completions.create(
        model=MODEL, messages=HELLO, max_tokens=6, temperature=0, logprobs=True, top_logprobs=3, extra_body=ON
    )
    logprobs = reply.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.content is not None
    assert len(logprobs.content) == 6
    for entry in logprobs.content:
        assert entry.logprob <= 0
        assert len(entry.top_logprobs) == 3
        assert entry.top_logprobs[0].logprob == pytest.approx(entry.logprob)  # greedy takes the best
        assert entry.bytes is not None


def test_a_seed_repeats_itself_and_another_does_not(client: OpenAI) -> None:
    def say(seed: int) -> str | None:
        reply = client.chat.completions.create(
            model=MODEL, messages=HELLO, max_tokens=16, temperature=1.2, seed=seed, extra_body=ON
        )
        return reply.choices[0].message.content

    assert say(7) == say(7) != say(8)


def test_a_stop_string_ends_the_text_and_is_left_out(client: OpenAI) -> None:
    options: dict[str, Any] = {"model": MODEL, "messages": HELLO, "temperature": 0, "extra_body": ON}
    text = client.chat.completions.create(**options, max_tokens=30).choices[0].message.content
    assert text
    stop = text[5:7]
    stopped = client.chat.completions.create(**options, max_tokens=30, stop=[stop]).choices[0]
    assert stopped.message.content == text[: text.index(stop)]
    assert stopped.finish_reason == "stop"
    chunks = list(client.chat.completions.create(**options, max_tokens=30, stop=stop, stream=True))
    assert deltas(chunks) == stopped.message.content
    assert chunks[-1].choices[0].finish_reason == "stop"


def test_penalties_and_biases_change_greedy_output(client: OpenAI) -> None:
    options: dict[str, Any] = {"model": MODEL, "messages": HELLO, "temperature": 0, "max_tokens": 20, "extra_body": ON}
    plain = client.chat.completions.create(**options, logprobs=True).choices[0]
    assert plain.logprobs is not None
    assert plain.logprobs.content is not None
    first = plain.logprobs.content[0].model_extra
    assert first is not None
    biased = client.chat.completions.create(**options, logit_bias={str(first["id"]): -100}).choices[0]
    assert biased.message.content != plain.message.content
    penalized = client.chat.completions.create(**options, presence_penalty=2, frequency_penalty=2).choices[0]
    assert penalized.message.content


def test_models_are_listed_and_retrieved(client: OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["tiny"]
    assert client.models.retrieve("tiny").id == "tiny"


def test_llama_cpp_fields_go_through_extra_body(client: OpenAI) -> None:
    fields = {"top_k": 1, "min_p": 0.2, "repeat_penalty": 1.1, "mirostat": 0, "cache_prompt": False, "ignore_eos": True}
    reply = client.chat.completions.create(model=MODEL, messages=HELLO, max_tokens=4, extra_body=fields)
    assert reply.model_extra is not None
    assert reply.model_extra["timings"]["predicted_n"] == 4
