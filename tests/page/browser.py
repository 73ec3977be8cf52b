"""What people do with the page: each view against a real server, in Chromium or Firefox."""

import base64
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect

from tests.media_files import png
from tests.page.conftest import DEMO, FIREFOX, KEY, McpServer, Visit, chat_body, enter_key, full_queue, tone, with_key
from tests.support.real_server import ROOT, RealServer, llamapool

expect.set_options(timeout=60_000)  # a busy machine takes its time; this decides how long a failure takes
PHONE = {} if FIREFOX else {"is_mobile": True, "has_touch": True}
VIEWS = ("chat", "prompt", "tokens", "engine", "requests", "metrics", "models", "bench")
ANSWER = """A list:

- one **bold** thing
- `code`, and $e^{i\\pi} + 1 = 0$

$$\\int_0^1 x\\,dx = \\frac12$$

```python
def f(x):
    return x + 1
```

It costs $5 or $6. <img src=x onerror="window.broken=1"><script>window.broken=1</script>
"""


TOUCHED = """
window.touched = new Set();
const near = (node) => (node.nodeType === 1 ? node : node.parentElement)?.closest(".message");
new MutationObserver((changes) => {
  for (const { target } of changes) if (near(target)) window.touched.add(near(target));
}).observe(document.querySelector(".messages"), {
  ...{ subtree: true, childList: true }, characterData: true, attributes: true,
});
"""
"""Collects the messages in which anything changes."""


ENDLESS = 'root ::= (("ab" [c-z]){1000}){1000}'
"""With the context shift of the tests' model, until somebody stops it."""


def circle() -> bytes:
    """A red circle on white as PNG, 128 pixels wide."""
    inside = ((x - 64) ** 2 + (y - 64) ** 2 < 40**2 for y in range(128) for x in range(128))
    return png(128, 128, b"".join(b"\xff\0\0" if each else b"\xff\xff\xff" for each in inside))


def chat_file(folder: Path, n: int = 1, *, calls: str = "") -> Path:
    """An exported chat with `n` questions, and answers to all."""
    messages: list[dict[str, Any]] = []
    for i in range(n):
        parent = messages[-1]["id"] if messages else None
        question = {"id": f"q{i}", "parent": parent, "role": "user", "content": f"Question {i}"}
        text = ANSWER if i == n - 1 else f"Answer {i}"
        answer = {"id": f"a{i}", "parent": f"q{i}", "role": "assistant", "content": text}
        messages += [{"chat": "c", "created": 2 * i} | question, {"chat": "c", "created": 2 * i + 1} | answer]
    if calls:
        messages[-1]["calls"] = [{"id": "call_1", "name": calls, "arguments": '{"city": "Bonn"}'}]
    settings = {"system": "", "thinking": "auto", "schema": "", "grammar": "", "tools": ""}
    chat = {"id": "c", "title": "From a file", "created": 1, "updated": 2, "leaf": messages[-1]["id"]}
    chats = [{"chat": chat | {"settings": settings}, "messages": messages}]
    place = folder / "chats.json"
    place.write_text(json.dumps({"format": "llamapool-chats", "version": 1, "chats": chats}))
    return place


def say(page: Any, text: str) -> None:
    page.fill(".composer textarea", text)
    page.keyboard.press("Enter")


def answered(page: Any, n: int = 1) -> None:
    """Wait for the n-th finished answer."""
    page.locator(".message.assistant .speed").nth(n - 1).wait_for()


def ask(page: Any, text: str, n: int = 1) -> None:
    """Send a message, and wait for its answer, the n-th."""
    say(page, text)
    answered(page, n)


def begin_letters(page: Any, grammar: str) -> None:
    """Have the model write what the grammar wants, and wait for the first letters."""
    set_grammar(page, grammar)
    say(page, "Write letters.")
    expect(page.locator(".message.assistant .prose").last).to_contain_text(re.compile(r"\w{9}"))


def set_grammar(page: Any, grammar: str) -> None:
    page.click("button[aria-label=Settings]")
    page.fill(".settings label:has-text('Grammar') textarea", grammar)
    page.click(".settings button[aria-label=Close]")


def reload_with_held_lookup(page: Any) -> Callable[[], None]:
    """Reload while an answer is generated. Calling the result lets the lookup of its stream pass."""
    held: list[Any] = []

    def hold(route: Any) -> None:
        held.append(route)

    page.route("**/v1/streams/lookup", hold)
    with page.expect_request("**/v1/streams/lookup"):
        page.reload()

    def release() -> None:
        held[0].continue_()

    return release


def import_chat(page: Any, file: Path) -> None:
    page.set_input_files("input[type=file]", str(file))
    page.click(".list a:has-text('From a file')")
    page.wait_for_selector(".message.assistant")


def test_an_answer_streams_and_is_there_after_a_reload(visit: Visit) -> None:
    page = visit.open()
    ask(page, "Hello! Who are you?")
    text = page.inner_text(".message.assistant .prose")
    assert "Llamapool" in text
    assert "tokens/s" in page.inner_text(".speed")
    page.reload()
    page.wait_for_selector(".message.assistant .prose")
    assert page.inner_text(".message.assistant .prose") == text
    assert page.inner_text(".list .title") == "Hello! Who are you?"


def test_a_stream_goes_on_when_the_page_is_reloaded(visit: Visit) -> None:
    page = visit.open()
    begin_letters(page, 'root ::= ("ab" [c-z]){200}')
    release = reload_with_held_lookup(page)
    page.wait_for_selector("button[aria-label=Stop]")  # the page does not take it for a finished answer meanwhile
    assert page.locator(".speed").count() == 0
    release()
    answered(page)
    assert len(page.inner_text(".message.assistant .prose")) == 600


def test_an_answer_is_stopped_before_the_reloaded_page_has_found_its_stream(visit: Visit) -> None:
    page = visit.open()
    begin_letters(page, ENDLESS)
    release = reload_with_held_lookup(page)
    page.click("button[aria-label=Stop]")
    release()
    page.wait_for_selector("text=Stopped.")
    assert page.locator("[role=alert]").count() == 0


