"""Patterns for tensors: what is accepted, and that POSIX classes mean what they mean to the library."""

import pytest

from server.pool.tensor_patterns import check_pattern, compiled


@pytest.mark.parametrize("pattern", ["*", "(a", "[[:bogus:]]", "x" * 513, "(){30000}"])
def test_an_invalid_pattern_is_refused(pattern: str) -> None:
    with pytest.raises(ValueError, match="has "):
        check_pattern(pattern)


@pytest.mark.parametrize(
    ("pattern", "finds", "not_found"),
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
def test_a_pattern_finds_what_the_library_finds(pattern: str, finds: str, not_found: str) -> None:
    check_pattern(pattern)
    assert compiled(pattern).search(finds)
    assert not compiled(pattern).search(not_found)
