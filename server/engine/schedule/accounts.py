"""What each client was served, so that one that asks for much does not keep the others waiting. Pure.

Virtual token counters (Sheng et al., "Fairness in Serving Large Language Models", OSDI 2024): a client's counter grows
with the tokens computed for it, and the smallest counter is served next. One that comes back after a pause begins
at the present virtual time, as in start-time fair queueing (Goyal et al., SIGCOMM 1996), so that nobody saves up.
"""

from collections import OrderedDict
from dataclasses import dataclass

OUTPUT_WEIGHT = 2.0
"""What a generated token counts in prompt tokens; the paper's choice, and about what providers charge."""
MOST_ACCOUNTS = 4096
"""Clients that are remembered; the one that asked longest ago is forgotten first."""


@dataclass(eq=False, slots=True)
class Account:
    """One client: ``served`` in weighted tokens."""

    served: float = 0.0


class Accounts:
    """The clients of one instance, by opaque names."""

    def __init__(self, most: int = MOST_ACCOUNTS) -> None:
        self._accounts: OrderedDict[str, Account] = OrderedDict()
        self._most = most
        self._now = 0.0  # virtual: the counter of who was last chosen for being behind

    def __len__(self) -> int:
        return len(self._accounts)

    def of(self, client: str) -> Account:
        """The account of `client`, seen now."""
        account = self._accounts.get(client)
        if account is None:
            account = self._accounts[client] = Account(self._now)
            if len(self._accounts) > self._most:
                self._accounts.popitem(last=False)
        self._accounts.move_to_end(client)
        return account

    def catch_up(self, account: Account) -> None:
        """`account` asks again, with nothing waiting: what it left unused meanwhile is gone."""
        account.served = max(account.served, self._now)

    def chose(self, account: Account) -> None:
        """`account` was behind the others and is served now: that is the present virtual time."""
        self._now = max(self._now, account.served)
