"""Who may still join a queue that is full, so that a client that has filled it keeps nobody out. Pure.

A queue has `max_queue` places beside those of the slots, and as many again in reserve. Who has more than an equal share
of the places is refused when they are taken; who has less takes from the reserve. So does, up to half of it, what is
more urgent than nearly all that its own client has there. Nobody who was admitted is refused later.
"""

from collections.abc import Collection

from server.engine.request import Request
from server.engine.sequence import Ticket


def admits(request: Request, open_: Collection[Ticket], n_slots: int, max_queue: int) -> bool:
    """Whether `request` may wait where `open_` wait or run already. Choices are counted, not requests."""
    n_open = sum(ticket.request.n for ticket in open_)
    places = n_slots + max_queue
    if n_open < places:
        return True
    if n_open + request.n > places + max_queue:
        return False
    clients = {request.client} | {ticket.request.client for ticket in open_}
    share = max(places // len(clients), 1)
    own = [ticket.request for ticket in open_ if ticket.request.client == request.client]
    if sum(one.n for one in own) < share:
        return True
    n_as_urgent = sum(one.n for one in own if one.priority <= request.priority)
    return n_as_urgent < share and n_open < places + max_queue // 2
