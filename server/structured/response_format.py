"""The format that a request requires of the output: one value for all request fields."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from server.errors import InvalidRequest

if TYPE_CHECKING:  # llguidance takes its time to import
    from server.structured.grammar.compiler import GrammarCompiler
    from server.structured.grammar.matcher import MatcherConstraint

ANY_OBJECT: dict[str, Any] = {"type": "object"}
_COMPILERS_NAME = "json_schema"


@dataclass(frozen=True, slots=True)
class ResponseFormat:
    """A JSON Schema, a GBNF or Lark grammar, a regex, or a list of choices."""

    kind: Literal["schema", "gbnf", "lark", "regex", "choice"]
    value: Any
    at: str  # the request field, for error messages

    def constraint(self, compiler: "GrammarCompiler") -> "MatcherConstraint":
        """Compile it. Raises `InvalidRequest` that names the field and the construct."""
        compile_value = getattr(compiler, _COMPILERS_NAME if self.kind == "schema" else self.kind)
        try:
            constraint: MatcherConstraint = compile_value(self.value)
            return constraint
        except InvalidRequest as error:
            raise self._named(error) from None

    def _named(self, error: InvalidRequest) -> InvalidRequest:
        own = _COMPILERS_NAME if self.kind == "schema" else "grammar"
        if self.at == own:
            return error
        message, param = error.message, error.param or ""
        message = self.at + message.removeprefix(own) if message.startswith(own) else f"{self.at}: {message}"
        return InvalidRequest(message, self.at + param.removeprefix(own) if param.startswith(own) else self.at)
