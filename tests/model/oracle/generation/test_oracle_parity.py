"""The same request to Llamapool and to llama-server: replies, grammars of the settings, full contexts, budgets."""

from pathlib import Path
from typing import Any

import pytest

from tests.model.oracle.comparison import ONLY_ASCII, Pair, steady
from tests.model.oracle.conftest import CHAT, Start
from tests.support.ggufs import MODELS, gguf_file

CHATS = [
    [{"role": "user", "content": "hello"}],
    [{"role": "system", "content": "be brief"}, {"role": "user", "content": "what is the forest?"}],
    [
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": "two"},
        {"role": "user", "content": "three 日本"},
    ],
    [{"role": "user", "content": [{"type": "text", "text": "parts "}, {"type": "text", "text": "of text"}]}],
]
GREEDY = {"temperature": 0, "max_tokens": 40, "ignore_eos": True, "logit_bias": ONLY_ASCII}


@pytest.mark.parametrize("messages", CHATS)
def test_greedy_chats_are_the_same(pair: Pair, messages: list[dict[str, Any]]) -> None:
    ours, theirs = pair.post("/v1/chat/completions", {**GREEDY, "messages": messages, "cache_prompt": False})
    assert steady(ours) == steady(theirs)


def test_a_continued_message_is_whole_in_a_reply_and_new_in_a_stream(pair: Pair) -> None:
    messages = [{"role": "user", "content": "go on"}, {"role": "assistant", "content": "the animals of"}]
    ours, theirs = pair.post("/v1/chat/completions", {**GREEDY, "messages": messages})
    assert ours["choices"] == theirs["choices"]
    mine, other = pair.events("/v1/chat/completions", {**GREEDY, "messages": messages})
    assert [event["choices"] for event in mine[1:]] == [event["choices"] for event in other[1:]]


FEW = {"temperature": 0, "max_tokens": 12}
HELLO = {"messages": [{"role": "user", "content": "hello"}], **FEW}
GRAMMAR = 'root ::= ("yes" | "no") " " [0-9] [0-9]'
DIGITS = {"type": "integer", "minimum": 100, "maximum": 999}


@pytest.fixture(scope="module")
def held(start: Start, tiny_path: Path) -> Pair:
    """Both with a grammar of the settings."""
    return start(tiny_path, flags=("--grammar", GRAMMAR), params={"sampling.grammar": GRAMMAR})


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/completion", {"prompt": "the fox", "temperature": 0, "n_predict": 12}),
        ("/completion", {"prompt": "the fox", "temperature": 0, "n_predict": 12, "grammar": 'root ::= "own"'}),
        ("/v1/completions", {"prompt": "the fox", **FEW}),
        ("/v1/chat/completions", HELLO),
    ],
)
def test_the_settings_grammar_holds_as_in_llama_server(held: Pair, path: str, body: dict[str, Any]) -> None:
    texts = [_text(reply) for reply in held.post(path, body)]
    assert texts[0] == texts[1]
    assert texts[0].startswith(("own",) if "grammar" in body else ("yes", "no"))


def test_a_request_may_bring_its_own(held: Pair) -> None:
    shape = {"type": "json_schema", "json_schema": {"schema": DIGITS}}
    text = _text(held.ours.post("/v1/chat/completions", {**HELLO, "response_format": shape}))
    assert 100 <= int(text) <= 999


def test_a_deadline_ends_generation_with_the_line(pair: Pair) -> None:
    grammar = r'root ::= ([a-z]{40} "\n"){4}'
    body = {"prompt": "the fox", "grammar": grammar, "t_max_predict_ms": 1, "temperature": 0}
    ours, theirs = pair.post("/completion", body)
    assert ours["content"] == theirs["content"]
    assert ours["content"].count("\n") == 1


def _text(reply: Any) -> str:
    if "content" in reply:
        return str(reply["content"])
    choice = reply["choices"][0]
    return str(choice["text"] if "text" in choice else choice["message"]["content"])


TOKENS: dict[str, Any] = {"temperature": 0, "ignore_eos": True, "logit_bias": ONLY_ASCII, "return_tokens": True}
N_CTX = 256  # llama.cpp's smallest


@pytest.fixture(scope="module")
def shifting(start: Start, tiny_path: Path) -> Pair:
    """One slot of 256 tokens each, with context shift."""
    return start(tiny_path, n_ctx=N_CTX, n_parallel=1, flags=("--context-shift",), params={"ctx_shift": True})