def test_stop_continue_and_another_answer(visit: Visit) -> None:
    page = visit.open()
    begin_letters(page, ENDLESS)
    page.click("button[aria-label=Stop]")
    page.wait_for_selector("text=Stopped.")
    stopped = page.inner_text(".message.assistant .prose")
    set_grammar(page, 'root ::= ("ab" [c-z]){20}')  # else the model may go on from letters for ever
    page.click("button[aria-label=Continue]")
    page.wait_for_selector("text=Stopped.", state="detached")
    answered(page)
    assert page.inner_text(".message.assistant .prose").startswith(stopped[:9])
    page.click("button[aria-label='Regenerate']")
    page.wait_for_selector("[aria-label='Version 2 of 2']")
    answered(page)
    page.click("button[aria-label='Previous version']")
    page.wait_for_selector("[aria-label='Version 1 of 2']")
    assert page.inner_text(".message.assistant .prose").startswith(stopped[:9])


def test_an_edited_question_is_another_branch(visit: Visit) -> None:
    page = visit.open()
    ask(page, "Hello!")
    page.click(".message.user button[aria-label=Edit]")
    page.fill(".editor textarea", "Good morning!")
    page.click("text=Send as new branch")
    page.wait_for_selector(".message.user [aria-label='Version 2 of 2']")
    answered(page)
    assert page.inner_text(".message.user .said") == "Good morning!"
    page.click(".message.user button[aria-label='Previous version']")
    page.wait_for_selector(".said:has-text('Hello!')")


def test_markdown_code_and_maths_are_shown_and_nothing_in_them_runs(visit: Visit, tmp_path: Path) -> None:
    page = visit.open()
    import_chat(page, chat_file(tmp_path))
    page.wait_for_selector(".katex")
    page.wait_for_selector(".code-box .hljs-keyword")
    assert page.locator(".maths").count() == 2
    assert "$5 or $6" in page.inner_text(".prose")
    assert page.evaluate("window.broken") is None
    assert page.locator(".prose script").count() == 0


HOSTILE = {
    "handler": "<img src=x onerror=window.broken=1> <svg><script>window.broken=1</script></svg>",
    "address": "[a](javascript:window.broken=1) ![asks](cors-proxy?url=http%3A%2F%2Fa) ![too](https://a.example/b.png)",
    "maths": "$\\href{javascript:window.broken=1}{x}$ $\\rule{3000em}{3000em}$",
    "frame": '<dialog open class="chat-list shown"><textarea></textarea>Key needed</dialog> <p style="color: red">',
    "depth": ">" * 4000 + "x",
    "width": "- " * 1500 + "x",
    "table": "| a " * 300 + "|\n" + "|-" * 300 + "|\n" + "| b " * 300 + "|",
}


def test_what_a_model_writes_does_nothing_but_be_read(visit: Visit, tmp_path: Path) -> None:
    file = chat_file(tmp_path, len(HOSTILE))
    read = json.loads(file.read_text())
    answers = [one for one in read["chats"][0]["messages"] if one["role"] == "assistant"]
    for message, text in zip(answers, HOSTILE.values(), strict=True):
        message["content"] = text
    file.write_text(json.dumps(read))
    page = visit.open()
    import_chat(page, file)
    expect(page.locator(".message.assistant")).to_have_count(len(HOSTILE))
    page.wait_for_selector(".katex")
    assert page.evaluate("window.broken") is None
    expect(page.locator(".prose :is(img, svg, script, dialog, textarea, [style*=red], .chat-list)")).to_have_count(0)
    assert page.evaluate("document.querySelector('.scroll').scrollWidth") <= 1280
    assert page.evaluate("document.querySelector('.messages').scrollHeight") < 50_000


def test_a_file_of_chats_is_read_whole_or_not_at_all(visit: Visit, tmp_path: Path) -> None:
    page = visit.open()
    file = chat_file(tmp_path)
    good = json.loads(file.read_text())["chats"][0]
    round_and_round = json.loads(json.dumps(good).replace('"parent": null', '"parent": "a0"'))
    bare = {"chat": {"id": "b"}, "messages": [{"id": "1", "role": "user"}, {"role": "assistant", "calls": 5}]}
    for chats, n, failed in (([good, {}], 0, 1), ([round_and_round, bare], 2, 0), ([good | {"messages": [5]}], 2, 1)):
        file.write_text(json.dumps({"format": "llamapool-chats", "version": 1, "chats": chats}))
        page.set_input_files("input[type=file]", str(file))
        expect(page.locator(".chat-list [role=alert]")).to_have_count(failed)
        expect(page.locator(".list li")).to_have_count(n)
    expect(page.locator(".chat-list [role=alert]")).to_contain_text("chat 1 of the file")
    no_export = "not an export of chats"
    for text, reason in (("{", "not JSON"), ("null", no_export), ('{"format": "others"}', no_export)):
        file.write_text(text)
        page.set_input_files("input[type=file]", str(file))
        expect(page.locator(".chat-list [role=alert]")).to_contain_text(reason)
    page.fill(".search input", "question")
    expect(page.locator(".list li")).to_have_count(1)
    page.locator(".list a").click()
    expect(page.locator(".message")).to_have_count(2)


def test_a_chat_that_is_removed_while_it_is_written_is_gone(visit: Visit) -> None:
    page = visit.open()
    page.once("dialog", lambda asked: asked.dismiss())
    begin_letters(page, ENDLESS)
    remove = page.locator(".list button[aria-label^='Delete chat']")
    remove.click()
    expect(page.locator(".list li")).to_have_count(1)
    page.once("dialog", lambda asked: asked.accept())
    with page.expect_request(lambda request: request.method == "DELETE"):
        remove.click()
    expect(page.locator(".list li")).to_have_count(0)
    page.reload()
    expect(page.locator(".greeting")).to_be_visible()
    left = """new Promise((done) => {
      indexedDB.open("llamapool").onsuccess = ({ target }) => {
        const read = target.result.transaction("messages").objectStore("messages").count();
        read.onsuccess = () => done(read.result);
      };
    })"""
    assert page.evaluate(left) == 0


def two_tabs(visit: Visit) -> tuple[Any, Any]:
    """Of one chat, with a question and its answer."""
    page = visit.open()
    ask(page, "Hello!")
    other = visit.context.new_page()
    other.goto(page.url)
    expect(other.locator(".message")).to_have_count(2)
    return page, other


def test_two_tabs_show_one_chat(visit: Visit) -> None:
    page, other = two_tabs(visit)
    ask(other, "Good morning!", 2)
    expect(page.locator(".message")).to_have_count(4)
    page.fill(".composer textarea", "begun")
    page.evaluate("location.hash = '#/models'")
    page.wait_for_selector(".card")
    page.evaluate("history.back()")
    expect(page.locator(".composer textarea")).to_have_value("begun")


