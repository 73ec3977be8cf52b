from typing import Any

import orjson
import pytest

from server.chat.prepare import prompt_of
from server.dialects.errors import anthropic_error, anthropic_error_event, speaks_anthropic
from server.dialects.messages.parse import DEFAULT_MAX_TOKENS, count_message_tokens, parse_messages
from server.engine.request import SamplingParams
from server.errors import InvalidRequest
from tests.unit.dialects.builders import FakeCompiler, FakeConstraint, make_model

THINKS = (
    "{% for m in messages %}{{ m.content }}{% endfor %}{% if enable_thinking %}<think>{% else %}</think>{% endif %}"
)
EFFORT = "{% for m in messages %}{{ m.content }}{% endfor %}{{ reasoning_effort }}"


def body(**more: object) -> dict[str, Any]:
    return {"max_tokens": 5, "messages": [{"role": "user", "content": "Hi"}], **more}


def request(model: Any = None, **more: object) -> Any:
    [found] = parse_messages(body(**more)).generation(model or make_model()).requests
    return found


def test_a_body_becomes_a_request() -> None:
    found = request(
        system="Be brief.",
        stop_sequences=["END", ""],
        temperature=0.5,
        top_p=0.25,
        top_k=7,
        metadata={"user_id": "me"},
        service_tier="auto",
    )
    assert found.id.startswith("msg_")
    assert (found.max_tokens, found.stop, found.n) == (5, ("END",), 1)
    assert found.sampling == SamplingParams(temperature=0.5, top_p=0.25, top_k=7)


def test_llama_cpps_own_fields_are_taken_too() -> None:
    found = request(seed=3, min_p=0.25, cache_prompt=False, id_slot=1)
    assert (found.sampling.seed, found.sampling.min_p, found.cache_prompt, found.id_slot) == (3, 0.25, False, 1)


def test_a_message_may_be_wanted_for_the_cache_only() -> None:
    assert request(max_tokens=0).max_tokens == 0


def test_openais_fields_mean_nothing_here() -> None:
    assert request(n=2, stop=["x"], logprobs=True, n_predict=1).max_tokens == 5


@pytest.mark.parametrize(
    ("thinking", "thinks"),
    [
        (None, True),  # the model's default
        ({"type": "enabled", "budget_tokens": 1024}, True),
        ({"type": "enabled"}, True),
        ({"type": "enabled", "budget_tokens": 0}, False),
        ({"type": "adaptive"}, True),
        ({"type": "disabled"}, False),
    ],
)
def test_thinking_is_turned_on_and_off(thinking: object, thinks: bool) -> None:
    prompt = prompt_of(parse_messages(body(thinking=thinking)).conversation, make_model(template=THINKS)).rendered.text
    assert prompt.endswith("<think>") is thinks


def test_effort_is_the_templates_reasoning_effort() -> None:
    wanted = parse_messages(body(output_config={"effort": "low"}))
    assert prompt_of(wanted.conversation, make_model(template=EFFORT)).rendered.text == "Hilow"


@pytest.mark.parametrize(
    ("display", "shown"), [(None, True), ("summarized", True), ("updates", True), ("omitted", False)]
)
def test_thoughts_are_shown_unless_told_otherwise(display: str | None, shown: bool) -> None:
    assert parse_messages(body(thinking={"type": "enabled", "display": display})).show_reasoning is shown


@pytest.mark.parametrize("beta", [False, True])
def test_an_output_format_constrains_the_answer(beta: bool) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string"}}}
    model = make_model()
    format_ = {"type": "json_schema", "schema": schema}
    fields: dict[str, Any] = {"output_format": format_} if beta else {"output_config": {"format": format_}}
    assert request(model, **fields).constraint is model.grammar.made[-1]
    assert model.grammar.made[-1].source == schema


def test_of_two_output_formats_the_one_that_is_no_longer_beta_holds() -> None:
    model = make_model()
    new, old = ({"type": "json_schema", "schema": {"enum": [n]}} for n in (1, 2))
    request(model, output_config={"format": new}, output_format=old)
    assert model.grammar.made[-1].source == {"enum": [1]}