@pytest.mark.parametrize("options", [{}, {"n_keep": 8}, {"n_keep": -1}, {"n_keep": 4, "n_discard": 20}])
def test_a_full_context_goes_on_with_the_same_tokens(shifting: Pair, options: dict[str, Any]) -> None:
    body = {"prompt": "once upon a time there was", "n_predict": 400, "cache_prompt": False, **TOKENS, **options}
    ours, theirs = shifting.post("/completion", body)
    assert ours["tokens"] == theirs["tokens"]
    for name in ("truncated", "tokens_predicted", "stop_type", "tokens_cached"):
        assert ours[name] == theirs[name], name
    assert ours["truncated"]


@pytest.mark.parametrize("n_cache_reuse", [0, 16])
def test_runs_that_moved_are_reused_as_the_reference_does(shifting: Pair, n_cache_reuse: int) -> None:
    words = [f"{'ab'[n_cache_reuse > 0]}word{i} " for i in range(20)]  # not those of the other case: both keep prompts
    replies = []
    for prompt in (words, [*words[:3], *words[9:]]):
        body = {"prompt": "".join(prompt), "n_predict": 8, "n_cache_reuse": n_cache_reuse, **TOKENS}
        replies.append(shifting.post("/completion", body))
    ours, theirs = replies[1]
    assert ours["timings"]["cache_n"] == theirs["timings"]["cache_n"]
    assert (ours["timings"]["cache_n"] > 60) == bool(n_cache_reuse)
    assert ours["tokens"] == theirs["tokens"]


SYSTEM = "the quick brown fox jumps over the lazy dog and then the other animals of the forest come together " * 6
SHORT = {"temperature": 0, "max_tokens": 24, "ignore_eos": True, "logit_bias": ONLY_ASCII}


@pytest.fixture(scope="module", params=["hybrid", "sliding-window"])
def kept(request: pytest.FixtureRequest, start: Start, gguf_folder: Path) -> Pair:
    """Both servers with two slots; each conversation keeps to one of them."""
    model = gguf_file(gguf_folder, MODELS[request.param])
    return start(model, n_ctx=8192, n_parallel=2, flags=("-ub", 128), params={"n_ubatch": 128})


def reply_to(pair: Pair, messages: list[dict[str, str]]) -> tuple[str, list[int]]:
    """The reply, which must be the same, and the reused tokens: ours, theirs."""
    ours, theirs = pair.post("/v1/chat/completions", {**SHORT, "messages": messages})
    text: Any = ours["choices"][0]["message"]["content"]
    assert text == theirs["choices"][0]["message"]["content"]
    return text, [reply["timings"]["cache_n"] for reply in (ours, theirs)]


def test_a_conversation_whose_replies_are_rendered_anew(kept: Pair) -> None:
    """As with templates that drop thoughts: what follows the prompt is another text in the next turn."""
    messages = [{"role": "system", "content": SYSTEM}]
    cached = []
    for turn in range(5):
        messages.append({"role": "user", "content": f"question {turn}: " + "what comes together in the forest? " * 3})
        reply, counts = reply_to(kept, messages)
        cached.append(counts)
        messages.append({"role": "assistant", "content": "in short: " + reply[:5]})
    ours, theirs = (sum(column) for column in zip(*cached[1:], strict=True))
    assert ours >= 0.97 * theirs > 0  # we go back to the turn's end, llama-server to four tokens before the prompt's
    assert min(counts[0] for counts in cached[1:]) > 100


QUESTIONS = ("What is the capital of France?", "Add 17 and 25.")


def thought(question: str, **more: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": question}]
    return {"messages": messages, "temperature": 0, "max_tokens": 60, **more}


def message(reply: Any) -> tuple[str, str, int]:
    (choice,) = reply["choices"]
    said = choice["message"]
    return said.get("reasoning_content", "").strip(), said["content"].strip(), reply["usage"]["completion_tokens"]


@pytest.mark.parametrize("question", QUESTIONS)
@pytest.mark.parametrize("budget", [1, 2, 5, 9, 1000])
def test_thoughts_end_at_the_same_token(thinking: Pair, question: str, budget: int) -> None:
    ours, theirs = thinking.post(CHAT, thought(question, thinking_budget_tokens=budget))
    assert message(ours) == message(theirs)
    if budget < 10:
        assert message(ours)[0].endswith("That is enough.")


def test_native_completions_name_the_tags_themselves(thinking: Pair) -> None:
    """A model that does nothing but open thoughts; each of them has a budget of its own."""
    tags = {"reasoning_budget_start_tag": "<think>", "reasoning_budget_end_tags": ["</think>"]}
    body = {"prompt": "Well", "temperature": 0, "n_predict": 24, "logit_bias": [["<think>", 100]]}
    body |= {"reasoning_budget_tokens": 5, "reasoning_budget_message": " Well.", **tags, "return_tokens": True}
    ours, theirs = thinking.post("/completion", body)
    assert ours["tokens"] == theirs["tokens"]
    assert ours["content"].count(" Well.</think>") > 1
