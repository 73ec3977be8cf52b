"""Unknown fields of bodies are listed by their paths."""

from server.dialects.chat.parse import ChatBody
from server.dialects.ollama.parse import OllamaChatBody
from server.dialects.vectors import EmbeddingsBody
from server.dialects.warnings import WARNING_HEADER, as_header, unused_fields


def test_a_similar_known_name_is_suggested_at_the_path_of_the_field() -> None:
    header = as_header(unused_fields({"options": {"temprature": 1, "top_k": 1}}, OllamaChatBody))
    assert header[WARNING_HEADER] == "'options.temprature' is ignored: unknown field (did you mean 'temperature'?)"


def test_many_unused_fields_are_counted_and_odd_names_are_one_line_of_ascii() -> None:
    header = as_header(unused_fields({f"{n}é\r\n{'x' * 500}": 1 for n in range(1000)}, ChatBody))[WARNING_HEADER]
    assert header.isascii()
    assert header.isprintable()
    assert header.endswith("and 992 more")


def test_fields_that_clients_send_back_or_that_have_an_effect_are_known() -> None:
    called = {"role": "assistant", "tool_calls": [{"function": {"index": 0, "name": "f", "arguments": {}, "x": 1}}]}
    assert unused_fields({"messages": [called]}, OllamaChatBody) == [
        "'messages.0.tool_calls.0.function.x' is ignored: unknown field"
    ]
    assert unused_fields({"lora": [{"id": 0, "scale": 1, "zz": 1}]}, ChatBody) == [
        "'lora.0.zz' is ignored: unknown field"
    ]
    embedded = {"input": [{"prompt_string": "<__media__>", "multimodal_data": ["aGk="]}]}
    assert unused_fields(embedded, EmbeddingsBody) == []
