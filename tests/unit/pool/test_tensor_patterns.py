"""Tensor patterns are validated, and match the same names as the C++ regexes of llama.cpp."""

import pytest

from server.pool.tensor_patterns import check_pattern, compiled


@pytest.mark.parametrize("pattern", ["*", "(a", "[[:bogus:]]", "x" * 513, "(){30000}"])
def test_invalid_pattern_is_refused(pattern: str) -> None:
    with pytest.raises(ValueError, match="has "):
        check_pattern(pattern)


@pytest.mark.parametrize(
    ("pattern", "matched", "unmatched"),
    [
        (r"blk\.(1[0-9]|2[0-9])\.ffn_.*_exps\.weight", "blk.12.ffn_up_exps.weight", "blk.3.ffn_up_exps.weight"),
        ("^(?!.*token).*", "blk.1.attn_q", "token_embd"),
        ("^[[:alpha:]]+$", "abYZ", "a1"),
        ("^[^[:alpha:]]+$", "0_.", "a"),
        ("^[[:digit:]_]+$", "01_9", "a"),
        ("^[[:punct:]]+$", "!/:@[\\]^_`{~.-", "a"),
        (r"^\w+$", "a_1", "\xe4"),
    ],
)
def test_pattern_matches_as_in_llama_cpp(pattern: str, matched: str, unmatched: str) -> None:
    check_pattern(pattern)
    assert compiled(pattern).search(matched)
    assert not compiled(pattern).search(unmatched)
