from typing import Any

from server.conversation.conversation import Call, Media, Message, TextPart
from server.wire.responses.store import ClientResponses, ResponseStore


def response(id_: str, *, items: tuple[str, ...] = (), text: str = "") -> dict[str, Any]:
    return {"id": id_, "output": [{"id": item, "text": text} for item in items]}


def client(store: ResponseStore | None = None, owner: bytes = b"me") -> ClientResponses:
    return (store or ResponseStore()).of(owner)


def test_a_response_its_conversation_and_its_items_are_found_again() -> None:
    mine = client()
    messages = [Message("user", "hi"), Message("user", (TextPart("a"), Media("image", "b")), calls=(Call("f", "{}"),))]
    assert mine.keep(response("r", items=("a", "b")), messages)
    assert mine.reply("r") == response("r", items=("a", "b"))
    assert mine.messages("r") == messages
    assert mine.item("b") == {"id": "b", "text": ""}


def test_nothing_is_found_by_another_client_or_removed_by_it() -> None:
    store = ResponseStore()
    client(store).keep(response("r", items=("a",)), [])
    other = client(store, b"other")
    assert (other.reply("r"), other.messages("r"), other.item("a"), other.remove("r")) == (None, None, None, False)
    assert client(store).reply("r") is not None


def test_the_least_recently_used_goes_first() -> None:
    store = ResponseStore(max_responses=2)
    mine = client(store)
    for id_ in ("r1", "r2"):
        mine.keep(response(id_), [])
    mine.messages("r1")
    mine.keep(response("r3", items=("c",)), [])
    assert [mine.reply(id_) is not None for id_ in ("r1", "r2", "r3")] == [True, False, True]


def test_bytes_are_bounded_and_given_back() -> None:
    store = ResponseStore(max_bytes=1000)
    mine = client(store)
    for n in range(20):
        assert mine.keep(response(f"r{n}", items=(f"i{n}",), text="x" * 300), [])
        assert store.n_bytes <= 1000
    assert store.n_responses == 2
    assert (mine.item("i17"), mine.item("i19")) == (None, {"id": "i19", "text": "x" * 300})
    assert all(mine.remove(id_) for id_ in ("r18", "r19"))
    assert (store.n_bytes, store.n_responses, mine.item("i19")) == (0, 0, None)


def test_what_is_larger_than_the_store_is_not_kept_and_drops_nothing() -> None:
    store = ResponseStore(max_bytes=1000)
    mine = client(store)
    mine.keep(response("small"), [])
    assert not mine.keep(response("large", items=("i",), text="x" * 1001), [])
    assert (mine.reply("large"), mine.item("i")) == (None, None)
    assert mine.reply("small") is not None
