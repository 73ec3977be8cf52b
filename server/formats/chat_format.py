"""How a model writes its turn: reasoning, reply and calls, in the format of its template.

`recognition` creates one per template. It provides the parser of generated text, the grammars that force calls, and
the markup that both require.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from server.formats.grammar.call_grammar import CallGrammar, Function, Trigger
from server.formats.grammar.lark_text import ControlToken, LarkText
from server.formats.parsing.reasoning import TAGS, open_reasoning, reasoning_tags_in
from server.formats.parsing.stream_parser import ParserOptions, StreamParser, plain
from server.formats.tool_call_syntax import ToolCallSyntax
from server.formats.tool_format import ToolFormat

_SPACES = "(/[ \\t\\r\\n]{1,16}/)?"
"""Lark of the white space that models write around reasoning."""


@dataclass(frozen=True, slots=True)
class ChatFormat:
    """How a model writes its turn."""

    tool_format: ToolFormat
    tool_call_syntax: ToolCallSyntax  # this model's variant
    source: str  # of the template
    reasoning_tags: tuple[str, str]
    has_reasoning_tags: bool  # the template contains them
    doubt: str = ""  # why the detected format may be wrong

    @classmethod
    def of(cls, tool_format: ToolFormat, source: str) -> "ChatFormat":
        """Return the format for a template with that source, by what the source contains."""
        syntax = next((variant for sign, variant in tool_format.variants if sign in source), tool_format.syntax)
        own_tags = reasoning_tags_in(source)
        tags = tool_format.inline_reasoning or own_tags or TAGS[0]
        return cls(tool_format, syntax, source, tags, has_reasoning_tags=own_tags is not None)

    @property
    def separates_reasoning(self) -> bool:
        return self.has_reasoning_tags or self.tool_format.inline_reasoning is not None

    @property
    def lead(self) -> str:
        """Return the markup before a reply."""
        leads = self.tool_format.leads
        return next((lead for lead in leads if lead in self.source), leads[0] if leads else "")

    @property
    def after_reasoning(self) -> str:
        """Return the markup that ends reasoning and starts text before a call; "" if the format has none."""
        preamble = self.tool_format.preamble
        return preamble and f"{self.reasoning_tags[1]}{self.tool_format.again}{preamble}"

    def with_preambles(self, prompt: str, mark: str) -> str:
        """Replace each reply's lead together with the `mark` after it by the markup of text before a call."""
        lead, preamble = self.lead, self.tool_format.preamble
        return prompt.replace(f"{lead}{mark}", preamble).replace(mark, "") if preamble else prompt

    def tags(self, *, calls: bool) -> tuple[str, ...]:
        """Return the markup that the parser needs even if it is a control token (llama-server: preserved tokens).

        ``calls``: include the markup of calls.
        """
        own = self.tool_format.markup if calls or self.tool_format.framed else ()
        return (*self.reasoning_tags, *own)

    def parser(
        self,
        functions: Sequence[Function] = (),
        *,
        generation_prompt: str = "",
        reasoning_format: str = "auto",
        parse_calls: bool = True,
        parallel: bool = True,
        forced: bool = False,
        taken: frozenset[str] = frozenset(),
    ) -> StreamParser:
        """Create a parser for one choice.

        `functions`: those that may be called. ``forced``: the turn consists of calls only. ``taken``: ids of
        existing calls. ``reasoning_format`` is llama-server's: none, deepseek, deepseek-legacy, auto (= deepseek).
        """
        tool_format, tags = self.tool_format, self.reasoning_tags
        may_call, separate = parse_calls and bool(functions), reasoning_format != "none"
        has_markup = may_call or tool_format.framed
        options = ParserOptions(
            functions={function["name"]: function.get("parameters") or {} for function in functions},
            callable=may_call,
            forced=forced and may_call,
            parallel=parallel,
            separate_reasoning=separate,
            reasoning_in_content=reasoning_format in ("none", "deepseek-legacy"),
            id_length=tool_format.id_length,
            taken=taken,
            tags=tags if tool_format.inline_reasoning is None and (separate or may_call) else None,
            opened=open_reasoning(generation_prompt, tags) is not None,
            closed=tags[1] in generation_prompt,
            openings=tool_format.openings if may_call else (),
            primer=self._primer(generation_prompt) if has_markup else "",
        )
        return StreamParser(tool_format.parse if has_markup else plain, options)

    def _primer(self, generation_prompt: str) -> str:
        """Return the start of the assistant's turn in the prompt."""
        tool_format = self.tool_format
        if tool_format.turn_start:
            return generation_prompt.rpartition(tool_format.turn_start)[2]
        starts = (generation_prompt.rfind(lead.strip()) for lead in tool_format.leads)
        return generation_prompt[at:] if (at := max(starts, default=-1)) >= 0 else ""

    def framing(self, lead: str, control: ControlToken, tags: Sequence[str], *, begun: bool, may_think: bool) -> str:
        """Return Lark for the reasoning before a reply and the reply's markup, `lead`.

        ``begun``: the prompt opened the reasoning. ``may_think``: the model may open it. ``tags``: the control tokens
        in the markup. Without markup there may be white space before the reply, and before the opening tag.
        """
        opening, closing = self.reasoning_tags
        text, again = LarkText(control, tags), self.tool_format.again
        before = text.literal(lead) if lead else "" if begun and again else _SPACES
        reasoning = f"{text.text_until(closing)} {text.literal(again)}" if begun or may_think else ""
        if may_think:
            opened = text.literal(opening) if lead else f"{_SPACES} {text.literal(opening.lstrip())}"
            reasoning = f"({opened} {reasoning})?"
        return text.whole(f"{reasoning} {before}")

    def forced_calls(
        self,
        functions: Sequence[Function],
        *,
        name: str = "",
        parallel: bool = True,
        control: ControlToken | None = None,
        answer: object | None = None,
    ) -> str:
        """Return Lark (llguidance's dialect) that only allows calls: of any function, or of the one called `name`.

        ``answer``: the schema of an alternative reply. ``control``: `GrammarCompiler.control_token` of the model,
        for vocabularies whose tags are control tokens. Raises `InvalidRequest` for parameters that can't be
        enforced.
        """
        callable_functions = [function for function in functions if not name or function["name"] == name]
        text = LarkText(control, self.tool_format.markup)
        calls = CallGrammar(self.tool_call_syntax, callable_functions, text, parallel and not name)
        return calls.forced(None if answer is None else (self.lead, answer))

    def call_triggers(
        self, functions: Sequence[Function], *, parallel: bool, control: ControlToken | None = None
    ) -> list[Trigger]:
        """Return the texts that start a call of these functions in free text, with the grammar of the rest.

        Raises `InvalidRequest` for parameters that can't be enforced.
        """
        text = LarkText(control, self.tool_format.markup)
        return CallGrammar(self.tool_call_syntax, functions, text, parallel).triggers()
