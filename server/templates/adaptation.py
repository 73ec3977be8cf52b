"""Converts messages to the form that a template can show, so that the prompt contains every text, in order.

Only what a template can't show according to `capabilities` is changed. Besides llama.cpp's changes (common/chat.cpp:
`messages_inp_normalizer`, `workaround`):

- A later system message becomes marked text of an adjacent message. Moved to the start, it would change the prompt from
  there on and invalidate the cached prefix.
- Arguments of a call that are not a JSON object (truncated by a limit) are closed, or become the value of one member.
- A turn of several calls becomes turns of one call; text next to a call becomes a separate message.
- If roles must alternate, two messages of one role are merged, and an empty message separates others.

Reasoning of earlier turns is left to the template: most omit it, and their models are trained for that.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import sha256
from itertools import groupby
from secrets import token_hex
from typing import Any

from server.formats.arguments import object_of
from server.formats.recognition import TemplateMessage
from server.templates.capabilities import EFFORTS, Capabilities

_Messages = list[dict[str, Any]]

PREAMBLE_MARK = f"preamble-{token_hex(8)}:"
"""Marks a separate message with text before a call (`ChatFormat.with_preambles`). Random, so clients can't send it."""
_SEPARATOR = "\n\n"
_SYSTEM = ("system", "developer")
_NINE = re.compile(r"[0-9A-Za-z]{9}")
_UNNAMED = "a call without an id: "
_LETTERS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"


def adapt(
    messages: Sequence[TemplateMessage],
    caps: Capabilities,
    *,
    tools: bool = False,
    opened: bool = True,
    continued: bool = False,
    preamble: str = "",
) -> list[dict[str, Any]]:
    """Return copies of the messages in a form that a template with those capabilities can show.

    ``tools``: the template also gets tools. ``opened``: the prompt ends with the start of an assistant turn.
    ``continued``: the prompt continues the last message, which is kept even if it is empty. ``preamble``: markup that
    ends reasoning and starts text before a call; if it is set, a separate message with such a text starts with
    `PREAMBLE_MARK`.
    """
    adapted = [_message(message, caps) for message in messages]
    if not caps.empty_answer:
        adapted = [
            each for at, each in enumerate(adapted, 1) if _has_content(each) or (continued and at == len(adapted))
        ]
    adapted = _with_first_system(_with_late_systems(adapted, caps), caps)
    adapted = _with_calls(adapted, caps, preamble)
    adapted = _in_turn(adapted, caps, tools=tools)
    if not adapted or (opened and not continued and not caps.call_last and "tool_calls" in adapted[-1]):
        adapted.append({"role": "user", "content": caps.filler})
    return [_with_content(message, caps) for message in adapted]


def in_template_form(messages: Sequence[TemplateMessage], caps: Capabilities) -> list[dict[str, Any]]:
    """Return copies of the messages in the template's form, without changing the conversation.

    The form is content as text or as parts, and arguments as an object or as text. Users of transformers write it
    themselves.
    """
    adapted = []
    for given in messages:
        message = _message(given, caps)
        if "tool_calls" in message:
            message["tool_calls"] = [_with_arguments(call, caps) for call in message["tool_calls"]]
        adapted.append(_with_content(message, caps))
    return _with_ids(adapted, caps)


def with_words(messages: Sequence[TemplateMessage]) -> tuple[list[dict[str, Any]], list[str], list[int]]:
    """Return the conversation with a unique word instead of each text and each call's arguments.

    Also return these words, and the indexes of words that start a system message after the first message.
    """
    words: list[str] = []
    late: list[int] = []

    def word() -> str:
        words.append(f"word{len(words)}x")
        return words[-1]

    adapted = []
    for at, given in enumerate(messages):
        message = dict(given)
        content = message["content"]
        if at and message.get("role") in _SYSTEM and text_of(content):
            late.append(len(words))
        if isinstance(content, list):
            message["content"] = [{**part, "text": word()} if part["text"] else part for part in content]
        elif content:
            message["content"] = word()
        if "tool_calls" in message:
            message["tool_calls"] = [_with_word(call, word()) for call in message["tool_calls"]]
        adapted.append(message)
    return adapted, words, late


