"""The output format that a request specifies: one value for all request fields."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from server.errors import InvalidRequest

if TYPE_CHECKING:  # importing llguidance takes time
    from server.structured.grammar.compiler import GrammarCompiler
    from server.structured.grammar.matcher import MatcherConstraint

ANY_OBJECT: dict[str, Any] = {"type": "object"}
_SCHEMA_FIELD = "json_schema"


@dataclass(frozen=True, slots=True)
class ResponseFormat:
    """A JSON Schema, a GBNF or Lark grammar, a regex, or a list of choices."""

    kind: Literal["schema", "gbnf", "lark", "regex", "choice"]
    value: Any
    at: str  # the request field, for error messages

    def constraint(self, compiler: "GrammarCompiler") -> "MatcherConstraint":
        """Compile the format. Raises `InvalidRequest` that names the field and the construct."""
        compile_value = getattr(compiler, _SCHEMA_FIELD if self.kind == "schema" else self.kind)
        try:
            constraint: MatcherConstraint = compile_value(self.value)
            return constraint
        except InvalidRequest as error:
            raise self._named(error) from None

    def _named(self, error: InvalidRequest) -> InvalidRequest:
        """Replace the compiler's field name by the request's field."""
        field = _SCHEMA_FIELD if self.kind == "schema" else "grammar"
        if self.at == field:
            return error
        message, param = error.message, error.param or ""
        message = self.at + message.removeprefix(field) if message.startswith(field) else f"{self.at}: {message}"
        return InvalidRequest(message, self.at + param.removeprefix(field) if param.startswith(field) else self.at)