def test_an_answer_grows_in_both_tabs_and_is_kept_when_its_own_is_closed(visit: Visit) -> None:
    page, other = two_tabs(visit)
    set_grammar(page, ENDLESS)
    say(page, "Write letters.")
    expect(other.locator(".message.assistant").nth(1)).to_contain_text(re.compile(r"ab\w{9}"))
    page.close()
    other.click("button[aria-label=Stop]")
    answered(other, 2)
    kept = """(text) => new Promise((done) => {
      indexedDB.open("llamapool").onsuccess = ({ target }) => {
        const read = target.result.transaction("messages").objectStore("messages").getAll();
        read.onsuccess = () => done(read.result.some((one) => one.content === text && one.finish === "stopped"));
      };
    })"""
    text = other.inner_text(".message.assistant:last-of-type .prose")
    other.wait_for_function(kept, arg=text)


HIDE = """(hidden) => {
  Object.defineProperty(document, "hidden", { value: hidden, configurable: true });
  document.dispatchEvent(new Event("visibilitychange"));
}"""


def test_windows_side_by_side_share_connections(visit: Visit) -> None:
    """A browser opens six to a server."""
    windows = [visit.open("engine")]
    for _ in range(7):
        windows[-1].wait_for_selector(".slot")
        windows.append(visit.context.new_page())
        windows[-1].goto(f"{visit.base}/#/engine")
    windows[-1].wait_for_selector(".slot")
    with windows[0].expect_event("requestfailed", lambda request: "models/sse" in request.url):
        windows[0].evaluate(HIDE, True)  # another one takes over
    cards = []
    for window in windows[3:5]:
        window.evaluate("location.hash = '#/models'")
        cards.append(window.locator(".card:has(h2:text-is('other'))"))
    cards[0].locator("button:has-text('Load')").click()
    cards[1].locator("button:has-text('Unload')").click()
    for card in cards:
        expect(card).to_contain_text("not loaded")
    say_hello = "fetch('v1/chat/completions', {method: 'POST', headers: {'Content-Type': 'application/json'}, body})"
    body = {"model": "demo", "messages": [{"role": "user", "content": "Hello!"}], "max_tokens": 4}
    windows[3].evaluate(f"(body) => {say_hello}", json.dumps(body))
    windows[-1].evaluate("location.hash = '#/requests'")
    windows[-1].wait_for_selector("table.requests tbody tr")


def test_tabs_behind_others_hold_no_connection(visit: Visit) -> None:
    """Also where the browser has no locks, so that nothing is shared."""
    visit.context.add_init_script("Object.defineProperty(Navigator.prototype, 'locks', { value: undefined })")
    tabs = [visit.open("engine")]
    for _ in range(7):
        tabs[-1].wait_for_selector(".slot")
        tabs[-1].evaluate(HIDE, True)
        tabs.append(visit.context.new_page())
        tabs[-1].goto(f"{visit.base}/#/engine")
    tabs[-1].wait_for_selector(".slot")
    tabs[0].evaluate(HIDE, False)
    tabs[0].evaluate("location.hash = '#/models'")
    card = tabs[0].locator(".card:has(h2:text-is('other'))")
    card.locator("button:has-text('Load')").click()
    card.locator("button:has-text('Unload')").click()
    expect(card).to_contain_text("not loaded")


@pytest.mark.parametrize("blocked", ["storage", "full"])
def test_without_storage_a_chat_goes_on_and_says_that_it_is_not_kept(
    browser: Any, server: RealServer, blocked: str
) -> None:
    visit = Visit(browser, server.base_url)
    visit.context.add_init_script(
        """const refuse = async () => { throw new DOMException("no", "SecurityError"); };
           if (window.LockManager) LockManager.prototype.request = refuse;
           for (const name of ["localStorage", "indexedDB"])
             Object.defineProperty(window, name, { get() { throw new DOMException("no", "SecurityError"); } });"""
        if blocked == "storage"
        else """IDBObjectStore.prototype.put = () => { throw new DOMException("full", "QuotaExceededError"); };
                Storage.prototype.setItem = () => { throw new DOMException("full", "QuotaExceededError"); };"""
    )
    page = visit.open("nowhere/%")
    page.click(".language")
    page.wait_for_selector("text=Wie kann ich helfen?")
    page.click(".language")
    ask(page, "Hello!")
    expect(page.locator(".talk .notice")).to_contain_text("storage is full")
    page.evaluate("location.hash = '#/engine'")
    page.wait_for_selector(".slot")
    visit.close()


def test_panels_are_left_by_the_keyboard(visit: Visit) -> None:
    page = visit.open()
    page.set_viewport_size({"width": 390, "height": 844})
    page.get_by_role("button", name="Settings").press("Enter")
    expect(page.locator(".settings textarea").first).to_be_focused()
    page.keyboard.press("Escape")
    expect(page.locator(".settings")).to_have_count(0)
    expect(page.get_by_role("button", name="Settings")).to_be_focused()
    page.get_by_role("button", name="Chats").press("Enter")
    expect(page.locator(".search input")).to_be_focused()
    page.keyboard.press("Escape")
    expect(page.get_by_role("button", name="Chats")).to_be_focused()


def test_calls_are_answered_by_hand(visit: Visit, tmp_path: Path) -> None:
    page = visit.open()
    import_chat(page, chat_file(tmp_path, calls="get_weather"))
    assert '"city": "Bonn"' in page.inner_text(".call")
    page.fill(".results textarea", "Sunny, 20 degrees")
    page.click("text=Send results")
    answered(page)
    assert page.inner_text(".message.tool").startswith("Sunny")


def test_a_history_of_ten_thousand_messages_is_shown_in_parts(visit: Visit, tmp_path: Path) -> None:
    page = visit.open()
    import_chat(page, chat_file(tmp_path, 5000))
    assert page.locator(".message").count() == 60
    page.click("text=Earlier messages")
    expect(page.locator(".message")).to_have_count(120)
    assert page.evaluate("document.querySelectorAll('*').length") < 6000
    page.evaluate(TOUCHED)
    page.fill(".composer textarea", "Hello!")
    assert page.evaluate("window.touched.size") == 0  # typing draws no message anew
    words = [
        {"choices": [{"index": 0, "delta": {"content": f"word{i} "}}]} for i in range(300)
    ]  # its context is too short
    body = "".join(f"data: {json.dumps(one)}\n\n" for one in words) + "data: [DONE]\n\n"
    page.route("**/v1/chat/completions", lambda route: route.fulfill(body=body, content_type="text/event-stream"))
    page.keyboard.press("Enter")
    expect(page.locator(".message.assistant .prose").last).to_contain_text("word299")
    assert page.evaluate("window.touched.size") <= 3  # the question, its answer, and the one that was the last before