def _with_word(call: Mapping[str, Any], word: str) -> dict[str, Any]:
    function = call["function"]
    arguments = {"a": word} if isinstance(function.get("arguments"), Mapping) else f'{{"a": "{word}"}}'
    return {**call, "function": {**function, "arguments": arguments}}


def adapted_effort(effort: str, caps: Capabilities) -> str:
    """Return the nearest effort that the template accepts, the higher one of two; unknown values are unchanged."""
    if effort not in EFFORTS or effort in caps.efforts:
        return effort
    level = EFFORTS.index(effort)
    return min(caps.efforts, key=lambda known: (abs(EFFORTS.index(known) - level), -EFFORTS.index(known)))


def text_of(content: Any) -> str:
    """Return content as one string. Text parts are joined with newlines, as in llama-server."""
    if isinstance(content, list):
        return "\n".join(part["text"] for part in content)
    return content or ""


def joined(contents: Iterable[Any], separator: str = _SEPARATOR) -> Any:
    """Concatenate contents; `separator` separates adjacent texts."""
    given = [content for content in contents if content]
    if all(isinstance(content, str) for content in given):
        return separator.join(given)
    texts: list[list[str]] = []
    for content in given:
        first, *rest = ([part["text"]] for part in _parts(content))
        if texts:
            texts[-1] += (separator, *first)
        else:
            texts.append(first)
        texts += rest
    return [{"type": "text", "text": "".join(text)} for text in texts]


def result_as_text(result: TemplateMessage, name: str) -> dict[str, Any]:
    """Return the result of a call of function `name` as a user message."""
    return {"role": "user", "content": joined((f"Result of {name}:", result.get("content")))}


def _message(given: TemplateMessage, caps: Capabilities) -> dict[str, Any]:
    message = dict(given)
    if message.get("role") == "developer" and not caps.developer:
        message["role"] = "system"
    if message.get("content") is None:
        message["content"] = ""
    if message.get("reasoning_content"):
        message["thinking"] = message["reasoning_content"]  # transformers uses both names; gpt-oss reads this one
    if not message.get("tool_calls"):
        message.pop("tool_calls", None)
    return message


def _has_content(message: TemplateMessage) -> bool:
    return message.get("role") != "assistant" or bool(message.get("tool_calls")) or bool(text_of(message["content"]))


def _parts(content: Any) -> list[dict[str, str]]:
    return content if isinstance(content, list) else [{"type": "text", "text": content}]


def _with_late_systems(messages: _Messages, caps: Capabilities) -> _Messages:
    """Join later system messages to the first one, or make them text of an adjacent message."""
    n_first = next((at for at, each in enumerate(messages) if each.get("role") not in _SYSTEM), len(messages))
    first, rest = messages[:n_first], messages[n_first:]
    if len(first) > 1 and not (caps.consecutive_systems and (caps.late_system or _systems_come_first(first))):
        first = [{**first[0], "content": joined(message["content"] for message in first)}]
    if caps.late_system:
        return [*first, *rest]
    adapted: _Messages = []
    pending = ""  # text for the next message
    unanswered = 0  # calls after the last result, if a turn of several calls becomes several turns
    for is_system, group in groupby(rest, lambda message: message.get("role") in _SYSTEM):
        if is_system:
            text = _SEPARATOR.join(f"<system>\n{text_of(message['content'])}\n</system>" for message in group)
            last = adapted[-1].get("role") if adapted else ""
            if last == "user" or (last == "tool" and unanswered <= 0):
                adapted[-1] = {**adapted[-1], "content": joined((adapted[-1]["content"], text))}
            else:
                pending = text
            continue
        for message in group:
            role = message.get("role")
            if not caps.parallel_tool_calls:
                unanswered = unanswered - 1 if role == "tool" else len(message.get("tool_calls", ()))
            if pending and role not in ("user", "tool"):
                adapted.append({"role": "user", "content": pending})
                pending = ""
            adapted.append({**message, "content": joined((pending, message["content"]))} if pending else message)
            pending = ""
    return [*first, *adapted, *([{"role": "user", "content": pending}] if pending else [])]


def _systems_come_first(messages: _Messages) -> bool:
    """Return whether system messages precede developer messages; some templates move the system messages."""
    is_developer = [message.get("role") == "developer" for message in messages]
    return is_developer == sorted(is_developer)


