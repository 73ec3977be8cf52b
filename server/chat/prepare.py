"""Converts a conversation to an engine request: prompt, constraint and parser.

`decide` combines reasoning, tool calls and response format into one `Output`: the constraint for generation, the
control tokens that must appear as text, and the parser. With ``tool_choice`` auto, text is unconstrained, but a tool
call must match the function's schema once the model opens it. If a function's parameters can't be enforced, only its
name is, unless the client set ``strict``.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from server.chat.conversation import Conversation, Tool
from server.chat.prompt import Prompt, read_parts, render
from server.engine.media import MediaPrompt
from server.errors import InvalidRequest, invalid
from server.formats.grammar.call_grammar import Function
from server.formats.parsing.reasoning import OutputParser
from server.media.source import LoadedMedia
from server.pool.model import LoadedModel
from server.structured.after_reasoning import AfterReasoning
from server.structured.constraint import Constraint
from server.structured.grammar.limits import MAX_CALLS_CHARS
from server.structured.grammar.matcher import MatcherConstraint
from server.structured.grammar.text_tokens import Markers
from server.structured.grammar.triggered import Rules, TriggeredConstraint, TriggeredTag
from server.structured.lazy import compiled, preserved
from server.structured.reasoning_end import UNLIMITED, ReasoningSwitch

_Begun = tuple[tuple[TriggeredTag, ...], Markers | None]
MAX_PREFILLED_CHARS = 1 << 16
"""Of a JSON text that the prompt ends with: it goes through the grammar byte by byte."""


@dataclass(frozen=True, slots=True)
class Output:
    """How a reply to a prompt is generated and parsed."""

    prompt: Prompt
    constraint: Constraint | None
    shown: frozenset[int]  # control tokens that must appear as text for the parser
    parser: Callable[[], OutputParser]
    switch: ReasoningSwitch | None = None  # ends the reasoning from outside


def decide(conversation: Conversation, prompt: Prompt, model: LoadedModel) -> Output:
    """Return the constraint and the parser for a reply to `conversation`. Raises `InvalidRequest`."""
    tools, reasoning, chat_format = conversation.tools, conversation.thinking, prompt.chat_format
    functions = [tool.function for tool in tools.tools] if tools.callable else []
    reasoning_format = reasoning.format or model.spec.chat.reasoning_format
    shown = preserved(chat_format.tags(calls=bool(functions)), model.vocab)
    taken = frozenset(call.id for message in conversation.messages for call in message.calls)

    def parser() -> OutputParser:
        return chat_format.parser(
            functions,
            generation_prompt=prompt.generation_prompt,
            reasoning_format=reasoning_format,
            parse_calls=conversation.reads_calls,
            parallel=tools.parallel is not False,
            forced=tools.choice == "required",
            taken=taken,
        )

    if not functions:  # calls have grammars of their own
        conversation = replace(conversation, shape=conversation.shape or model.spec.shape)
    switch = ReasoningSwitch() if reasoning.switch else None
    reply = _Reply(conversation, prompt, model)
    constraint = reply.constraint(shown, separate_reasoning=reasoning_format != "none")
    return Output(prompt, reply.limited(constraint, switch), shown, parser, switch)


@dataclass(frozen=True, slots=True)
class _Reply:
    """A reply to `conversation`, after `prompt`."""

    conversation: Conversation
    prompt: Prompt
    model: LoadedModel

    def constraint(self, shown: frozenset[int], *, separate_reasoning: bool) -> Constraint | None:
        """Return the constraint of the reply after any reasoning.

        If a tool call is required, only calls are allowed. If calls are optional, a response format applies to a reply
        that is not a call; without one, only calls are constrained. ``separate_reasoning``: whether the parser
        separates reasoning from the reply, so that reasoning contains no calls.
        """
        prompt, chat_format, model = self.prompt, self.prompt.chat_format, self.model
        tools, shape = self.conversation.tools, self.conversation.shape
        opened = prompt.open_reasoning is not None
        if tools.callable and tools.choice == "auto" and shape is None:
            return self._triggered_calls(shown)
        may_call = tools.callable and not (prompt.prefilled and tools.choice == "auto")  # an answer that has begun
        constraint = self._calls_or_answer() if may_call else self._answer()
        if constraint is None:
            return None
        tool_format, tags = chat_format.tool_format, chat_format.reasoning_tags
        lead = chat_format.lead if prompt.opens or opened else ""
        closed = any(tag in prompt.generation_prompt for tag in tags)
        # A user's grammar may include the reasoning; llama-server applies it from the first token.
        own = shape is not None and shape.at == "grammar" and not lead
        may_think = prompt.thinks and chat_format.separates_reasoning and prompt.opens and not closed and not own
        may_think = may_think and (separate_reasoning or tool_format.inline_reasoning is not None)
        lead = "" if may_call else lead  # with calls it is in their grammar
        if not (opened or may_think or lead):
            return constraint
        markup = model.vocab.tokenize("".join((*tags, tool_format.again, lead)), add_special=False, parse_special=True)
        marks = {model.vocab.piece(token).decode(errors="replace") for token in markup}
        lark = chat_format.framing(lead, model.grammar.control_token, [*marks], begun=opened, may_think=may_think)
        return AfterReasoning(constraint, model.vocab, model.grammar.own_lark(lark), tags[0].encode())

    def limited(self, constraint: Constraint | None, switch: ReasoningSwitch | None) -> Constraint | None:
        """Add an end of reasoning to `constraint`: at the prompt's token budget, and by the `switch` if there is one.

        If the constraint applies from the first token, there is no reasoning and this does nothing.
        """
        allowed, chat_format = self.prompt.allowed, self.prompt.chat_format
        if allowed.budget == UNLIMITED and switch is None:
            return constraint
        free = constraint is None or (isinstance(constraint, TriggeredConstraint) and not constraint.is_lazy)
        if not free and not isinstance(constraint, AfterReasoning):
            return constraint
        opening, closing = chat_format.reasoning_tags
        closings, begun = (closing, *chat_format.tool_format.breaks), self.prompt.open_reasoning
        vocab = self.model.vocab
        return allowed.ended(constraint, vocab, opening, closings, begun=begun, reopens=free, switch=switch)

    def _answer(self) -> Constraint | None:
        """Return the constraint of a reply without calls, which may continue JSON text from the prompt.

        If that text does not match, the constraint starts from its initial state. llama-server also feeds the prompt's
        end to the grammar, and fails if it does not match (common/sampling.cpp).
        """
        shape, prefilled = self.conversation.shape, self.prompt.prefilled
        constraint = compiled(shape, self.conversation.lazy, self.model)
        if not isinstance(constraint, MatcherConstraint) or shape is None or shape.kind != "schema" or not prefilled:
            return constraint
        if len(prefilled) > MAX_PREFILLED_CHARS:
            reason = f"to continue it as JSON, the last message must have at most {MAX_PREFILLED_CHARS} characters"
            raise invalid(self.conversation.messages_at, reason)
        return self.model.grammar.after(constraint, prefilled) or constraint

    def _calls_or_answer(self) -> Constraint:
        """Return the constraint of calls; unless they are required, of a reply in the response format instead."""
        tools, shape, grammar = self.conversation.tools, self.conversation.shape, self.model.grammar
        if shape is not None and shape.kind != "schema":
            raise invalid(shape.at, "can't be used together with tools that may be called")
        answer = None
        if shape is not None and tools.choice != "required":
            shape.constraint(grammar)  # for its message: that of the whole grammar would not name the schema
            answer = shape.value
        try:
            lark = self.prompt.chat_format.forced_calls(
                [tool.grammar_function for tool in tools.tools],
                name=tools.name,
                parallel=tools.parallel is not False,
                control=grammar.control_token,
                answer=answer,
            )
            return grammar.lark(lark, max_chars=MAX_CALLS_CHARS)
        except InvalidRequest as error:
            fault = next(self._faults(), None)  # of the function that causes it, whose name the error has
            raise error if fault is None else self._named(*fault) from error

    def _triggered_calls(self, shown: frozenset[int]) -> TriggeredConstraint | None:
        """Return the constraint of calls that the model starts; None if no function can be enforced.

        ``shown``: control tokens that appear as text for the parser. Reasoning that the prompt opened is not
        constrained. Raises `InvalidRequest` for a strict function that can't be enforced.
        """
        tools, chat_format = self.conversation.tools, self.prompt.chat_format
        functions = [[tool.function, tool.at, repr(tool.text)] for tool in tools.tools]
        shape = json.dumps([functions, sorted(tools.strict), tools.parallel])
        begun, markers = self.model.grammar.remembered(f"calls:{shape}", self._triggers)
        if markers is None:
            return None
        opening, closing = chat_format.reasoning_tags
        ends = tuple(end.encode() for end in (closing, *chat_format.tool_format.breaks))
        anywhere = chat_format.tool_format.inline_reasoning is not None
        rules = Rules(begun, markers, shown, (opening.encode(), ends), anywhere=anywhere)
        return TriggeredConstraint(rules, thinking=self.prompt.open_reasoning is not None)

    def _triggers(self) -> _Begun:
        """Return the grammars of the calls, in which functions that can't be enforced may have any arguments."""
        tools = self.conversation.tools
        functions = [tool.grammar_function for tool in tools.tools]
        try:
            return self._compiled(functions)
        except InvalidRequest:
            faults = list(self._faults())
        for tool, error in faults:
            if tool.name in tools.strict:
                raise self._named(tool, error) from error
        faulty = {tool.name for tool, _ in faults}
        kept = [
            {**function, "parameters": {"type": "object"}} if function["name"] in faulty else function
            for function in functions
        ]
        try:
            return self._compiled(kept)
        except InvalidRequest:
            if tools.strict:
                raise
            return (), None  # a name that the markup has no place for, or too much in all

    def _faults(self) -> Iterator[tuple[Tool, InvalidRequest]]:
        """Compile each function alone and yield those that can't be enforced."""
        for tool in self.conversation.tools.tools:
            try:
                self._compiled([tool.grammar_function])
            except InvalidRequest as error:
                yield tool, error

    def _named(self, tool: Tool, error: InvalidRequest) -> InvalidRequest:
        """Return the error of the parameters as a schema of their own, which names the keyword, otherwise `error`."""
        try:
            self.model.grammar.json_schema(tool.function["parameters"])
        except InvalidRequest as own:
            return InvalidRequest(own.message.replace("json_schema", tool.at, 1), tool.at)
        return invalid(tool.at, error.message)

    def _compiled(self, functions: Sequence[Function]) -> _Begun:
        grammar, parallel = self.model.grammar, self.conversation.tools.parallel is not False
        found = self.prompt.chat_format.call_triggers(functions, parallel=parallel, control=grammar.control_token)
        calls = grammar.lark(found[0].lark, max_chars=MAX_CALLS_CHARS)
        made = {text: self._after(calls, text) for text in {each.begun for each in found}}
        begun = tuple(TriggeredTag(each.text.encode(), made[each.begun], each.at_start) for each in found)
        return begun, grammar.tokens.markers([each.marker for each in begun])

    def _after(self, calls: MatcherConstraint, begun: str) -> MatcherConstraint:
        """Return the constraint of `calls`, after the text `begun`."""
        found = self.model.grammar.after(calls, begun)
        if found is None:
            raise invalid("tools", f"no call can be enforced: the vocabulary has no tokens for {begun!r}")
        return found


def prepare(conversation: Conversation, model: LoadedModel, media: LoadedMedia) -> tuple[Output, MediaPrompt]:
    """Render, tokenize and compile; return the output and the prompt's tokens. Blocks, so run it in a thread.

    ``media``: the loaded media of the conversation. Raises `InvalidRequest`.
    """
    prompt = render(conversation, model)
    tokens = read_parts(prompt.parts, model, media)
    if not tokens.tokens:
        at = conversation.messages_at
        raise invalid(at, "the chat template renders them to an empty prompt")
    return decide(conversation, prompt, model), tokens
