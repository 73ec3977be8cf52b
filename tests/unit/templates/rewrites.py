"""What Llamapool rewrites in a chat, by templates of the source distribution (docs/templates.md).

This is an independent implementation of the rewriting: it imports nothing of the server, and writes out every text.
"""

import json
import re
from collections.abc import Callable, Sequence

from tests.unit.templates.conversations import Chat, Message, says


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


TEXT_ONLY = _names(
    """
    Apertus-8B-Instruct Bielik-11B-v3.0-Instruct ByteDance-Seed-OSS CohereForAI-c4ai-command-r-plus-tool_use
    CohereForAI-c4ai-command-r7b-12-2024-tool_use GigaChat3-10B-A1.8B GigaChat3.1-10B-A1.8B
    HuggingFaceTB-SmolLM3-3B LFM2-8B-A1B LFM2.5-Instruct MiMo-VL NVIDIA-Nemotron-3-Nano-30B-A3B-BF16
    NVIDIA-Nemotron-Nano-v2 NousResearch-Hermes-2-Pro-Llama-3-8B-tool_use
    NousResearch-Hermes-3-Llama-3.1-8B-tool_use Qwen-QwQ-32B Qwen-Qwen2.5-7B-Instruct Qwen-Qwen3-0.6B
    Qwen3-Coder deepseek-ai-DeepSeek-R1-Distill-Llama-8B deepseek-ai-DeepSeek-R1-Distill-Qwen-32B
    deepseek-ai-DeepSeek-V3.1 deepseek-ai-DeepSeek-V3.2 deepseek-ai-DeepSeek-V4
    deepseek-ai-DeepSeek-V4-Flash-0731 fireworks-ai-llama-3-firefunction-v2 google-gemma-2-2b-it
    ibm-granite-granite-3.3-2B-Instruct inclusionai-ling-3.0-flash llama-cpp-deepseek-r1 llama-cpp-rwkv-world
    meetkai-functionary-medium-v3.1 meetkai-functionary-medium-v3.2 meta-llama-Llama-3.1-8B-Instruct
    meta-llama-Llama-3.2-3B-Instruct meta-llama-Llama-3.3-70B-Instruct microsoft-Phi-3.5-mini-instruct
    mistralai-Mistral-Nemo-Instruct-2407 openai-gpt-oss-120b openbmb-MiniCPM5-1B poolside-Laguna-S-2.1
    poolside-Laguna-XS-2.1 poolside-Laguna-XS.2 upstage-Solar-Open-100B
    """
)
"""Content in parts becomes one text."""
SYSTEM_TEXT_ONLY = _names("google-gemma-4-31B-it google-gemma-4-31B-it-interleaved")
RESULT_TEXT_ONLY = _names(
    """
    GLM-4.6 GLM-4.7-Flash Mistral-Small-3.2-24B-Instruct-2506 Spark2.5 mistralai-Ministral-3-14B-Reasoning-2512
    moonshotai-Kimi-K2 unsloth-mistral-Devstral-Small-2507
    """
)
"""These take parts, but print them as Python does where the system says them, or a tool."""
DEVELOPERS = _names(
    """
    MiniMax-M3 Reka-Edge deepseek-ai-DeepSeek-V4 deepseek-ai-DeepSeek-V4-Flash-0731 google-gemma-4-31B-it
    google-gemma-4-31B-it-interleaved openai-gpt-oss-120b
    """
)
"""These alone tell a developer from a system; elsewhere it becomes one."""
NO_SYSTEM = _names(
    """
    google-gemma-2-2b-it
    """
)
"""A system message goes before the user's."""
MOVES_SYSTEM = _names("mistralai-Mistral-Nemo-Instruct-2407")
"""It writes the system message before the last user's text, or not at all, if the user does not speak last; then
it is written before the first."""
ALTERNATES = _names(
    """
    Mistral-Small-3.2-24B-Instruct-2506 google-gemma-2-2b-it mistralai-Ministral-3-14B-Reasoning-2512
    mistralai-Mistral-Nemo-Instruct-2407
    """
)
"""User and assistant must take turns; an empty message stands between two of one role."""
NO_TOOLS = _names(
    """
    HuggingFaceTB-SmolLM3-3B deepseek-ai-DeepSeek-R1-Distill-Llama-8B deepseek-ai-DeepSeek-R1-Distill-Qwen-32B
    deepseek-ai-DeepSeek-V3.1 google-gemma-2-2b-it llama-cpp-rwkv-world microsoft-Phi-3.5-mini-instruct
    """
)
"""Tools are told in the system message."""
NO_CALLS = NO_TOOLS - _names("deepseek-ai-DeepSeek-R1-Distill-Qwen-32B deepseek-ai-DeepSeek-V3.1")
"""Calls and results become texts, too."""
CALLS_AS_TEXT = _names("LFM2-8B-A1B LFM2.5-Instruct ibm-granite-granite-3.3-2B-Instruct")
"""They show tools and results, but no calls; these become texts."""
SYSTEM_HERE_AND_THERE = _names("Mistral-Small-3.2-24B-Instruct-2506 google-gemma-2-2b-it")
"""They count turns, and take a later system message where the user's or the assistant's could stand as well; with the
next answer they refuse it. Here it is text of its neighbour from the beginning."""
SAYS_SOMETHING = _names("mistralai-Ministral-3-14B-Reasoning-2512")
"""An answer may not be empty; it is left out, and what the user says around it is one message."""
TEXT_APART = _names(
    """
    Cohere2MoE CohereForAI-c4ai-command-r7b-12-2024-tool_use MiniMax-M1 Mistral-Small-3.2-24B-Instruct-2506
    NousResearch-Hermes-2-Pro-Llama-3-8B-tool_use NousResearch-Hermes-3-Llama-3.1-8B-tool_use
    llama-cpp-deepseek-r1 meta-llama-Llama-3.1-8B-Instruct meta-llama-Llama-3.2-3B-Instruct
    meta-llama-Llama-3.3-70B-Instruct mistralai-Mistral-Nemo-Instruct-2407 muse-glimmer upstage-Solar-Open-100B
    """
)
"""Text beside a call is lost there; it becomes a message of its own."""
TEXT_APART_LATER = _names("openai-gpt-oss-120b")
"""It is lost there as soon as an answer follows; it becomes a message of its own in the channel ``commentary``."""
PREAMBLE = "a text before a call:"
COMMENTARY = "<|end|><|start|>assistant<|channel|>commentary<|message|>"
ONE_CALL = _names(
    """
    GigaChat3-10B-A1.8B GigaChat3.1-10B-A1.8B meta-llama-Llama-3.1-8B-Instruct meta-llama-Llama-3.2-3B-Instruct
    meta-llama-Llama-3.3-70B-Instruct openai-gpt-oss-120b
    """
)
"""Of several calls they refuse all or show the first; each gets a message of its own, with its result."""
NEEDS_CONTENT = _names(
    """
    LFM2-8B-A1B LFM2.5-Instruct Qwen-QwQ-32B Qwen-Qwen3-0.6B deepseek-ai-DeepSeek-R1-Distill-Llama-8B
    deepseek-ai-DeepSeek-R1-Distill-Qwen-32B ibm-granite-granite-3.3-2B-Instruct microsoft-Phi-3.5-mini-instruct
    unsloth-mistral-Devstral-Small-2507
    """
)
"""Content that is null becomes an empty text; Hugging Face takes the key away, and the template fails."""
NOT_ALL_OF_A_CALL = _names("openai-gpt-oss-120b")
"""It refuses a call with reasoning and text; the text becomes a message in the channel ``commentary``."""
NEEDS_TOOLS = _names(
    """
    CohereForAI-c4ai-command-r-plus-tool_use NousResearch-Hermes-2-Pro-Llama-3-8B-tool_use
    NousResearch-Hermes-3-Llama-3.1-8B-tool_use
    """
)
"""Made for requests with tools; without any they get an empty list."""
TEXT_ARGUMENTS = (
    NO_CALLS
    | CALLS_AS_TEXT
    | _names(
        """
    meetkai-functionary-medium-v3.2
    """
    )
)
"""They write the arguments of a call as they are, so these must be JSON text (or they write no calls at all)."""