def test_chats_are_found_by_what_was_said(visit: Visit, tmp_path: Path) -> None:
    page = visit.open()
    import_chat(page, chat_file(tmp_path, 3))
    page.fill(".search input", "question 2")
    page.wait_for_selector(".list a:has-text('From a file')")
    page.fill(".search input", "giraffe")
    page.wait_for_selector("text=No matches")
    if FIREFOX:
        return  # BiDi tells of no download of a blob
    with page.expect_download() as download:
        page.click("button[aria-label='Export all chats']")
    assert len(json.loads(Path(download.value.path()).read_text())["chats"][0]["messages"]) == 6


def test_the_engine_shows_what_runs_and_a_request_is_cancelled(visit: Visit, server: RealServer) -> None:
    page = visit.open()
    set_grammar(page, ENDLESS)
    say(page, "Write letters.")
    page.wait_for_selector(".message.assistant .prose")
    page.evaluate("location.hash = '#/engine'")
    page.wait_for_selector(".slot.decode")
    page.click(".slot.decode button:has-text('Cancel')")
    expect(page.locator(".slot.decode")).to_have_count(0)
    page.evaluate("history.back()")
    page.wait_for_selector(".failure:has-text('cancelled')")
    page.evaluate("location.hash = '#/requests'")
    page.wait_for_selector(".outcome.cancelled")


def test_a_slot_is_saved_erased_and_restored(visit: Visit, server: RealServer) -> None:
    body = {"model": "demo", "prompt": "Once upon a time", "id_slot": 3, "n_predict": 4}
    server.request("POST", "/completion", body)
    page = visit.open("engine")
    slot = page.locator(".slot").nth(3)
    for action, said in (
        ("Save", "was saved to slot-3.bin"),
        ("Erase", "was erased"),
        ("Restore", "was restored from slot-3.bin"),
    ):
        slot.locator(f"button:has-text('{action}')").click()
        page.wait_for_selector(f"text={said}")


def test_models_are_loaded_and_unloaded_and_a_failure_says_why(visit: Visit) -> None:
    page = visit.open("models")
    other, broken = (page.locator(f".card:has(h2:text-is('{name}'))") for name in ("other", "broken"))
    other.locator("button:has-text('Load')").click()
    other.locator("text=ready").wait_for()
    assert "weights" in other.locator(".memory").inner_text()
    other.locator("button:has-text('Unload')").click()
    other.locator("text=not loaded").wait_for()
    broken.locator("button:has-text('Load')").click()
    broken.locator(".failure").wait_for()
    assert broken.locator(".failure").inner_text().strip()


def test_tokens_show_what_else_was_likely_and_branch(visit: Visit) -> None:
    page = visit.open("tokens")
    page.fill("label:has-text('Message') textarea", "Hello!")
    page.click("button[type=submit]")
    page.wait_for_selector(".chip")
    page.wait_for_selector("button[type=submit]")
    page.locator(".chip").first.click()
    page.wait_for_selector(".alternative")
    wanted = page.locator(".alternative:not(.own) .code").first.inner_text()
    page.locator(".alternative:not(.own)").first.click()
    page.wait_for_selector(".chip.given")
    assert page.locator(".chip").first.inner_text() == wanted
    page.fill("label:has-text('Grammar') textarea", 'root ::= "x" | "y"')
    page.wait_for_selector("button[type=submit]")
    page.click("button[type=submit]")
    page.wait_for_selector(".chip.forced")
    page.locator(".chip.forced").first.click()
    assert "Tokens that the grammar allows here: 2." in page.inner_text(".alternatives")
    assert page.locator(".forbidden .barred").count() == 8
    assert page.locator(".masks rect").count() == page.locator(".chip").count()


def test_an_answer_of_a_chat_is_shown_as_tokens_and_another_one_goes_back(visit: Visit) -> None:
    page = visit.open()
    ask(page, "Hello! Who are you?")
    text = page.inner_text(".message.assistant .prose")
    page.click("button[aria-label='Show the tokens']")
    page.wait_for_selector(".chip")
    shown = "".join(page.locator(".chip").all_inner_texts())
    assert shown.replace("\u00b7", " ").replace("↵", "").strip().startswith(text[:20])
    page.reload()  # it has its address
    page.wait_for_selector(".chip")
    page.locator(".chip").first.click()
    page.locator(".alternative:not(.own)").first.click()
    page.wait_for_selector(".chip.given")
    page.click("button:has-text('Save as another version'):enabled")
    page.wait_for_selector(".message.assistant [aria-label='Version 2 of 2']")


def test_all_numbers_of_sampling_reach_the_server(visit: Visit) -> None:
    page = visit.open()
    page.click("button[aria-label=Settings]")
    expect(page.get_by_label("Temperature")).to_have_attribute("placeholder", "0.8")  # what the server would take
    page.click(".more summary")
    page.get_by_label("repeat_penalty").fill("1.3")
    page.get_by_label("samplers").fill("top_k; temperature")
    page.click(".settings button[aria-label=Close]")
    say(page, "Hello!")
    body = chat_body(page)
    assert (body["repeat_penalty"], body["samplers"]) == (1.3, ["top_k", "temperature"])
    answered(page)


def test_kept_states_are_told_one_by_one(visit: Visit, server: RealServer) -> None:
    for i in range(6):  # more than there are slots
        text = f"Story number {i}. " + f"{i} and then there was one more thing. " * 6
        server.request("POST", "/completion", {"model": "demo", "prompt": text, "n_predict": 1})
    page = visit.open("engine")
    tiles = page.get_by_role("listbox").get_by_role("option")
    expect(tiles.nth(1)).to_be_visible()
    page.get_by_role("listbox").focus()
    page.keyboard.press("ArrowRight")
    expect(tiles.nth(1)).to_have_attribute("aria-selected", "true")
    expect(page.locator(".chosen-state")).to_have_text(re.compile(r"tokens, .+ last used .+ uses?, value "))
    page.click("summary:has-text('Show as a table')")
    expect(page.locator(".kept-table th")).to_have_text(["Tokens", "Size", "Last used", "Uses", "Value"])
    expect(page.locator(".tree .leaf.kept").first).to_have_text("RAM")


