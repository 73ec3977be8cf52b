import pytest

from server.errors import InternalError
from server.pool.state import TRANSITIONS, Status, check_transition


def test_only_listed_transitions_are_possible() -> None:
    for old in Status:
        for new in Status:
            if new in TRANSITIONS[old]:
                check_transition("a", old, new)
            else:
                with pytest.raises(InternalError):
                    check_transition("a", old, new)
