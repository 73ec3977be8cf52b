"""A loaded model: what a lease gives access to."""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from server.chat.template import ChatTemplate
from server.engine.engine import Engine
from server.engine.protocols import Vocab
from server.pool.protocols import ModelInfo, Weights
from server.pool.spec import ModelSpec

if TYPE_CHECKING:  # llguidance takes its time to import
    from server.grammar.compiler import GrammarCompiler

GrammarFactory = Callable[[Vocab], "GrammarCompiler"]


def compile_grammars(vocab: Vocab) -> "GrammarCompiler":
    """A grammar compiler for `vocab`; imports llguidance on first use."""
    from server.grammar.compiler import GrammarCompiler

    return GrammarCompiler(vocab)


@dataclass(slots=True)
class LoadedModel:
    """Weights with their engine, template and grammar compiler. Made and freed by the pool."""

    spec: ModelSpec
    info: ModelInfo
    vocab: Vocab
    engine: Engine
    template: ChatTemplate
    weights: Weights
    loaded_at: float  # unix seconds
    make_grammar: GrammarFactory = compile_grammars
    _grammar: "GrammarCompiler | None" = None
    _grammar_lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def grammar(self) -> "GrammarCompiler":
        """The compiler of constraints: costly, so made on first use, by whichever thread comes first."""
        if self._grammar is None:
            with self._grammar_lock:
                if self._grammar is None:
                    self._grammar = self.make_grammar(self.vocab)
        return self._grammar