def test_the_prompt_is_shown_by_role_with_its_cached_part(visit: Visit) -> None:
    page = visit.open("prompt")
    page.fill(".page textarea", "What is a llama, and what is a pool?")
    page.wait_for_selector(".tok.role-user")
    assert "llama" in "".join(page.locator(".tok.role-user").all_inner_texts())
    for _ in range(2):
        page.click("button:has-text('Send')")
        page.wait_for_selector(".raw")
        page.wait_for_selector("button:has-text('Send'):enabled")
    assert page.locator(".tok.cached").count() > 5
    status = page.get_by_role("status").filter(has_text="in place")
    expect(status).to_contain_text("1 recomputed: the last token is always computed")
    assert page.inner_text(".raw").strip()
    page.fill(".page textarea", "What is a llama, and what is a puddle?")
    page.wait_for_selector(".tok:has-text('puddle'), .tok:has-text('udd')")
    page.click("button:has-text('Send')")
    expect(page.get_by_role("status").filter(has_text="recomputed:")).to_contain_text(
        re.compile("the cached text differs|another slot has slightly more")  # by what other tests have left
    )


def test_what_slots_share_is_a_tree(visit: Visit, server: RealServer) -> None:
    begin, other = "One two three four five six seven eight. " * 8, "Nine ten eleven twelve. " * 8
    for slot, text in enumerate((begin + other + "a", begin + other + "b", begin + "c")):
        server.request("POST", "/completion", {"model": "demo", "prompt": text, "id_slot": slot, "n_predict": 1})
    page = visit.open("engine")
    inner = page.locator(".tree .branch .branch")
    expect(inner.locator(".leaf")).to_have_text(["Slot 0", "Slot 1"])
    expect(page.locator(".tree > .branch").first.locator(".leaf")).to_have_count(3)


def test_the_last_hour_is_plotted(visit: Visit) -> None:
    page = visit.open("metrics")
    sample = {
        **{"at": 1.7e9, "first_token": [0.1, 0.2], "gap": [0.01, 0.02], "generated_per_s": 50, "prompt_per_s": 9},
        **{"hit_rate": 0.5, "running": 1, "waiting": 0, "memory": 5e7, "ram_cache": 1e6, "disk_cache": 0},
    }
    samples = [{**sample, "at": 1.7e9 + 10 * i} for i in range(30)]
    body = f"event: history\ndata: {json.dumps(samples)}\n\n"
    page.route("**/page/live", lambda route: route.fulfill(body=body, content_type="text/event-stream"))
    page.reload()
    page.wait_for_selector(".plot canvas")
    assert page.locator(".plot canvas").count() == 6


def test_the_bench_measures_two_addresses(visit: Visit, guarded: RealServer) -> None:
    page = visit.open("bench")
    page.get_by_label("a long prompt while other requests decode").uncheck()
    page.get_by_label("Concurrent clients").fill("1")
    page.get_by_label("Compare with another URL").fill(guarded.base_url)
    page.get_by_label("Its API key").fill(KEY)
    page.click("button:has-text('Run')")
    expect(page.locator("svg.compare rect")).to_have_count(2)
    page.wait_for_selector("td:has-text('TTFT p50 ms')")
    assert page.locator(".failure").count() == 0
    page.get_by_label("Its API key").fill("wrong")
    page.click("button:has-text('Run')")
    page.wait_for_selector(".failure:has-text('other server')")
    page.wait_for_selector("button:has-text('Run')")


def test_a_bench_is_stopped(visit: Visit) -> None:
    page = visit.open("bench")
    page.click("button:has-text('Run')")
    page.wait_for_selector("[role=status]:has-text('1 of 2')")
    page.click("button:has-text('Stop')")
    page.wait_for_selector("button:has-text('Run')")


def test_a_model_is_pinned_and_the_log_is_shown(visit: Visit) -> None:
    page = visit.open("models")
    pin = page.locator(".card:has(h2:text-is('other'))").get_by_label("Pin")
    pin.check()
    page.reload()
    page.wait_for_selector(".card")
    expect(pin).to_be_checked()
    pin.uncheck()
    page.click("button:has-text('Server log')")
    expect(page.get_by_role("log", name="Server log")).to_contain_text("access: POST '/models/pin'")


def test_what_was_said_is_shown_where_it_is_kept(visit: Visit, server: RealServer) -> None:
    said = "a sentence that nobody else says"
    body = {"model": "demo", "messages": [{"role": "user", "content": said}], "max_tokens": 2}
    server.request("POST", "/v1/chat/completions", body)
    page = visit.open("requests")
    page.locator("td button:has-text('Details')").first.click()
    expect(page.locator("dialog .raw").first).to_contain_text(said)
    expect(page.locator("dialog .raw").last).to_contain_text('"finish_reason"')
    page.keyboard.press("Escape")
    expect(page.locator("dialog")).to_have_count(0)


def test_a_call_is_answered_by_a_tool_of_the_server(visit: Visit, tmp_path: Path) -> None:
    page = visit.open()
    import_chat(page, chat_file(tmp_path, calls="get_info"))
    page.get_by_role("button", name="Run", exact=True).click()
    expect(page.locator(".message.tool .result")).to_contain_text('"cwd"')
    answered(page)
    page.click("button[aria-label=Settings]")
    page.click("text=Use the server's tools")
    expect(page.locator(".settings label:has-text('Tools') textarea")).to_have_value(re.compile("exec_shell_command"))


def test_tools_that_could_not_be_listed_are_listed_later(visit: Visit) -> None:
    page = visit.open()
    page.route("**/tools", lambda route: route.abort(), times=1)
    page.click("button[aria-label=Settings]")
    for said in (r"\[\]", "exec_shell_command"):
        page.click("text=Use the server's tools")
        expect(page.locator(".settings label:has-text('Tools') textarea")).to_have_value(re.compile(said))


def add_mcp_server(page: Any, url: str) -> None:
    page.click("button[aria-label=Settings]")
    page.get_by_label("URL of an MCP server").fill(url)
    page.click("button:has-text('Add MCP server')")


