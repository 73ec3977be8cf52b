"""Replies compared with llama-server: configured grammars, full contexts, cached prefixes, reasoning budgets."""

from pathlib import Path
from typing import Any

import pytest

from tests.model.oracle.comparison import ONLY_ASCII, Pair, without_volatile
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
def test_greedy_chats_are_equal(pair: Pair, messages: list[dict[str, Any]]) -> None:
    ours, theirs = pair.post(CHAT, {**GREEDY, "messages": messages, "cache_prompt": False})
    assert without_volatile(ours) == without_volatile(theirs)


def test_a_continued_message_is_complete_in_a_reply_and_new_text_in_a_stream(pair: Pair) -> None:
    messages = [{"role": "user", "content": "go on"}, {"role": "assistant", "content": "the animals of"}]
    ours, theirs = pair.post(CHAT, {**GREEDY, "messages": messages})
    assert ours["choices"] == theirs["choices"]
    ours, theirs = pair.events(CHAT, {**GREEDY, "messages": messages})
    assert [event["choices"] for event in ours[1:]] == [event["choices"] for event in theirs[1:]]


FEW = {"temperature": 0, "max_tokens": 12}
HELLO = {"messages": [{"role": "user", "content": "hello"}], **FEW}
GRAMMAR = 'root ::= ("yes" | "no") " " [0-9] [0-9]'
DIGITS = {"type": "integer", "minimum": 100, "maximum": 999}


@pytest.fixture(scope="module")
def with_grammar(start: Start, tiny_path: Path) -> Pair:
    """Both servers with a configured grammar."""
    return start(tiny_path, flags=("--grammar", GRAMMAR), params={"sampling.grammar": GRAMMAR})


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/completion", {"prompt": "the fox", "temperature": 0, "n_predict": 12}),
        ("/completion", {"prompt": "the fox", "temperature": 0, "n_predict": 12, "grammar": 'root ::= "own"'}),
        ("/v1/completions", {"prompt": "the fox", **FEW}),
        (CHAT, HELLO),
    ],
)
def test_a_configured_grammar_constrains_requests_without_their_own(
    with_grammar: Pair, path: str, body: dict[str, Any]
) -> None:
    texts = [_text(reply) for reply in with_grammar.post(path, body)]
    assert texts[0] == texts[1]
    assert texts[0].startswith(("own",) if "grammar" in body else ("yes", "no"))


def test_a_response_format_replaces_the_configured_grammar(with_grammar: Pair) -> None:
    response_format = {"type": "json_schema", "json_schema": {"schema": DIGITS}}
    text = _text(with_grammar.ours.post(CHAT, {**HELLO, "response_format": response_format}))
    assert 100 <= int(text) <= 999


def test_t_max_predict_ms_ends_generation_at_the_next_newline(pair: Pair) -> None:
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
    """Both servers with one slot of 256 tokens and context shift."""
    return start(tiny_path, n_ctx=N_CTX, n_parallel=1, flags=("--context-shift",), params={"ctx_shift": True})


@pytest.mark.parametrize("options", [{}, {"n_keep": 8}, {"n_keep": -1}, {"n_keep": 4, "n_discard": 20}])
def test_a_context_shift_gives_the_same_tokens(shifting: Pair, options: dict[str, Any]) -> None:
    body = {"prompt": "once upon a time there was", "n_predict": 400, "cache_prompt": False, **TOKENS, **options}
    ours, theirs = shifting.post("/completion", body)
    assert ours["tokens"] == theirs["tokens"]
    for name in ("truncated", "tokens_predicted", "stop_type", "tokens_cached"):
        assert ours[name] == theirs[name], name
    assert ours["truncated"]


@pytest.mark.parametrize("n_cache_reuse", [0, 16])
def test_n_cache_reuse_reuses_chunks_at_other_positions(shifting: Pair, n_cache_reuse: int) -> None:
    words = [f"{'ab'[n_cache_reuse > 0]}word{i} " for i in range(20)]  # cases differ, because prompts stay cached
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


@pytest.mark.parametrize("model", ["hybrid", "sliding-window"])
def test_checkpoints_serve_turns_whose_earlier_reply_is_rendered_differently(
    start: Start, gguf_folder: Path, model: str
) -> None:
    """For example by a template that drops reasoning: the next prompt has another text after the last prompt."""
    path, flags = gguf_file(gguf_folder, MODELS[model]), ("-ub", 128)
    pair = start(path, n_ctx=8192, n_parallel=2, flags=flags, params={"n_ubatch": 128})
    messages = [{"role": "system", "content": SYSTEM}]
    cached = []
    for turn in range(5):
        messages.append({"role": "user", "content": f"question {turn}: " + "what comes together in the forest? " * 3})
        ours, theirs = pair.post(CHAT, {**SHORT, "messages": messages})
        text: Any = ours["choices"][0]["message"]["content"]
        assert text == theirs["choices"][0]["message"]["content"]
        cached.append([reply["timings"]["cache_n"] for reply in (ours, theirs)])
        messages.append({"role": "assistant", "content": "in short: " + text[:5]})
    n_ours, n_theirs = (sum(column) for column in zip(*cached[1:], strict=True))
    # Llamapool rolls back to the end of a turn, llama-server to four tokens before the end of the prompt
    assert n_ours >= 0.97 * n_theirs > 0
    assert min(counts[0] for counts in cached[1:]) > 100


QUESTIONS = ("What is the capital of France?", "Add 17 and 25.")


def reasoning_and_content(reply: Any) -> tuple[str, str, int]:
    """Return reasoning, content and the number of completion tokens."""
    (choice,) = reply["choices"]
    message, n_tokens = choice["message"], reply["usage"]["completion_tokens"]
    return message.get("reasoning_content", "").strip(), message["content"].strip(), n_tokens


@pytest.mark.parametrize("question", QUESTIONS)
@pytest.mark.parametrize("budget", [1, 2, 5, 9, 1000])
def test_a_reasoning_budget_ends_reasoning_at_the_same_token(reasoning: Pair, question: str, budget: int) -> None:
    body = {"messages": [{"role": "user", "content": question}], "temperature": 0, "max_tokens": 60}
    ours, theirs = map(reasoning_and_content, reasoning.post(CHAT, {**body, "thinking_budget_tokens": budget}))
    assert ours == theirs
    if budget < 10:
        assert ours[0].endswith("That is enough.")


def test_native_completions_limit_reasoning_between_their_own_tags(reasoning: Pair) -> None:
    """The bias makes the model start reasoning again and again; each time has its own budget."""
    tags = {"reasoning_budget_start_tag": "<think>", "reasoning_budget_end_tags": ["</think>"]}
    body = {"prompt": "Well", "temperature": 0, "n_predict": 24, "logit_bias": [["<think>", 100]]}
    body |= {"reasoning_budget_tokens": 5, "reasoning_budget_message": " Well.", **tags, "return_tokens": True}
    ours, theirs = reasoning.post("/completion", body)
    assert ours["tokens"] == theirs["tokens"]
    assert ours["content"].count(" Well.</think>") > 1