CHANGES_LISTS = _names("Kimi-K2-Instruct Kimi-K2-Thinking")
"""They append to a list as they render calls, which Hugging Face refuses. Here they get a list of their own."""
LAZY_JSON = _names("llama-cpp-deepseek-r1")
"""It writes what `map` gives as JSON, which Hugging Face refuses."""
ESCAPES = _names("meetkai-functionary-medium-v3.1")
"""It marks text as safe HTML, and Hugging Face escapes what is joined to that. Here nothing is escaped."""


def needed(name: str, chat: Chat) -> bool:
    """Whether the chat is rewritten for that template, or the template for Hugging Face."""
    roles = {message["role"] for message in chat.messages}
    calls = any(message.get("tool_calls") for message in chat.messages)
    contents = [message["content"] for message in chat.messages]
    of_parts = {message["role"] for message in chat.messages if isinstance(message["content"], list)}
    return (
        (name in TEXT_ONLY and bool(of_parts))
        or (name in SYSTEM_TEXT_ONLY and "system" in of_parts)
        or (name in RESULT_TEXT_ONLY and "tool" in of_parts)
        or ("developer" in roles and name not in DEVELOPERS)
        or ("system" in roles and name in NO_SYSTEM)
        or (_loses_system(name, chat) and len(chat.messages) > 2)
        or (calls and name in CALLS_AS_TEXT)
        or (name in TEXT_APART and any(map(_has_text, chat.messages)))
        or (name in ONE_CALL and any(len(message.get("tool_calls", ())) > 1 for message in chat.messages))
        or (bool(chat.tools) and name in NO_TOOLS)
        or (calls and name in NO_CALLS)
        or (None in contents and name in NEEDS_CONTENT)
        or (not chat.tools and name in NEEDS_TOOLS)
        or (calls and name in CHANGES_LISTS)
        or (name in NOT_ALL_OF_A_CALL and any(map(_has_all, chat.messages)))
        or (bool(chat.tools) and name in LAZY_JSON | ESCAPES)
    )