def calls_add(route: Any, a: int, b: int) -> None:
    """Reply as a model that calls the tool."""
    call = {"index": 0, "id": f"call_{a}", "function": {"name": "add", "arguments": json.dumps({"a": a, "b": b})}}
    chunks = [{"delta": {"tool_calls": [call]}}, {"delta": {}, "finish_reason": "tool_calls"}]
    body = "".join(f"data: {json.dumps({'choices': [chunk]})}\n\n" for chunk in chunks)
    route.fulfill(body=body, content_type="text/event-stream")


def test_tools_of_an_mcp_server_run_when_the_user_allows_them(visit: Visit, mcp: McpServer) -> None:
    visit.hosts += (mcp.origin,)
    page = visit.open()
    add_mcp_server(page, mcp.url)
    server = page.get_by_role("group", name="tests")
    server.get_by_text(re.compile("of 7 tools")).click()
    server.get_by_label("huge").uncheck()
    page.keyboard.press("Escape")
    requests: list[Any] = []

    def reply(route: Any) -> None:
        requests.append(route)
        if len(requests) < 4:
            calls_add(route, len(requests), 1)
        else:
            route.continue_()

    page.route("**/v1/chat/completions", reply)
    say(page, "How much is 1 plus 1?")
    expect(page.get_by_role("group", name="add").last).to_contain_text("The model calls add on tests (127.0.0.1")
    assert mcp.calls == []
    page.get_by_role("button", name="Run", exact=True).click()
    page.get_by_role("button", name="Deny").click()
    page.get_by_role("button", name="Run, and do not ask again in this chat").click()
    answered(page)
    assert mcp.calls == [("add", (1, 1)), ("add", (3, 1))]
    bodies = page.evaluate("window.chats")
    offered = [tool["function"]["name"] for tool in bodies[0]["tools"]]
    assert "add" in offered
    assert "a_b_c" in offered
    assert "huge" not in offered
    results = [one["content"] for one in bodies[-1]["messages"] if one["role"] == "tool"]
    assert results == ["2", "The user denied this call.", "4"]
    requests.clear()
    ask(page, "And once more?", 2)
    assert mcp.calls[2:] == [("add", (1, 1)), ("add", (2, 1)), ("add", (3, 1))]
    page.reload()
    requests.clear()
    say(page, "After a reload?")
    page.get_by_role("button", name="Run", exact=True).wait_for()
    assert len(mcp.calls) == 5


def test_prompts_and_resources_of_an_mcp_server_are_inserted(visit: Visit, mcp: McpServer) -> None:
    visit.hosts += (mcp.origin,)
    page = visit.open()
    add_mcp_server(page, mcp.url)
    insert = page.locator("button[aria-label='Insert from an MCP server']")
    insert.press("Enter")
    page.get_by_role("button", name="greet").press("Enter")
    expect(page.locator("dialog input")).to_be_focused()
    page.keyboard.type("Ada")
    page.keyboard.press("Enter")
    expect(page.locator(".composer textarea")).to_have_value("Greet Ada in one sentence.")
    for name in ("today.txt", "note"):
        insert.click()
        page.get_by_role("button", name=name).click()
    page.locator("dialog input").fill("12")
    page.click("dialog button:has-text('Insert')")
    expect(page.locator(".composer .attached")).to_have_text(["today.txt", "note"])
    page.press(".composer textarea", "Enter")
    parts = chat_body(page)["messages"][-1]["content"]
    texts = [base64.b64decode(part["file"]["file_data"].partition(",")[2]).decode() for part in parts[:2]]
    assert texts == ["The password is swordfish.", "Note 12"]
    answered(page)


def test_an_mcp_server_that_the_operator_has_not_allowed_is_not_asked(visit: Visit) -> None:
    page = visit.open()
    add_mcp_server(page, "http://mcp.example.com/mcp")
    expect(page.locator(".mcp-server [role=alert]")).to_contain_text("--ui-connect")
    expect(page.locator(".talk .notice")).to_contain_text(
        "has not allowed this page to connect to http://mcp.example.com"
    )
    assert visit.faults
    assert all(re.search("Content Security Policy|connect-src", fault) for fault in visit.faults)
    visit.faults.clear()
    page.locator("button[aria-label^='Remove']").click()
    expect(page.locator(".talk .notice")).to_have_count(0)


def test_usage_is_shown_by_key(guarded_visit: Visit) -> None:
    page = with_key(guarded_visit)
    ask(page, "Hello!")
    guarded_visit.open("metrics")
    expect(page.locator("section:has-text('Usage this month') tbody td").first).to_have_text("tester")


def test_a_text_file_is_sent_with_the_message(visit: Visit, tmp_path: Path) -> None:
    notes = tmp_path / "notes.md"
    notes.write_text("The password is swordfish.")
    page = visit.open()
    set_grammar(page, 'root ::= "It is swordfish."')  # the model has not learned to answer this
    page.set_input_files(".composer input[type=file]", str(notes))
    expect(page.locator(".composer .attached")).to_have_text("notes.md")
    say(page, "What is the password?")
    (document, _) = chat_body(page)["messages"][-1]["content"]
    assert (document["type"], document["file"]["filename"]) == ("file", "notes.md")
    answered(page)
    expect(page.locator(".message.user .document")).to_have_text("notes.md")
    page.click("button[aria-label='Show the prompt']")
    expect(page.locator(".token-text")).to_contain_text("swordfish")


def test_a_recording_of_the_microphone_is_sent_without_a_text(visit: Visit) -> None:
    page = visit.open()
    page.select_option(".model-picker select", "seeing")
    page.click("button[aria-label='Record audio']")
    page.click("button[aria-label='Stop recording']")
    expect(page.locator(".composer .attached")).to_have_text("recording.wav")
    page.click("button[aria-label=Send]")
    ((part,),) = [message["content"] for message in chat_body(page)["messages"]]
    recorded = base64.b64decode(part["input_audio"]["data"])
    assert (recorded[:4], int.from_bytes(recorded[24:28], "little")) == (b"RIFF", 16000)
    assert 0.05 < len(recorded) / 32000 < 60
    assert any(recorded[44:])
    answered(page)


MERMAID = """```mermaid
flowchart LR
  A["<img src=x onerror=parent.broken=1> first"] --> B[second]
  click A href "javascript:parent.broken=1"
```

```mermaid
no diagram
```
"""


