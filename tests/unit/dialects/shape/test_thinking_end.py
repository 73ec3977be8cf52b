import pytest

from server.errors import InvalidRequest
from server.formats.parsing.reasoning import open_reasoning
from server.structured.after_reasoning import AfterReasoning
from server.structured.constraint import Constraint
from server.structured.reasoning_end import ReasoningBudget, ReasoningEnd, ReasoningSwitch
from tests.support.fakes import FakeVocab
from tests.unit.structured.builders import Only, after_reasoning, say

TAGS = ("<think>", "</think>")
VOCAB = FakeVocab()


def control(inner: Constraint | None = None, *, begun: bool = True) -> tuple[ReasoningEnd, ReasoningSwitch]:
    switch = ReasoningSwitch()
    opening, *closings = TAGS
    opened, reopens = "" if begun else None, inner is None
    ended = ReasoningBudget().ended(inner, VOCAB, opening, closings, begun=opened, reopens=reopens, switch=switch)
    return ended, switch


def budget(
    n: int, message: str = "", *, prompt: str = "", inner: Constraint | None = None, others: tuple[str, ...] = ()
) -> ReasoningEnd:
    begun, closings = open_reasoning(prompt, TAGS), (TAGS[1], *others)
    return ReasoningBudget(n, message).ended(inner, VOCAB, TAGS[0], closings, begun=begun, reopens=inner is None)


def behind(text: bytes) -> AfterReasoning:
    """That text, behind thoughts that the prompt has opened."""
    return after_reasoning(Only(text), tags=TAGS, begun=True)


def test_choices_share_the_switch_and_nothing_else() -> None:
    constraint, switch = control()
    fork = constraint.fork()
    say(constraint, "a</think>b")
    say(fork, "x")
    switch.end()
    assert say(constraint, "c") == b"c"
    assert say(fork, "y") == b"</think>y"


@pytest.mark.parametrize(
    ("n", "prompt", "wanted", "said"),
    [
        (3, "assistant\n<think>", "abcdef", "abc</think>def"),
        (3, "assistant\n<think>\n", "abcdef", "ab</think>cdef"),  # the prompt's new line counts
        (3, "", "<think>abcdef", "<think>abc</think>def"),
        (20, "", " <think>ab</think>cdef", " <think>ab</think>cdef"),
        (0, "<think>", "abc", "</think>abc"),
        (0, "<think>a</think>", "abc", "abc"),
        (0, "", "<think>abc", "<think></think>abc"),
        (1, "<think>so far", "abc", "</think>abc"),  # thoughts that are continued are spent already
        (-1, "<think>", "abc", "abc"),
    ],
)
def test_thoughts_end_when_their_tokens_are_spent(n: int, prompt: str, wanted: str, said: str) -> None:
    assert say(budget(n, prompt=prompt), wanted) == said.encode()


def test_a_budget_does_not_cut_a_character() -> None:
    assert say(budget(2, prompt="<think>"), "日本") == "日</think>本".encode()
    assert say(budget(4, ".", prompt="<think>"), "日é!") == "日é.</think>!".encode()


def test_thoughts_that_are_opened_anew_have_a_budget_of_their_own() -> None:
    assert say(budget(2), "<think>ab") == b"<think>ab"
    constraint = budget(2)
    assert say(constraint, "<think>abc") == b"<think>ab</think>c"
    assert say(constraint, "d<think>efgh") == b"d<think>ef</think>gh"


def test_in_an_answer_of_a_shape_nothing_is_opened_anew() -> None:
    inner = behind(b'"<think>abc"')
    constraint = budget(2, prompt="<think>", inner=inner)
    assert say(constraint, 'ab"<think>abc"') == b'ab</think>"<think>abc"'
    assert constraint.finished


@pytest.mark.parametrize("message", ["a</think>b", "<think>", "<tool>"])
def test_a_message_that_ends_thoughts_itself_is_refused(message: str) -> None:
    with pytest.raises(InvalidRequest, match="reasoning_budget_message") as caught:
        budget(1, message, others=("<tool>",))
    assert caught.value.param == "reasoning_budget_message"
