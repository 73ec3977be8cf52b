"""Grammar rules of the arguments of a function whose one parameter is a text that a client's grammar describes."""

from server.constrain.grammar.text_grammar import TextGrammar
from server.formats.call_form import Arguments, Braces, Elements, JsonArguments, Keywords, Parameters
from server.formats.grammar.lark_text import LarkText

INPUT = "input"
"""The parameter's name."""


def text_argument_rule(arguments: Arguments, grammar: TextGrammar, text: LarkText) -> str:
    """The rule of the arguments. Raises `InvalidRequest` for a grammar that can't be enforced there."""
    match arguments:
        case JsonArguments():
            return text.rule(f'/\\{{[ \\n]?"{INPUT}":[ ]?"/ {text.text_in_json(grammar)} /"[ \\n]?\\}}/')
        case Keywords(end):
            opening = text.literal(f'{INPUT}="')
            return text.rule(f"{opening} {text.text_in_json(grammar)} {text.literal(chr(34) + end)}")
        case Parameters():
            opening = f"{text.literal(arguments.before + INPUT)} {text.markup(arguments.behind)}"
            value = text.held_text_until(grammar, arguments.after, never=arguments.never)
            return text.rule(f"{opening} {value} {text.literal(arguments.joint)} {text.literal(arguments.end)}")
        case Braces(quote):
            value = text.held_text_until(grammar, quote)
            return text.rule(f'{text.literal("{" + INPUT + ":" + quote)} {value} "}}"')
        case Elements(prefix, end):
            value = text.held_text_until(grammar, f"{prefix}</{INPUT}>")
            return text.rule(f"{text.literal(f'{prefix}<{INPUT}>')} {value} {text.literal(end)}")