def test_a_mermaid_block_becomes_an_image_in_which_nothing_runs(visit: Visit, tmp_path: Path) -> None:
    file = chat_file(tmp_path)
    file.write_text(file.read_text().replace(json.dumps(ANSWER), json.dumps(MERMAID)))
    page = visit.open()
    import_chat(page, file)
    image = page.locator("img.diagram")
    expect(image).to_have_attribute("alt", re.compile("flowchart LR"))
    assert image.evaluate("async (image) => { await image.decode(); return image.naturalWidth }") > 50
    assert page.evaluate("window.broken") is None
    page.click("summary:has-text('Source')")
    expect(page.locator(".code-box pre").first).to_contain_text("flowchart")
    expect(page.locator(".code-box pre").last).to_have_text("no diagram\n")  # invalid: only the source
    expect(image).to_have_count(1)
    visit.faults[:] = [fault for fault in visit.faults if not re.search("inline event handler|script-src-attr", fault)]


def test_batches_are_listed_and_cancelled(visit: Visit, server: RealServer) -> None:
    head = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2000, "ignore_eos": True}
    line = {"method": "POST", "url": "/v1/chat/completions", "body": {"model": "demo", **head}}
    page = visit.open("requests")
    upload = """async (lines) => {
      const form = new FormData();
      form.append("purpose", "batch");
      form.append("file", new Blob([lines]), "requests.jsonl");
      const file = await (await fetch("v1/files", { method: "POST", body: form })).json();
      const body = { input_file_id: file.id, endpoint: "/v1/chat/completions", completion_window: "24h" };
      const headers = { "Content-Type": "application/json" };
      return (await fetch("v1/batches", { method: "POST", headers, body: JSON.stringify(body) })).json();
    }"""
    batch = page.evaluate(upload, "\n".join(json.dumps({"custom_id": f"{i}", **line}) for i in range(50)))
    page.reload()
    row = page.locator("table.batches tbody tr").first
    expect(row).to_contain_text(re.compile(f"{batch['id'][-12:]}.*of 50 requests.*running", re.DOTALL))
    row.get_by_role("button", name="Cancel").click()
    expect(row).to_contain_text("cancelled")


def test_a_title_is_edited_or_written_by_the_model(visit: Visit) -> None:
    page = visit.open()
    ask(page, "Hello!")
    page.click("button[aria-label=Settings]")
    page.get_by_label("Title").fill("Greetings")
    expect(page.locator(".list .title")).to_have_text("Greetings")
    reply = {"choices": [{"message": {"role": "assistant", "content": '"A Friendly Start."'}}]}
    page.route("**/v1/chat/completions", lambda route: route.fulfill(json=reply))
    page.click("text=Let the model write a title")
    expect(page.locator(".list .title")).to_have_text("A Friendly Start")


def test_a_long_chat_continues_with_a_summary(visit: Visit, tmp_path: Path) -> None:
    page = visit.open()
    import_chat(page, chat_file(tmp_path, 3))
    page.click("button[aria-label='Continue with a summary']")
    assert len(chat_body(page)["messages"]) == 7
    answered(page)
    expect(page.locator(".message")).to_have_count(2)
    page.click("button[aria-label='Previous version']")
    expect(page.locator(".message")).to_have_count(6)


def test_chats_are_stored_on_the_server(visit: Visit, browser: Any, tmp_path: Path) -> None:
    page = visit.open()
    page.click("button[aria-label='Load chats from the server']")
    expect(page.locator(".chat-list [role=alert]")).to_contain_text("no chats are stored there")
    import_chat(page, chat_file(tmp_path))
    page.on("dialog", lambda asked: asked.accept())
    for _ in range(2):
        page.click("button[aria-label='Save all chats on the server']")
        expect(page.locator(".chat-list [role=status]")).to_have_text("The chats are saved on the server.")
    other = Visit(browser, visit.base)
    other.open().click("button[aria-label='Load chats from the server']")
    expect(other.page.locator(".list .title")).to_have_text("From a file")
    other.close()


@pytest.mark.parametrize(
    ("file", "question"), [("red-circle.png", "What is in the picture?"), ("tone.wav", "Is the tone high or low?")]
)
def test_a_picture_and_a_sound_are_sent_and_answered(visit: Visit, tmp_path: Path, file: str, question: str) -> None:
    place = tmp_path / file
    place.write_bytes(circle() if file.endswith("png") else tone())
    page = visit.open()
    page.select_option(".model-picker select", "seeing")
    page.wait_for_selector("button[aria-label='Attach a file']")
    page.set_input_files(".composer input[type=file]", str(place))
    page.wait_for_selector(".composer .attached")
    say(page, question)
    answered(page)
    shown = page.locator(".message.user img" if file.endswith("png") else ".message.user audio")
    expect(shown).to_have_count(1)
    answer = page.inner_text(".message.assistant .prose").lower()
    assert ("circle" if file.endswith("png") else "low") in answer
    page.click("button[aria-label='Show the tokens']")
    page.wait_for_selector(".chip")
    tokens = "".join(page.locator(".chip").all_inner_texts()).replace("\u00b7", " ").strip().lower()
    assert tokens.startswith(answer[:8])
    page.locator(".chip").first.click()
    page.locator(".alternative:not(.own)").first.click()
    page.wait_for_selector("button:has-text('Save as another version'):enabled")
    page.go_back()
    page.click("button[aria-label='Show the prompt']")
    medium = page.locator(".tok:has-text('image, ' )" if file.endswith("png") else ".tok:has-text('audio, ')")
    n_media = int(re.sub(r"\D", "", medium.inner_text()))
    total = int(page.inner_text(".rendered figcaption .quiet").split()[0])
    assert total == page.locator(".tok").count() - 1 + n_media
    page.click("button:has-text('Send')")
    expect(page.locator(".row [role=status]")).to_contain_text(f"{total - 1} of {total} tokens")
    expect(page.locator(".tok").last).not_to_have_class(re.compile("cached"))
    expect(medium).to_have_class(re.compile("cached"))


def test_a_lost_connection_is_said_and_comes_back(visit: Visit) -> None:
    page = visit.open()
    page.wait_for_function(
        "() => performance.getEntriesByType('resource').filter(({ name }) => name.includes('/engine/')).length > 6"
    )  # the whole view is preloaded: no browser preloads again what failed once
    visit.context.set_offline(True)
    say(page, "Hello!")
    page.wait_for_selector(".notice.warn")
    visit.context.set_offline(False)
    page.wait_for_selector(".notice.warn", state="detached")
    answered(page)
    visit.context.set_offline(True)
    page.click("nav a:has-text('Engine')")
    expect(page.locator(".notices")).to_contain_text("cannot be reached")
    expect(page.locator("main")).not_to_contain_text("newer version of this page")
    visit.context.set_offline(False)
    page.wait_for_selector(".slot")
    expect(page.locator("main")).not_to_contain_text("fetch")


