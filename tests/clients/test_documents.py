"""Documents through the official clients against a real server and tokenizer."""

import base64

from tests.support.real_server import RealServer


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
