"""How a model writes its turn: thoughts, answer and calls, as its template's format has it.

`recognition` finds that out once for a template; from there come the parser of what is generated, the grammars that
force a call, and the markup that both must see.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from server.formats.grammar.call_grammar import Function, Trigger, calls_lark, triggers
from server.formats.grammar.lark_text import ControlToken
from server.formats.parsing.reasoning import OutputParser
from server.formats.parsing.stream_parser import Reading
from server.formats.tool_call_syntax import ToolCallSyntax
from server.formats.tool_format import ToolFormat


@dataclass(frozen=True, slots=True)
class ChatFormat:
    """``tool_format``: the format of calls, and ``tool_call_syntax``: how this model writes it; ``source``: the
    template's.

    ``thought_tags``: what stands around thoughts; ``names_thoughts``: whether the template names them.
    ``doubt``: why the format may be another one.
    """

    tool_format: ToolFormat
    tool_call_syntax: ToolCallSyntax
    source: str
    thought_tags: tuple[str, str]
    names_thoughts: bool
    doubt: str = ""

    @property
    def knows_thoughts(self) -> bool:
        """Whether thoughts can be told from the answer."""
        return self.names_thoughts or self.tool_format.thoughts is not None

    @property
    def lead(self) -> str:
        """Markup that stands in front of an answer."""
        return self.tool_format.lead(self.source)

    def tags(self, *, calls: bool) -> tuple[str, ...]:
        """Markup that the parser must see even where it is a control token; with that of `calls` where they may come.

        What llama-server calls preserved tokens (common/chat.cpp).
        """
        return (*self.thought_tags, *self.call_tags(calls=calls))

    def call_tags(self, *, calls: bool) -> tuple[str, ...]:
        """The format's own part of `tags`."""
        return self.tool_format.tags if calls or self.tool_format.framed else ()

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
    ) -> OutputParser:
        """A new parser of one choice. `functions` may be called; ``forced``: one of them is, and nothing else is said;
        ``taken``: ids that calls have already.

        ``reasoning_format`` is llama-server's: none, deepseek, deepseek-legacy, auto (= deepseek).
        """
        tool_format = self.tool_format
        how = Reading(
            functions={function["name"]: function.get("parameters") or {} for function in functions},
            callable=parse_calls and bool(functions),
            forced=forced and parse_calls and bool(functions),
            parallel=parallel,
            thoughts_apart=reasoning_format != "none",
            thoughts_in_content=reasoning_format in ("none", "deepseek-legacy"),
            id_length=tool_format.id_length,
            taken=taken,
        )
        return tool_format.reader(how, self.thought_tags, generation_prompt)

    def forced_calls(
        self,
        functions: Sequence[Function],
        *,
        name: str = "",
        parallel: bool = True,
        control: ControlToken | None = None,
        answer: object | None = None,
    ) -> str:
        """Lark (llguidance's dialect) for ``tool_choice`` required, or the one function `name`: nothing but calls.

        ``answer``: the schema of an answer that may come instead.
        ``control``: `GrammarCompiler.control_token` of the model, for vocabularies whose tags are control tokens.
        Raises `InvalidRequest` for parameters that can't be enforced.
        """
        wanted = [function for function in functions if not name or function["name"] == name]
        instead = None if answer is None else (self.lead, answer)
        return calls_lark(
            self.tool_call_syntax,
            wanted,
            parallel=parallel and not name,
            control=control,
            tags=self.tool_format.tags,
            answer=instead,
        )

    def call_triggers(
        self, functions: Sequence[Function], *, parallel: bool, control: ControlToken | None = None
    ) -> list[Trigger]:
        """What opens a call of these functions in free text, with the grammar of what follows.

        Raises `InvalidRequest` for parameters that can't be enforced.
        """
        if not functions:
            return []
        return triggers(
            self.tool_call_syntax, functions, parallel=parallel, control=control, tags=self.tool_format.tags
        )