def test_an_answer_that_is_stopped_while_the_connection_is_lost_is_not_asked_for_again(visit: Visit) -> None:
    page = visit.open()
    page.wait_for_selector(".model-picker select")
    visit.context.set_offline(True)
    say(page, "Hello!")
    for _ in range(2):  # then it waits for two seconds
        page.wait_for_event("requestfailed", lambda request: "v1/stream?" in request.url)
    page.click("button[aria-label=Stop]")
    visit.context.set_offline(False)
    expect(page.locator(".message.assistant .outcome")).to_have_text("Stopped.")
    assert page.evaluate("window.chats.length") == 1


def test_a_full_queue_is_said_with_the_time_to_wait(guarded_visit: Visit, guarded: RealServer) -> None:
    page = with_key(guarded_visit)
    with full_queue(guarded):
        say(page, "Hello!")
        page.wait_for_selector(".failure:has-text('The queue is full. Retry in')")
    page.click(".failure button")
    answered(page)


def test_a_model_that_is_not_loaded_is_loaded_by_a_question(visit: Visit, server: RealServer) -> None:
    page = visit.open()
    page.select_option(".model-picker select", "other")
    page.wait_for_selector(".model-picker:has-text('not loaded')")
    ask(page, "Hello!")
    server.request("POST", "/models/unload", {"model": "other"})
    page.wait_for_selector(".model-picker:has-text('not loaded')")
    page.select_option(".model-picker select", "broken")
    say(page, "Hello!")
    page.wait_for_selector(".failure")


def test_a_key_is_asked_for_and_a_wrong_one_is_said(guarded_visit: Visit) -> None:
    page = guarded_visit.open()
    box = page.locator("dialog").bounding_box()
    assert box["width"] > 300
    enter_key(page, "wrong")
    page.wait_for_selector("dialog .wrong")
    page.keyboard.press("Escape")
    page.reload()
    page.wait_for_selector("dialog input")
    page.keyboard.press("Escape")
    page.click(".notice button:has-text('Enter a key')")
    enter_key(page, "schlüssel€")
    page.wait_for_selector("dialog .wrong")
    other = guarded_visit.context.new_page()
    other.goto(f"{guarded_visit.base}/#/engine")
    other.wait_for_selector("dialog")
    enter_key(page, KEY)
    page.wait_for_selector("dialog", state="detached")
    other.wait_for_selector("dialog", state="detached")
    other.wait_for_selector(".slot")
    page.wait_for_selector(".model-picker select")
    ask(page, "Hello!")
    page.reload()
    page.wait_for_selector(".model-picker select")  # the key is kept


def test_what_was_refused_once_comes_back_with_the_same_key(visit: Visit) -> None:
    """As while a keys file is written anew."""
    page = visit.page
    page.clock.install()
    for stream in ("page/live", "models/sse"):
        page.route(f"**/{stream}", lambda route: route.fulfill(status=401, json={"error": {"message": "not now"}}))
    with (
        page.expect_response(lambda reply: reply.status == 401 and "models/sse" in reply.url),
        page.expect_response(lambda reply: reply.status == 401 and "page/live" in reply.url),
    ):
        visit.open("engine")
    page.wait_for_selector("text=not now")
    assert page.locator(".slot").count() == 0
    page.unroute_all()
    with page.expect_response(lambda reply: reply.ok and "models/sse" in reply.url):
        page.clock.fast_forward(10_000)
    page.wait_for_selector(".slot")


def test_german(browser: Any, server: RealServer) -> None:
    visit = Visit(browser, server.base_url, locale="de-DE")
    page = visit.open()
    page.wait_for_selector("text=Wie kann ich helfen?")
    assert page.evaluate("document.documentElement.lang") == "de"
    page.click(".language")
    page.wait_for_selector("text=How can I help?")
    visit.close()


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize(
    ("options", "width", "height"),
    [
        (PHONE, 390, 844),
        ({"device_scale_factor": 2}, 640, 430),
    ],  # a window of 1280 x 860 pixels has half of them in CSS
    ids=["a phone", "200 percent zoom"],
)
def test_every_view_is_shown_without_scrolling_sideways(
    browser: Any, server: RealServer, view: str, options: dict[str, Any], width: int, height: int
) -> None:
    visit = Visit(browser, server.base_url, **options)
    visit.page.set_viewport_size({"width": width, "height": height})
    page = visit.open(view)
    page.wait_for_selector(f".view-{view} h1")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate("document.querySelector('.page, .chat').scrollWidth") <= width
    expect(page.locator(".views [aria-current]")).to_be_in_viewport()
    visit.close()


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("view", VIEWS)
def test_axe_finds_nothing_serious(browser: Any, server: RealServer, axe: str, view: str, theme: str) -> None:
    visit = Visit(browser, server.base_url, color_scheme=theme, bypass_csp=True)
    page = visit.open(view)
    page.wait_for_selector(f".view-{view} h1")
    if view == "chat":
        ask(page, "Hello!")
        page.click("button[aria-label=Settings]")
    page.evaluate(axe)
    found = page.evaluate("axe.run()")["violations"]
    serious = [
        (one["id"], [node["html"][:120] for node in one["nodes"]])
        for one in found
        if one["impact"] in ("serious", "critical")
    ]
    assert serious == []
    visit.close()


def test_the_keyboard_reaches_the_views_and_the_message(visit: Visit) -> None:
    page = visit.open()
    page.wait_for_selector(".model-picker select")
    assert page.evaluate("document.activeElement.tagName") == "TEXTAREA"
    page = visit.open("models")
    page.reload()
    page.wait_for_selector(".card")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    for _ in range(3):
        page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    page.wait_for_selector(".view-prompt h1")


def test_the_example_page_completes_a_prompt(browser: Any) -> None:
    with llamapool(DEMO, "--path", str(ROOT / "docs"), "-c", "2048") as server:
        visit = Visit(browser, server.base_url)
        visit.page.goto(f"{server.base_url}/example-page.html")
        visit.page.click("button:has-text('Complete')")
        visit.page.wait_for_selector("small:has-text('tokens/s')")
        assert visit.page.inner_text(".new").strip()
        visit.close()