def _with_first_system(messages: _Messages, caps: Capabilities) -> _Messages:
    """Prepend the first system message to the user's text if the template omits or moves it."""
    if (caps.system and caps.steady_system) or not messages or messages[0].get("role") not in _SYSTEM:
        return messages
    first, *rest = messages
    if not rest or rest[0].get("role") != "user":
        return [{"role": "user", "content": first["content"]}, *rest]
    content = joined((first["content"], rest[0]["content"]), caps.system_separator)
    return [{**rest[0], "content": content}, *rest[1:]]


def _with_calls(messages: _Messages, caps: Capabilities, preamble: str) -> _Messages:
    messages = _with_ids(messages, caps)
    answers = [at for at, each in enumerate(messages) if each.get("role") == "assistant" and "tool_calls" not in each]
    last_answer = answers[-1] if answers else -1
    adapted: _Messages = []
    at = 0
    while at < len(messages):
        message = messages[at]
        at += 1
        if "tool_calls" in message:
            end = next((i for i in range(at, len(messages)) if messages[i].get("role") != "tool"), len(messages))
            adapted += _turn(message, messages[at:end], caps, preamble, is_latest=at > last_answer)
            at = end
        elif message.get("role") == "tool" and not caps.results_without_calls and not _follows_call(adapted):
            adapted.append(result_as_text(message, message.get("name") or "the function"))
        else:
            adapted.append(message)
    return adapted


def _follows_call(messages: _Messages) -> bool:
    last = next((each for each in reversed(messages) if each.get("role") != "tool"), {})
    return "tool_calls" in last


def _turn(
    given: TemplateMessage, results: _Messages, caps: Capabilities, preamble: str, *, is_latest: bool
) -> Iterator[dict[str, Any]]:
    """Yield a message with calls and the results that follow it."""
    calls = [_with_arguments(call, caps) for call in given["tool_calls"]]
    if not caps.results_without_calls:  # a result without a known id and name belongs to the call at its position
        ids = {call.get("id") for call in calls}
        results = [
            result
            if result.get("name") or result.get("tool_call_id") in ids
            else {**result, "name": calls[min(number, len(calls) - 1)]["function"]["name"]}
            for number, result in enumerate(results)
        ]
    message = {**given, "tool_calls": calls}
    content = message["content"]
    if content and (caps.text_with_calls == "never" or (caps.text_with_calls == "latest" and not is_latest)):
        yield {"role": message["role"], "content": joined((PREAMBLE_MARK, content), "") if preamble else content}
        message["content"] = ""
    elif content and message.get("reasoning_content") and not caps.reasoning_with_call_text:
        reasoning = f"{message['reasoning_content']}{preamble or _SEPARATOR}{text_of(content)}"
        message |= {"content": "", "reasoning_content": reasoning, "thinking": reasoning}
    if len(calls) < 2 or caps.parallel_tool_calls:
        yield message
        yield from results
        return
    answers = _answers(calls, results)
    for number, call in enumerate(calls):
        rest = {} if number == 0 else {"role": message["role"], "content": ""}
        yield {**(rest or message), "tool_calls": [call]}
        yield from answers[number]
    yield from answers[len(calls)]


def _answers(calls: Sequence[TemplateMessage], results: _Messages) -> list[_Messages]:
    """Return the results of each call, by id, otherwise by position; the last list has the results without a call."""
    answers: list[_Messages] = [[] for _ in range(len(calls) + 1)]
    by_id = {call.get("id"): number for number, call in enumerate(calls)}
    for number, result in enumerate(results):
        index = min(number, len(calls))
        if len(by_id) == len(calls):
            index = by_id.get(result.get("tool_call_id"), index)
        answers[index].append(result)
    return answers


def _with_ids(messages: _Messages, caps: Capabilities) -> _Messages:
    """Convert call ids to the template's form, consistently for calls and results."""
    if caps.call_ids == "optional":
        return messages
    adapted: _Messages = []
    ids: dict[str, str] = {}
    unanswered: dict[str, None] = {}
    n_calls = 0
    for message in messages:
        if "tool_calls" in message:
            calls = []
            for call in message["tool_calls"]:
                given = call.get("id") or f"{_UNNAMED}{n_calls}"
                ids[given] = _call_id(given, call["function"]["name"], n_calls, caps)
                unanswered[given] = None
                calls.append({**call, "id": ids[given]})
                n_calls += 1
            adapted.append({**message, "tool_calls": calls})
        elif message.get("role") == "tool":
            given = message.get("tool_call_id") or next(iter(unanswered), _UNNAMED)
            unanswered.pop(given, None)
            adapted.append({**message, "tool_call_id": ids.get(given) or _call_id(given, "", n_calls, caps)})
        else:
            adapted.append(message)
    return adapted