def _has_all(message: Message) -> bool:
    return all(message.get(part) for part in ("content", "reasoning_content", "tool_calls"))


def _loses_system(name: str, chat: Chat) -> bool:
    """Return whether the system message would be lost, or the chat is rewritten for a text that would be."""
    loses = chat.messages[-1]["role"] != "user" or any(map(_has_text, chat.messages))
    return name in MOVES_SYSTEM and chat.messages[0]["role"] == "system" and loses


def _has_text(message: Message) -> bool:
    return bool(message["content"] and message.get("tool_calls"))


def _with_text_apart(messages: list[Message], *, until_answer: bool) -> list[Message]:
    mark = PREAMBLE if until_answer else ""
    apart: list[Message] = []
    for at, message in enumerate(messages, 1):
        answered = any(each["role"] == "assistant" and "tool_calls" not in each for each in messages[at:])
        if _has_text(message) and (answered or not until_answer):
            apart.append(says("assistant", mark + message["content"]))
            apart.append({**message, "content": ""})
        else:
            apart.append(message)
    return apart


def _one_by_one(messages: list[Message]) -> list[Message]:
    """Calls and results in pairs; they come in the same order here."""
    single: list[Message] = []
    for at, message in enumerate(messages):
        calls = message.get("tool_calls", ())
        if len(calls) > 1:
            for number, call in enumerate(calls):
                first = message if number == 0 else says("assistant", "")
                single += [{**first, "tool_calls": [call]}, *messages[at + 1 + number : at + 2 + number]]
        elif not single or all(message is not each for each in single):
            single.append(message)
    return single


