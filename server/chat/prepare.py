"""Converts a conversation to an engine request: prompt, constraint and parser.

`decide` combines reasoning, tool calls and response format into one `Output`: the constraint for generation, the
control tokens that must appear as text, and the parser. With ``tool_choice`` auto, text is unconstrained, but a tool
call that the model starts must match the function's schema. If a function's parameters can't be enforced, only its name
is enforced, unless the client set ``strict``.
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
from server.structured.response_format import ResponseFormat

_Triggers = tuple[tuple[TriggeredTag, ...], Markers | None]
MAX_PREFILLED_CHARS = 1 << 16
"""Maximum length of JSON text that the reply continues: the grammar consumes it byte by byte."""


@dataclass(frozen=True, slots=True)
class Output:
    """How a reply to a prompt is generated and parsed."""

    prompt: Prompt
    constraint: Constraint | None
    shown: frozenset[int]  # control tokens that must appear as text for the parser
    parser: Callable[[], OutputParser]
    response_format: ResponseFormat | None = None  # the one that applies; None also with tools
    switch: ReasoningSwitch | None = None  # lets another request end the reasoning


def decide(conversation: Conversation, prompt: Prompt, model: LoadedModel) -> Output:
    """Return the constraint and the parser for a reply to `conversation`. Raises `InvalidRequest`."""
    tools, reasoning, chat_format = conversation.tools, conversation.reasoning, prompt.chat_format
    functions = [tool.function for tool in tools.tools] if tools.callable else []
    reasoning_format = reasoning.format or model.spec.chat.reasoning_format
    shown = preserved(chat_format.tags(calls=bool(functions)), model.vocab)
    used_ids = frozenset(call.id for message in conversation.messages for call in message.calls)

    def parser() -> OutputParser:
        return chat_format.parser(
            functions,
            generation_prompt=prompt.generation_prompt,
            reasoning_format=reasoning_format,
            parse_calls=conversation.parse_tool_calls,
            parallel=tools.parallel is not False,
            forced=tools.choice == "required",
            taken=used_ids,
        )

    if not functions:  # the model's default response format does not apply to calls
        response_format = conversation.response_format or model.spec.shape
        conversation = replace(conversation, response_format=response_format)
    switch = ReasoningSwitch() if reasoning.switch else None
    reply = _Reply(conversation, prompt, model)
    constraint = reply.constraint(shown, separate_reasoning=reasoning_format != "none")
    response_format = None if functions else conversation.response_format
    return Output(prompt, reply.limited(constraint, switch), shown, parser, response_format, switch)


@dataclass(frozen=True, slots=True)
class _Reply:
    """A reply to `conversation`, after `prompt`."""

    conversation: Conversation
    prompt: Prompt
    model: LoadedModel

    def constraint(self, shown: frozenset[int], *, separate_reasoning: bool) -> Constraint | None:
        """Return the constraint of the reply after any reasoning.

        If a tool call is required, only calls are allowed. If calls are optional, a response format applies to a reply
        without calls; without a format, only calls are constrained. ``separate_reasoning``: whether the parser
        separates reasoning from the reply, so that reasoning contains no calls.
        """
        prompt, chat_format, model = self.prompt, self.prompt.chat_format, self.model
        tools, response_format = self.conversation.tools, self.conversation.response_format
        opened = prompt.open_reasoning is not None
        if tools.callable and tools.choice == "auto" and response_format is None:
            return self._triggered_calls(shown)
        # A prefilled answer can't become a call.
        may_call = tools.callable and not (prompt.prefilled and tools.choice == "auto")
        constraint = self._calls_or_answer() if may_call else self._answer()
        if constraint is None:
            return None
        tool_format, tags = chat_format.tool_format, chat_format.reasoning_tags
        lead = chat_format.lead if prompt.opens_turn or opened else ""
        closed = any(tag in prompt.generation_prompt for tag in tags)
        # A user's grammar may include the reasoning; llama-server applies it from the first token.
        is_user_grammar = response_format is not None and response_format.at == "grammar" and not lead
        may_think = prompt.may_reason and chat_format.separates_reasoning and prompt.opens_turn
        may_think = may_think and not closed and not is_user_grammar
        may_think = may_think and (separate_reasoning or tool_format.inline_reasoning is not None)
        lead = "" if may_call else lead  # the grammar of calls contains it
        if not (opened or may_think or lead):
            return constraint
        markup = model.vocab.tokenize("".join((*tags, tool_format.again, lead)), add_special=False, parse_special=True)
        pieces = {model.vocab.piece(token).decode(errors="replace") for token in markup}
        lark = chat_format.framing(lead, model.grammar.control_token, [*pieces], begun=opened, may_think=may_think)
        return AfterReasoning(constraint, model.vocab, model.grammar.own_lark(lark), tags[0].encode())

    def limited(self, constraint: Constraint | None, switch: ReasoningSwitch | None) -> Constraint | None:
        """Return `constraint` with an end of reasoning: at the prompt's token budget, or by the `switch`.

        A constraint that applies from the first token allows no reasoning and is returned unchanged.
        """
        budget, chat_format = self.prompt.budget, self.prompt.chat_format
        if budget.budget == UNLIMITED and switch is None:
            return constraint
        is_free = constraint is None or (isinstance(constraint, TriggeredConstraint) and not constraint.is_lazy)
        if not is_free and not isinstance(constraint, AfterReasoning):
            return constraint
        opening, closing = chat_format.reasoning_tags
        closings, begun = (closing, *chat_format.tool_format.breaks), self.prompt.open_reasoning
        vocab = self.model.vocab
        return budget.ended(constraint, vocab, opening, closings, begun=begun, reopens=is_free, switch=switch)

    def _answer(self) -> Constraint | None:
        """Return the constraint of a reply without calls, which may continue JSON text from the prompt.

        If that text does not match, the constraint starts from its initial state. llama-server also feeds the prompt's
        end to the grammar, but fails if it does not match (common/sampling.cpp).
        """
        response_format, prefilled = self.conversation.response_format, self.prompt.prefilled
        constraint = compiled(response_format, self.conversation.lazy, self.model)
        is_schema = response_format is not None and response_format.kind == "schema"
        if not (is_schema and prefilled and isinstance(constraint, MatcherConstraint)):
            return constraint
        if len(prefilled) > MAX_PREFILLED_CHARS:
            reason = f"to continue it as JSON, the last message must have at most {MAX_PREFILLED_CHARS} characters"
            raise invalid(self.conversation.messages_at, reason)
        return self.model.grammar.after(constraint, prefilled) or constraint

    def _calls_or_answer(self) -> Constraint:
        """Return the constraint of calls or, unless calls are required, of a reply in the response format."""
        tools, response_format = self.conversation.tools, self.conversation.response_format
        grammar = self.model.grammar
        if response_format is not None and response_format.kind != "schema":
            raise invalid(response_format.at, "can't be used together with tools that may be called")
        answer = None
        if response_format is not None and tools.choice != "required":
            response_format.constraint(grammar)  # its error names the schema, unlike an error of the whole grammar
            answer = response_format.value
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
            fault = next(self._faults(), None)  # the first function that can't be enforced alone
            raise error if fault is None else self._function_error(*fault) from error

    def _triggered_calls(self, shown: frozenset[int]) -> TriggeredConstraint | None:
        """Return the constraint of calls that the model may start; None if no function can be enforced.

        ``shown``: control tokens that appear as text for the parser. Reasoning that the prompt opened is not
        constrained. Raises `InvalidRequest` for a strict function that can't be enforced.
        """
        tools, chat_format = self.conversation.tools, self.prompt.chat_format
        functions = [[tool.function, tool.at, repr(tool.text)] for tool in tools.tools]
        key = json.dumps([functions, sorted(tools.strict), tools.parallel])
        tags, markers = self.model.grammar.remembered(f"calls:{key}", self._triggers)
        if markers is None:
            return None
        opening, closing = chat_format.reasoning_tags
        ends = tuple(end.encode() for end in (closing, *chat_format.tool_format.breaks))
        anywhere = chat_format.tool_format.inline_reasoning is not None
        rules = Rules(tags, markers, shown, (opening.encode(), ends), anywhere=anywhere)
        return TriggeredConstraint(rules, thinking=self.prompt.open_reasoning is not None)

    def _triggers(self) -> _Triggers:
        """Return the grammars of the calls. Functions that can't be enforced may have any arguments."""
        tools = self.conversation.tools
        functions = [tool.grammar_function for tool in tools.tools]
        try:
            return self._compiled(functions)
        except InvalidRequest:
            faults = list(self._faults())
        for tool, error in faults:
            if tool.name in tools.strict:
                raise self._function_error(tool, error) from error
        faulty = {tool.name for tool, _ in faults}
        relaxed = [
            {**function, "parameters": {"type": "object"}} if function["name"] in faulty else function
            for function in functions
        ]
        try:
            return self._compiled(relaxed)
        except InvalidRequest:
            if tools.strict:
                raise
            return (), None  # the format can't have such a name, or the grammar is too large

    def _faults(self) -> Iterator[tuple[Tool, InvalidRequest]]:
        """Compile each function alone and yield those that can't be enforced."""
        for tool in self.conversation.tools.tools:
            try:
                self._compiled([tool.grammar_function])
            except InvalidRequest as error:
                yield tool, error

    def _function_error(self, tool: Tool, error: InvalidRequest) -> InvalidRequest:
        """Return the error of the function's schema, which names the unsupported keyword; otherwise `error`."""
        try:
            self.model.grammar.json_schema(tool.function["parameters"])
        except InvalidRequest as schema_error:
            return InvalidRequest(schema_error.message.replace("json_schema", tool.at, 1), tool.at)
        return invalid(tool.at, error.message)

    def _compiled(self, functions: Sequence[Function]) -> _Triggers:
        grammar, parallel = self.model.grammar, self.conversation.tools.parallel is not False
        triggers = self.prompt.chat_format.call_triggers(functions, parallel=parallel, control=grammar.control_token)
        calls = grammar.lark(triggers[0].lark, max_chars=MAX_CALLS_CHARS)
        constraints = {text: self._after(calls, text) for text in {each.begun for each in triggers}}
        tags = tuple(TriggeredTag(each.text.encode(), constraints[each.begun], each.at_start) for each in triggers)
        return tags, grammar.tokens.markers([tag.marker for tag in tags])

    def _after(self, calls: MatcherConstraint, prefix: str) -> MatcherConstraint:
        """Return the constraint of the rest of `calls` after the text `prefix`."""
        constraint = self.model.grammar.after(calls, prefix)
        if constraint is None:
            raise invalid("tools", f"no call can be enforced: the vocabulary has no tokens for {prefix!r}")
        return constraint


def prepare(conversation: Conversation, model: LoadedModel, media: LoadedMedia) -> tuple[Output, MediaPrompt]:
    """Render and tokenize the prompt and compile the constraint; return the output and the prompt's tokens.

    ``media``: the loaded media of the conversation. Blocking, for a worker thread. Raises `InvalidRequest`, and
    `ContextExceeded` for texts that are certainly too long; the engine checks the others.
    """
    prompt = render(conversation, model)
    tokens = read_parts(prompt.parts, model, media, must_fit=True)
    if not tokens.tokens:
        at = conversation.messages_at
        raise invalid(at, "the chat template renders them to an empty prompt")
    return decide(conversation, prompt, model), tokens