def test_without_a_limit_llama_servers_holds() -> None:
    assert request(max_tokens=None).max_tokens == DEFAULT_MAX_TOKENS == 4096


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"mcp_servers": [{"type": "url", "name": "x", "url": "https://a.example"}]}, "mcp_servers"),
        ({"container": "c"}, "container"),
        ({"container": {"id": None, "skills": []}}, "container"),
        ({"context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]}}, "edits in context_management"),
        ({"context_management": {"edits": [5]}}, "edits in context_management"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools of type 'web_search_20250305'"),
        ({"messages": [{"role": "user", "content": [{"type": "x"}]}]}, "blocks of type 'x'"),
    ],
)
def test_what_only_anthropics_servers_do_is_left_out_and_told(fields: dict[str, Any], named: str) -> None:
    wanted = parse_messages(body(**fields))
    assert [told.startswith(named) for told in wanted.warnings] == [True]


@pytest.mark.parametrize(
    "fields",
    [
        {"context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}},
        {"mcp_servers": [], "container": None, "context_management": 5},
        {"speed": "fast", "inference_geo": "eu", "service_tier": "standard_only", "betas": ["x"], "fallbacks": [{}]},
        {"cache_control": {"type": "ephemeral"}, "user_profile_id": "u", "diagnostics": {}},
    ],
)
def test_what_changes_no_reply_is_taken(fields: dict[str, Any]) -> None:
    assert not [each for each in parse_messages(body(**fields)).warnings if "unknown field" not in each]


def test_a_schema_that_cannot_be_held_is_named_as_the_client_calls_it() -> None:
    class Strict(FakeCompiler):
        def json_schema(self, schema: Any) -> FakeConstraint:
            raise InvalidRequest("json_schema: 'if' is not supported", "json_schema")

    model = make_model()
    model.grammar = Strict()
    with pytest.raises(InvalidRequest) as caught:
        request(model, output_config={"format": {"type": "json_schema", "schema": {"if": {}}}})
    assert caught.value.param == "output_config.format.schema"
    assert caught.value.message == "output_config.format.schema: 'if' is not supported"


def test_counting_needs_no_limit_and_gives_the_prompts_tokens() -> None:
    wanted = parse_messages(body(max_tokens=None, system="Be brief."), generate=False)
    n_prompt = len(request(system="Be brief.").prompt)
    assert count_message_tokens(wanted.conversation, make_model()) == {"input_tokens": n_prompt}


def test_the_beginning_of_an_answer_is_continued() -> None:
    wanted = parse_messages(body(messages=[{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "He"}]))
    assert prompt_of(wanted.conversation, make_model()).rendered.text.endswith("<|im_start|>assistant\nHe")


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, "invalid_request_error"),
        (401, "authentication_error"),
        (404, "not_found_error"),
        (405, "invalid_request_error"),
        (413, "request_too_large"),
        (429, "rate_limit_error"),
        (500, "api_error"),
        (501, "api_error"),
        (503, "overloaded_error"),
    ],
)
def test_errors_have_anthropics_types(status: int, kind: str) -> None:
    given = {"error": {"code": status, "message": "no", "type": "x", "param": "y"}}
    assert anthropic_error(status, given) == {"type": "error", "error": {"type": kind, "message": "no"}}


def test_a_long_prompt_is_told_in_the_words_that_agents_look_for() -> None:
    given = {"error": {"code": 400, "message": "no", "type": "x", "n_prompt_tokens": 300, "n_ctx": 256}}
    assert anthropic_error(400, given)["error"]["message"] == "prompt is too long: 300 tokens > 256 maximum"


def test_an_unknown_model_is_told_in_the_words_that_claude_code_looks_for() -> None:
    given = {"error": {"code": 404, "message": "model 'x' not found", "type": "x", "param": "model"}}
    assert anthropic_error(404, given)["error"]["message"] == "model: model 'x' not found"


def test_a_stream_that_fails_says_the_same_in_its_last_event() -> None:
    given = {"error": {"code": 400, "message": "no", "type": "x", "n_prompt_tokens": 300, "n_ctx": 256}}
    name, data = anthropic_error_event(400, given).decode().rstrip().split("\n")
    assert name == "event: error"
    assert orjson.loads(data.removeprefix("data: ")) == {
        "type": "error",
        "error": {"type": "invalid_request_error", "message": "prompt is too long: 300 tokens > 256 maximum"},
    }


@pytest.mark.parametrize(
    ("path", "speaks"),
    [
        ("/v1/messages", True),
        ("/llm/v1/messages", True),
        ("/v1/messages/count_tokens", True),
        ("/v1/messages/batches", True),
        ("/v1/chat/completions", False),
        ("/v1/messagesx", False),
    ],
)
def test_the_path_says_whose_errors_are_expected(path: str, speaks: bool) -> None:
    assert speaks_anthropic(path) is speaks