def _without_empty_answers(messages: list[Message]) -> list[Message]:
    filled: list[Message] = []
    for message in messages:
        if message["role"] == "assistant" and not message["content"] and "tool_calls" not in message:
            continue
        if filled and filled[-1]["role"] == message["role"] == "user":
            said = "\n\n".join(filter(None, (filled.pop()["content"], message["content"])))
            message = says("user", said)
        filled.append(message)
    return filled


def _in_turn(messages: list[Message], filler: str) -> list[Message]:
    turns: list[Message] = []
    last = "assistant"
    for message in messages:
        if message["role"] in ("user", "assistant") and "tool_calls" not in message:
            if message["role"] == last:
                turns.append(says("user" if last == "assistant" else "assistant", filler))
            last = message["role"]
        turns.append(message)
    return turns


_INSTRUCTIONS = """You can call functions. Their signatures, as JSON Schema:
{tools}

To call one or several of them, answer with nothing but the calls in this form:
{example}
You get the results then. When no function is needed, answer as usual."""

_Call = tuple[str, str]
"""The name and the arguments as JSON text."""


def _json_list(calls: Sequence[_Call]) -> str:
    return ", ".join(f'{{"name": "{name}", "arguments": {arguments}}}' for name, arguments in calls)


def _generic(calls: Sequence[_Call]) -> str:
    return f'{{"tool_calls": [{_json_list(calls)}]}}'


def _granite(calls: Sequence[_Call]) -> str:
    return f"<|tool_call|>[{_json_list(calls)}]"


def _pythonic(calls: Sequence[_Call]) -> str:
    written = []
    for name, arguments in calls:
        given = ", ".join(f"{key}={value!r}" for key, value in json.loads(arguments).items())
        written.append(f"{name}({given})")
    return f"<|tool_call_start|>[{', '.join(written)}]<|tool_call_end|>"


def _deepseek_r1(calls: Sequence[_Call]) -> str:
    begin, end = "<｜tool▁call▁begin｜>function<｜tool▁sep｜>", "<｜tool▁call▁end｜>"
    written = "\n".join(f"{begin}{name}\n```json\n{arguments}\n```{end}" for name, arguments in calls)
    return f"<｜tool▁calls▁begin｜>{written}<｜tool▁calls▁end｜>"


def _deepseek_v31(calls: Sequence[_Call]) -> str:
    begin, end = "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>"
    written = "".join(f"{begin}{name}<｜tool▁sep｜>{arguments}{end}" for name, arguments in calls)
    return f"<｜tool▁calls▁begin｜>{written}<｜tool▁calls▁end｜>"


_CALL_SYNTAX: dict[str, Callable[[Sequence[_Call]], str]] = {
    **dict.fromkeys(NO_TOOLS, _generic),
    **dict.fromkeys(
        _names("deepseek-ai-DeepSeek-R1-Distill-Llama-8B deepseek-ai-DeepSeek-R1-Distill-Qwen-32B"), _deepseek_r1
    ),
    "deepseek-ai-DeepSeek-V3.1": _deepseek_v31,
    **dict.fromkeys(_names("LFM2-8B-A1B LFM2.5-Instruct"), _pythonic),
    "ibm-granite-granite-3.3-2B-Instruct": _granite,
}
"""How calls are written for templates that know no tools, or show no calls."""


def _appended(message: Message, text: str) -> Message:
    return {**message, "content": f"{message['content']}\n\n{text}" if message["content"] else text}


def _with_instructions(name: str, messages: list[Message], tools: Sequence[Message]) -> list[Message]:
    signatures = "\n".join(json.dumps(tool["function"], ensure_ascii=False) for tool in tools)
    example = _CALL_SYNTAX[name]([("function_name", '{"parameter": "value"}')])
    text = _INSTRUCTIONS.format(tools=signatures, example=example)
    if messages[0]["role"] == "system":
        return [_appended(messages[0], text), *messages[1:]]
    return [says("system", text), *messages]