def _call_id(given: str, name: str, number: int, caps: Capabilities) -> str:
    if caps.call_ids == "named":
        return given if name in given else f"functions.{name}:{number}"
    if _NINE.fullmatch(given) or (caps.call_ids == "any" and not given.startswith(_UNNAMED)):
        return given
    hashed = int.from_bytes(sha256(given.encode("utf-8", "surrogatepass")).digest())
    return "".join(_LETTERS[hashed // len(_LETTERS) ** digit % len(_LETTERS)] for digit in range(9))


def _with_arguments(call: Mapping[str, Any], caps: Capabilities) -> dict[str, Any]:
    function = call["function"]
    arguments = function.get("arguments")
    if caps.object_arguments and isinstance(arguments, str):
        return {**call, "function": {**function, "arguments": object_of(arguments)}}
    return dict(call)


def _in_turn(messages: _Messages, caps: Capabilities, *, tools: bool) -> _Messages:
    """Start with the user and alternate roles if the template requires it; calls and results don't count."""
    if not caps.consecutive_roles:
        messages = _merged(messages)
    adapted: _Messages = []
    must_alternate = not caps.consecutive_roles or not caps.user_after_call
    last = "assistant"  # the role of the last message that counts
    is_first = True
    for message in messages:
        role = message.get("role")
        if role in _SYSTEM:
            adapted.append(message)
            continue
        counts = role == "user" or (role == "assistant" and "tool_calls" not in message)
        if is_first and not _may_be_first(message, messages, caps, tools=tools):
            adapted.append({"role": "user", "content": caps.filler})
            last = "user"
        if counts and not is_first and role == last and must_alternate:
            adapted.append({"role": "assistant" if role == "user" else "user", "content": caps.filler})
        if counts:
            last = str(role)
        is_first = False
        adapted.append(message)
    if is_first and adapted and not (_is_allowed(caps.system_alone, tools=tools) and caps.without_user):
        adapted.append({"role": "user", "content": caps.filler})
    return adapted


def _may_be_first(first: TemplateMessage, messages: _Messages, caps: Capabilities, *, tools: bool) -> bool:
    if first.get("role") == "user":
        return True
    if not caps.without_user and all(each.get("role") != "user" for each in messages):
        return False
    if first.get("role") == "assistant" and "tool_calls" not in first:
        return caps.assistant_first
    return _is_allowed(caps.call_first, tools=tools)


def _is_allowed(when: str, *, tools: bool) -> bool:
    return when == "always" or (when == "without tools" and not tools)


def _merged(messages: _Messages) -> _Messages:
    """Merge consecutive messages of the user or the assistant."""
    adapted: _Messages = []
    for role, group in groupby(messages, lambda each: "" if "tool_calls" in each else each.get("role")):
        run = list(group)
        if len(run) < 2 or role not in ("user", "assistant"):
            adapted += run
            continue
        merged = {**run[0], "content": joined(message["content"] for message in run)}
        reasoning = _SEPARATOR.join(filter(None, (message.get("reasoning_content") for message in run)))
        adapted.append({**merged, "reasoning_content": reasoning, "thinking": reasoning} if reasoning else merged)
    return adapted


def _with_content(message: dict[str, Any], caps: Capabilities) -> dict[str, Any]:
    """Return the content as text or as parts, depending on what the template shows for that role."""
    content = message["content"]
    if isinstance(content, list):
        shown = caps.parts.get(message.get("role", ""), "all") if caps.typed_content else "none"
        if shown == "all" or (shown == "first" and len(content) < 2):
            return message
        content = text_of(content)
        if shown == "first":
            return {**message, "content": [{"type": "text", "text": content}]}
    return {**message, "content": content if caps.string_content else [{"type": "text", "text": content}]}
