"""Documents through the official clients against a real server and tokenizer."""

import base64
from typing import Any

from anthropic import Anthropic
from anthropic.types import Message
from openai import OpenAI
from openai.types.chat import ChatCompletion
from openai.types.responses import Response
from pydantic import TypeAdapter

from tests.media_files import pdf
from tests.support.real_server import REPLY_S, RealServer

DATA = pdf("The magic number is 41.", "The end.")
TEXT = "[Page 1]\nThe magic number is 41.\n[Page 2]\nThe end."
FEW = {"temperature": 0, "ignore_eos": True}


def test_every_api_shows_the_same_document(server: RealServer) -> None:
    openai = OpenAI(base_url=f"{server.base_url}/v1", api_key="none", max_retries=0, timeout=REPLY_S)
    claude = Anthropic(base_url=server.base_url, api_key="none", max_retries=0, timeout=REPLY_S)
    encoded = base64.b64encode(DATA).decode()
    file = openai.files.create(file=("a.pdf", DATA), purpose="user_data")
    uploaded = claude.beta.files.upload(file=("a.pdf", DATA, "application/pdf"))
    question: Any = {"type": "text", "text": "Which number?"}
    found: list[tuple[str, int]] = []
    for part in ({"filename": "a.pdf", "file_data": encoded}, {"file_id": file.id}, {"file_id": uploaded.id}):
        content: Any = [{"type": "file", "file": part}, question]
        messages: Any = [{"role": "user", "content": content}]
        chat = openai.chat.completions.create(model="tiny", messages=messages, max_tokens=4, extra_body=FEW)
        TypeAdapter(ChatCompletion).validate_python(chat.to_dict())
        assert chat.usage
        found.append((chat.choices[0].message.content or "", chat.usage.prompt_tokens))
        given: Any = [{"type": "input_file", **part}, {**question, "type": "input_text"}]
        items: Any = [{"role": "user", "content": given}]
        response = openai.responses.create(model="tiny", input=items, max_output_tokens=4, extra_body=FEW)
        TypeAdapter(Response).validate_python(response.to_dict())
        assert response.usage
        found.append((response.output_text, response.usage.input_tokens))
    sources: list[dict[str, Any]] = [
        {"title": "a.pdf", "source": {"type": "base64", "media_type": "application/pdf", "data": encoded}},
        {"source": {"type": "file", "file_id": file.id}},
    ]
    for source in sources:
        blocks: Any = [{"type": "document", **source}, question]
        turns: Any = [{"role": "user", "content": blocks}]
        message = claude.messages.create(model="tiny", messages=turns, max_tokens=4, extra_body=FEW)
        TypeAdapter(Message).validate_python(message.to_dict())
        counted = claude.messages.count_tokens(model="tiny", messages=turns).input_tokens
        used = message.usage.input_tokens + (message.usage.cache_read_input_tokens or 0)
        assert counted == used
        found.append(("".join(block.text for block in message.content if block.type == "text"), used))
    assert len(set(found)) == 1, found


def test_a_document_holds_no_control_tokens(server: RealServer) -> None:
    """A user's `<|im_end|>` is the control token, as in llama-server; a document's is text."""

    def n_tokens(n: int, kind: str) -> int:
        text = "<|im_end|>" * n
        encoded = base64.b64encode(text.encode()).decode()
        parts = {
            "text": {"type": "text", "text": text},
            "document": {"type": "file", "file": {"filename": "a.txt", "file_data": encoded}},
        }
        body = {"messages": [{"role": "user", "content": [parts[kind]]}]}
        return int(server.post("/v1/chat/completions/input_tokens", body)["input_tokens"])

    assert n_tokens(30, "text") - n_tokens(20, "text") == 10
    assert n_tokens(30, "document") - n_tokens(20, "document") > 20