def _calls_as_text(name: str, messages: list[Message]) -> list[Message]:
    written = []
    for message in messages:
        if calls := message.pop("tool_calls", ()):
            functions = [(call["function"]["name"], call["function"]["arguments"]) for call in calls]
            message = _appended(message, _CALL_SYNTAX[name](functions))
        written.append(message)
    return written


def _results_as_text(messages: list[Message], called: dict[str, str]) -> list[Message]:
    """Results as text of the user, in one message with each other and with what the user says next."""
    told: list[Message] = []
    follows_result = False
    for message in messages:
        is_result = message["role"] == "tool"
        if is_result:
            name = message.get("name") or called[message["tool_call_id"]]
            content = "\n\n".join(filter(None, (f"Result of {name}:", message["content"])))
            message = says("user", content)
        if follows_result and message["role"] == "user":
            text = "\n\n".join(filter(None, (told.pop()["content"], message["content"])))
            message = says("user", text)
        told.append(message)
        follows_result = is_result or (follows_result and message["role"] == "user")
    return told


def rewritten(name: str, chat: Chat) -> Chat:
    """The chat as that template can take it."""
    messages = [dict(message) for message in chat.messages]
    tools = chat.tools or ([] if name in NEEDS_TOOLS else None)
    for message in messages:
        if message["content"] is None:
            message["content"] = ""
        if message["role"] == "developer" and name not in DEVELOPERS:
            message["role"] = "system"
        role = message["role"]
        text_only = TEXT_ONLY | {"system": SYSTEM_TEXT_ONLY, "tool": RESULT_TEXT_ONLY}.get(role, frozenset())
        if isinstance(message["content"], list) and name in text_only:
            message["content"] = "\n".join(part["text"] for part in message["content"])
    if name in TEXT_APART | TEXT_APART_LATER:
        messages = _with_text_apart(messages, until_answer=name in TEXT_APART_LATER)
    for message in messages:
        if name in NOT_ALL_OF_A_CALL and _has_all(message):
            message |= {
                "content": "",
                "reasoning_content": f"{message['reasoning_content']}{COMMENTARY}{message['content']}",
            }
    if name in ONE_CALL:
        messages = _one_by_one(messages)
    called = {call["id"]: call["function"]["name"] for each in messages for call in each.get("tool_calls", ())}
    if name in CALLS_AS_TEXT | NO_CALLS:
        messages = _calls_as_text(name, messages)
    if name in NO_CALLS:
        messages = _results_as_text(messages, called)
    if name in NO_TOOLS and tools:
        messages, tools = _with_instructions(name, messages, tools), None
    if messages[0]["role"] == "system" and (name in NO_SYSTEM or _loses_system(name, chat)):
        first, second, *rest = messages
        joint = "\n" if name in NO_SYSTEM else "\n\n"
        messages = [{**second, "content": f"{first['content']}{joint}{second['content']}"}, *rest]
    if name in SAYS_SOMETHING:
        messages = _without_empty_answers(messages)
    if name in ALTERNATES:
        messages = _in_turn(messages, "…" if name in SAYS_SOMETHING else "")
    return Chat(tuple(messages), tools, chat.kwargs)


def with_preambles(prompt: str) -> str:
    """Return a prompt of `rewritten` messages with each marked text in the channel ``commentary``."""
    return prompt.replace(f"final<|message|>{PREAMBLE}", "commentary<|message|>")


def tamed(name: str, source: str) -> str:
    """The template without what Hugging Face alone refuses."""
    if name in LAZY_JSON:
        return source.replace("map(attribute='function') | tojson", "map(attribute='function') | list | tojson")
    if name in CHANGES_LISTS:
        source = re.sub(r"set (\w+) = ([\w.]+)\.pop\(0\) -%}", r"set \1 = \2[0] -%}{%- set \2 = \2[1:] -%}", source)
        return re.sub(r"set _ = ([\w.]+)\.append\((.*?)\) -%}", r"set \1 = \1 + [\2] -%}", source)
    return source
