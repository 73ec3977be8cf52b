"""Each view of the web UI against a real server, in Chromium or Firefox."""

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

expect.set_options(timeout=60_000)  # for busy machines
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
"""Collects the messages whose DOM changes, in `window.touched`."""


ENDLESS = 'root ::= (("ab" [c-z]){1000}){1000}'
"""Together with context shift, a model generates this grammar until it is stopped."""


def circle() -> bytes:
    """Return a PNG of a red circle on white, 128 pixels wide."""
    inside = ((x - 64) ** 2 + (y - 64) ** 2 < 40**2 for y in range(128) for x in range(128))
    return png(128, 128, b"".join(b"\xff\0\0" if each else b"\xff\xff\xff" for each in inside))


def chat_file(folder: Path, n: int = 1, *, calls: str = "") -> Path:
    """Write an exported chat with `n` exchanges. `calls`: the tool that the last answer calls."""
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
    file = folder / "chats.json"
    file.write_text(json.dumps({"format": "llamapool-chats", "version": 1, "chats": chats}))
    return file


def send_message(page: Any, text: str) -> None:
    page.fill(".composer textarea", text)
    page.keyboard.press("Enter")


def wait_for_answer(page: Any, n: int = 1) -> None:
    """Wait until the n-th answer is complete."""
    page.locator(".message.assistant .speed").nth(n - 1).wait_for()


def send_and_wait(page: Any, text: str, n: int = 1) -> None:
    """Send a message and wait for the n-th answer."""
    send_message(page, text)
    wait_for_answer(page, n)


def start_letters(page: Any, grammar: str) -> None:
    """Start an answer under `grammar` and wait for its first letters."""
    set_grammar(page, grammar)
    send_message(page, "Write letters.")
    expect(page.locator(".message.assistant .prose").last).to_contain_text(re.compile(r"\w{9}"))


def set_grammar(page: Any, grammar: str) -> None:
    page.click("button[aria-label=Settings]")
    page.fill(".settings label:has-text('Grammar') textarea", grammar)
    page.click(".settings button[aria-label=Close]")


def reload_with_held_lookup(page: Any) -> Callable[[], None]:
    """Reload during generation, and hold the lookup of the stream until the returned function is called."""
    held: list[Any] = []
    page.route("**/v1/streams/lookup", lambda route: held.append(route))  # noqa: PLW0108 (Playwright sets an attribute)
    with page.expect_request("**/v1/streams/lookup"):
        page.reload()

    def release() -> None:
        held[0].continue_()

    return release


def import_chat(page: Any, file: Path) -> None:
    page.set_input_files("input[type=file]", str(file))
    page.click(".list a:has-text('From a file')")
    page.wait_for_selector(".message.assistant")


def test_answer_streams_and_survives_a_reload(page: Any) -> None:
    send_and_wait(page, "Hello! Who are you?")
    text = page.inner_text(".message.assistant .prose")
    assert "Llamapool" in text
    assert "tokens/s" in page.inner_text(".speed")
    page.reload()
    page.wait_for_selector(".message.assistant .prose")
    assert page.inner_text(".message.assistant .prose") == text
    assert page.inner_text(".list .title") == "Hello! Who are you?"


def test_stream_continues_after_a_reload(page: Any) -> None:
    start_letters(page, 'root ::= ("ab" [c-z]){200}')
    release = reload_with_held_lookup(page)
    page.wait_for_selector("button[aria-label=Stop]")  # not shown as a finished answer
    assert page.locator(".speed").count() == 0
    release()
    wait_for_answer(page)
    assert len(page.inner_text(".message.assistant .prose")) == 600


@pytest.mark.parametrize("status", [0, 401, 503])
def test_stream_continues_although_its_first_lookup_after_a_reload_fails(page: Any, status: int) -> None:
    start_letters(page, 'root ::= ("ab" [c-z]){200}')

    def fail(route: Any) -> None:
        if status:
            route.fulfill(status=status, json={"error": {"message": "not now"}})
        else:
            route.abort()

    page.route("**/v1/streams/lookup", fail, times=1)
    page.reload()
    if status == 401:
        page.click("dialog button:has-text('Not now')")
    wait_for_answer(page)
    assert len(page.inner_text(".message.assistant .prose")) == 600


def test_refused_lookup_after_a_reload_is_shown_as_an_error(page: Any) -> None:
    start_letters(page, 'root ::= ("ab" [c-z]){200}')
    refusal = {"error": {"message": "not for this key"}}
    page.route("**/v1/streams/lookup", lambda route: route.fulfill(status=403, json=refusal))
    page.reload()
    expect(page.locator(".failure")).to_contain_text("not for this key")


def test_continued_answer_keeps_its_reasoning_after_a_reload(page: Any, tmp_path: Path) -> None:
    file = chat_file(tmp_path)
    export = json.loads(file.read_text())
    export["chats"][0]["messages"][-1] |= {"content": "It is", "reasoning": "Let me think.", "finish": "stopped"}
    file.write_text(json.dumps(export))
    import_chat(page, file)
    set_grammar(page, 'root ::= ("ab" [c-z]){200}')
    page.click("button[aria-label=Continue]")
    expect(page.locator(".message.assistant .prose").last).to_contain_text(re.compile(r"ab\w{9}"))
    page.reload()
    wait_for_answer(page)
    expect(page.locator(".reasoning .prose")).to_have_text("Let me think.")
    assert len(page.locator(".message.assistant .prose").last.inner_text()) == 605


def test_answer_is_stopped_before_the_reloaded_page_finds_its_stream(page: Any) -> None:
    start_letters(page, ENDLESS)
    release = reload_with_held_lookup(page)
    page.click("button[aria-label=Stop]")
    release()
    page.wait_for_selector("text=Stopped.")
    assert page.locator("[role=alert]").count() == 0


def test_answer_is_stopped_continued_and_regenerated(page: Any) -> None:
    start_letters(page, ENDLESS)
    page.click("button[aria-label=Stop]")
    page.wait_for_selector("text=Stopped.")
    stopped = page.inner_text(".message.assistant .prose")
    set_grammar(page, 'root ::= ("ab" [c-z]){20}')  # otherwise the model may never stop
    page.click("button[aria-label=Continue]")
    page.wait_for_selector("text=Stopped.", state="detached")
    wait_for_answer(page)
    assert page.inner_text(".message.assistant .prose").startswith(stopped[:9])
    page.click("button[aria-label='Regenerate']")
    page.wait_for_selector("[aria-label='Version 2 of 2']")
    wait_for_answer(page)
    page.click("button[aria-label='Previous version']")
    page.wait_for_selector("[aria-label='Version 1 of 2']")
    assert page.inner_text(".message.assistant .prose").startswith(stopped[:9])


def test_edited_question_creates_a_branch(page: Any) -> None:
    send_and_wait(page, "Hello!")
    page.click(".message.user button[aria-label=Edit]")
    page.fill(".editor textarea", " ")
    expect(page.locator("text=Send as new branch")).to_be_disabled()
    page.fill(".editor textarea", "Good morning!")
    page.click("text=Send as new branch")
    page.wait_for_selector(".message.user [aria-label='Version 2 of 2']")
    wait_for_answer(page)
    assert page.inner_text(".message.user .said") == "Good morning!"
    page.click(".message.user button[aria-label='Previous version']")
    page.wait_for_selector(".said:has-text('Hello!')")


def test_markdown_code_and_maths_are_rendered_and_run_no_script(page: Any, tmp_path: Path) -> None:
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
    "nesting": "$" + "x^{" * 150 + "}" * 150 + "$",
    "nesting macro": r"$\def\a#1{x^{x^{x^{x^{#1}}}}}" + r"\a{" * 60 + "}" * 60 + "$",
    "table": "| a " * 300 + "|\n" + "|-" * 300 + "|\n" + "| b " * 300 + "|",
}


def test_hostile_answers_run_no_script_and_keep_the_layout(visit: Visit, tmp_path: Path) -> None:
    file = chat_file(tmp_path, len(HOSTILE))
    export = json.loads(file.read_text())
    answers = [message for message in export["chats"][0]["messages"] if message["role"] == "assistant"]
    for message, text in zip(answers, HOSTILE.values(), strict=True):
        message["content"] = text
    file.write_text(json.dumps(export))
    page = visit.open()
    import_chat(page, file)
    expect(page.locator(".message.assistant")).to_have_count(len(HOSTILE))
    page.wait_for_selector(".katex")
    assert page.evaluate("window.broken") is None
    expect(page.locator(".prose :is(img, svg, script, dialog, textarea, [style*=red], .chat-list)")).to_have_count(0)
    assert page.evaluate("document.querySelector('.scroll').scrollWidth") <= 1280
    assert page.evaluate("document.querySelector('.messages').scrollHeight") < 50_000


def test_wide_inline_formula_scrolls_in_its_paragraph(page: Any, tmp_path: Path) -> None:
    file = chat_file(tmp_path)
    formula = r"So $\begin{pmatrix}" + "1&" * 100 + r"1\end{pmatrix}$ is wide."
    file.write_text(file.read_text().replace(json.dumps(ANSWER), json.dumps(formula)))
    import_chat(page, file)
    page.wait_for_selector(".katex")
    overflows = "(node) => node.scrollWidth > node.clientWidth"
    assert page.locator(".prose > div").evaluate(overflows)
    assert not page.locator(".scroll").evaluate(overflows)
    expect(page.locator(".prose > div")).to_have_css("overflow-x", "auto")


def test_import_adds_all_chats_of_a_file_or_none(page: Any, tmp_path: Path) -> None:
    file = chat_file(tmp_path)
    good = json.loads(file.read_text())["chats"][0]
    cyclic = json.loads(json.dumps(good).replace('"parent": null', '"parent": "a0"'))
    incomplete = {"chat": {"id": "b"}, "messages": [{"id": "1", "role": "user"}, {"role": "assistant", "calls": 5}]}
    surrogate = good | {"chat": good["chat"] | {"id": "\ud800"}}
    for chats, n, failed in (
        *(([good, {}], 0, 1), ([cyclic, incomplete], 2, 0)),
        *(([good | {"messages": [5]}], 2, 1), ([surrogate], 2, 1)),
    ):
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


def test_chat_whose_id_is_no_valid_unicode_can_be_deleted(page: Any) -> None:
    chat = {"id": "\ud800", "title": "From a file", "created": 1, "updated": 1, "leaf": "a", "settings": {}}
    page.evaluate(
        """(chat) => new Promise((done) => {
          indexedDB.open("llamapool").onsuccess = ({ target }) => {
            const writing = target.result.transaction("chats", "readwrite");
            writing.objectStore("chats").put(chat);
            writing.oncomplete = done;
          };
        })""",
        chat,
    )
    page.reload()
    page.once("dialog", lambda dialog: dialog.accept())
    page.click(".list button[aria-label^='Delete chat']")
    expect(page.locator(".list li")).to_have_count(0)


def test_import_keeps_all_sampling_settings(page: Any, tmp_path: Path) -> None:
    file = chat_file(tmp_path)
    file.write_text(file.read_text().replace('"thinking": "auto"', '"thinking": "auto", "repeat_penalty": "1.3"'))
    import_chat(page, file)
    send_message(page, "Hello!")
    assert chat_body(page)["repeat_penalty"] == 1.3


def test_long_chat_list_is_shown_in_parts(page: Any, tmp_path: Path) -> None:
    file = chat_file(tmp_path)
    read = json.loads(file.read_text())
    read["chats"] = [one | {"chat": one["chat"] | {"id": f"c{i}"}} for one in read["chats"] for i in range(201)]
    file.write_text(json.dumps(read))
    page.set_input_files("input[type=file]", str(file))
    expect(page.locator(".list a")).to_have_count(200)
    page.click("text=and 1 more")
    expect(page.locator(".list a")).to_have_count(201)


def test_message_and_answer_belong_to_the_chat_in_which_the_message_was_sent(page: Any, tmp_path: Path) -> None:
    import_chat(page, chat_file(tmp_path))
    page.click(".bar button[aria-label='New chat']")
    page.wait_for_selector(".greeting")
    page.fill(".composer textarea", "Hello!")
    page.evaluate("document.querySelector('.composer').requestSubmit(); location.hash = '#/chat/c'")
    expect(page.locator(".list li")).to_have_count(2)
    expect(page.locator(".message.user")).to_contain_text("Question 0")
    assert chat_body(page)["messages"] == [{"role": "user", "content": "Hello!"}]
    page.click(".list a:has-text('Hello!')")
    wait_for_answer(page)
    expect(page.locator(".message")).to_have_count(2)
    page.click(".list a:has-text('From a file')")
    page.reload()
    expect(page.locator(".message")).to_have_count(2)
    expect(page.locator(".message.user")).to_contain_text("Question 0")


def test_chat_that_is_read_after_another_was_opened_stays_closed(page: Any, tmp_path: Path) -> None:
    import_chat(page, chat_file(tmp_path))
    page.click(".bar button[aria-label='New chat']")
    page.wait_for_selector(".greeting")
    page.evaluate(
        """() => {
          const read = IDBIndex.prototype.getAll;
          window.reading = new Promise((begun) => {
            IDBIndex.prototype.getAll = function (...given) {
              const held = {};
              const request = read.apply(this, given);
              request.onsuccess = () => begun(() => held.onsuccess((held.result = request.result)));
              return held;
            };
          });
        }"""
    )
    page.click(".list a:has-text('From a file')")
    page.evaluate("window.reading.then((end) => { window.end = end; })")
    page.click(".bar button[aria-label='New chat']")
    page.wait_for_function("location.hash === '#/chat'")
    page.evaluate("window.end()")
    send_and_wait(page, "Hello!")
    expect(page.locator(".list li")).to_have_count(2)


def test_chat_that_is_deleted_during_an_answer_leaves_no_messages(page: Any) -> None:
    page.once("dialog", lambda dialog: dialog.dismiss())
    start_letters(page, ENDLESS)
    remove = page.locator(".list button[aria-label^='Delete chat']")
    remove.click()
    expect(page.locator(".list li")).to_have_count(1)
    page.once("dialog", lambda dialog: dialog.accept())
    with page.expect_request(lambda request: request.method == "DELETE"):
        remove.click()
    expect(page.locator(".list li")).to_have_count(0)
    page.reload()
    expect(page.locator(".greeting")).to_be_visible()
    n_stored = """new Promise((done) => {
      indexedDB.open("llamapool").onsuccess = ({ target }) => {
        const read = target.result.transaction("messages").objectStore("messages").count();
        read.onsuccess = () => done(read.result);
      };
    })"""
    assert page.evaluate(n_stored) == 0


def two_tabs(visit: Visit) -> tuple[Any, Any]:
    """Open one chat with one exchange in two tabs."""
    page = visit.open()
    send_and_wait(page, "Hello!")
    other = visit.context.new_page()
    other.goto(page.url)
    expect(other.locator(".message")).to_have_count(2)
    return page, other


def test_two_tabs_show_the_same_chat_and_a_draft_survives_navigation(visit: Visit) -> None:
    page, other = two_tabs(visit)
    send_and_wait(other, "Good morning!", 2)
    expect(page.locator(".message")).to_have_count(4)
    page.fill(".composer textarea", "draft")
    files = [("n.txt", "text/plain", b"abc"), ("empty.txt", "text/plain", b""), ("a.png", "image/png", circle())]
    attached = [{"name": name, "mimeType": kind, "buffer": data} for name, kind, data in files]
    page.set_input_files(".composer input[type=file]", attached)
    expect(page.locator(".talk [role=alert]")).to_contain_text("empty.txt, a.png")
    page.evaluate("location.hash = '#/models'")
    page.wait_for_selector(".card")
    page.evaluate("history.back()")
    expect(page.locator(".composer textarea")).to_have_value("draft")
    expect(page.locator(".composer .attached")).to_have_text("n.txt")


def test_answer_streams_in_both_tabs_and_survives_closing_its_tab(visit: Visit) -> None:
    page, other = two_tabs(visit)
    set_grammar(page, ENDLESS)
    send_message(page, "Write letters.")
    expect(other.locator(".message.assistant").nth(1)).to_contain_text(re.compile(r"ab\w{9}"))
    page.close()
    other.click("button[aria-label=Stop]")
    wait_for_answer(other, 2)
    is_stored = """(text) => new Promise((done) => {
      indexedDB.open("llamapool").onsuccess = ({ target }) => {
        const read = target.result.transaction("messages").objectStore("messages").getAll();
        read.onsuccess = () => done(read.result.some((one) => one.content === text && one.finish === "stopped"));
      };
    })"""
    text = other.inner_text(".message.assistant:last-of-type .prose")
    other.wait_for_function(is_stored, arg=text)


HIDE = """(hidden) => {
  Object.defineProperty(document, "hidden", { value: hidden, configurable: true });
  document.dispatchEvent(new Event("visibilitychange"));
}"""


def test_visible_windows_share_their_connections(visit: Visit) -> None:
    """A browser opens at most six connections to a server."""
    windows = [visit.open("engine")]
    for _ in range(7):
        windows[-1].wait_for_selector(".slot")
        windows.append(visit.context.new_page())
        windows[-1].goto(f"{visit.base}/#/engine")
    windows[-1].wait_for_selector(".slot")
    with windows[0].expect_event("requestfailed", lambda request: "models/sse" in request.url):
        windows[0].evaluate(HIDE, True)  # another window takes over the connection
    cards = []
    for window in windows[3:5]:
        window.evaluate("location.hash = '#/models'")
        cards.append(window.locator(".card:has(h2:text-is('other'))"))
    cards[0].locator("button:has-text('Load')").click()
    cards[1].locator("button:has-text('Unload')").click()
    for card in cards:
        expect(card).to_contain_text("not loaded")
    fetch = "fetch('v1/chat/completions', {method: 'POST', headers: {'Content-Type': 'application/json'}, body})"
    body = {"model": "demo", "messages": [{"role": "user", "content": "Hello!"}], "max_tokens": 4}
    windows[3].evaluate(f"(body) => {fetch}", json.dumps(body))
    windows[-1].evaluate("location.hash = '#/requests'")
    windows[-1].wait_for_selector("table.requests tbody tr")


def test_hidden_tabs_hold_no_connection(visit: Visit) -> None:
    """Without the Web Locks API tabs do not share connections."""
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
def test_chat_without_storage_works_and_shows_a_notice(visit: Visit, blocked: str) -> None:
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
    send_and_wait(page, "Hello!")
    expect(page.locator(".talk .notice")).to_contain_text("storage is full")
    page.evaluate("location.hash = '#/engine'")
    page.wait_for_selector(".slot")
    page.evaluate("location.hash = '#/chat'")  # what is not stored lasts until the page is closed
    page.wait_for_selector(".greeting")
    send_and_wait(page, "Good morning!")
    page.fill(".search input", "hello")
    page.click(".list a:has-text('Hello!')")
    expect(page.locator(".message")).to_have_count(2)
    expect(page.locator(".message.user")).to_contain_text("Hello!")
    page.fill(".search input", "")
    assert exported_chats(page) == [("Good morning!", 2), ("Hello!", 2)]
    page.once("dialog", lambda dialog: dialog.accept())
    page.locator(".list button[aria-label^='Delete chat']").last.click()
    expect(page.locator(".list .title")).to_have_text(["Good morning!"])


def exported_chats(page: Any) -> list[tuple[str, int]]:
    """Return the title and the number of messages of each chat that the page exports."""
    text = page.evaluate(
        """new Promise((done) => {
          const make = URL.createObjectURL;
          URL.createObjectURL = (blob) => (blob.text().then(done), make(blob));
          document.querySelector("button[aria-label='Export all chats']").click();
        })"""
    )
    return [(one["chat"]["title"], len(one["messages"])) for one in json.loads(text)["chats"]]


def test_escape_closes_panels_and_restores_the_focus(page: Any) -> None:
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


def test_results_of_tool_calls_are_entered_by_hand(page: Any, tmp_path: Path) -> None:
    import_chat(page, chat_file(tmp_path, calls="get_weather"))
    assert '"city": "Bonn"' in page.inner_text(".call")
    page.fill(".results textarea", "Sunny, 20 degrees")
    page.click("text=Send results")
    wait_for_answer(page)
    assert page.inner_text(".message.tool").startswith("Sunny")


def test_history_of_ten_thousand_messages_is_rendered_in_parts(page: Any, tmp_path: Path) -> None:
    import_chat(page, chat_file(tmp_path, 5000))
    assert page.locator(".message").count() == 60
    page.click("text=Earlier messages")
    expect(page.locator(".message")).to_have_count(120)
    assert page.evaluate("document.querySelectorAll('*').length") < 6000
    page.evaluate(TOUCHED)
    page.fill(".composer textarea", "Hello!")
    assert page.evaluate("window.touched.size") == 0  # typing does not render messages again
    chunks = [{"choices": [{"index": 0, "delta": {"content": f"word{i} "}}]} for i in range(300)]
    body = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks) + "data: [DONE]\n\n"
    page.route("**/v1/chat/completions", lambda route: route.fulfill(body=body, content_type="text/event-stream"))
    page.keyboard.press("Enter")
    expect(page.locator(".message.assistant .prose").last).to_contain_text("word299")
    assert page.evaluate("window.touched.size") <= 3  # the question, its answer, and the previous last message


def test_right_to_left_text_has_its_base_direction(page: Any, tmp_path: Path) -> None:
    file = chat_file(tmp_path)
    arabic = "\u0645\u0631\u062d\u0628\u0627"
    answer = f"- {arabic}!\n\n```\n{arabic}\n```\n\nHello"
    export = file.read_text().replace(json.dumps(ANSWER), json.dumps(answer)).replace("Question 0", f"{arabic}!")
    file.write_text(export.replace("From a file", f"{arabic} From a file"))
    import_chat(page, file)
    for place in (".said p", ".prose li", ".list .title"):
        expect(page.locator(place)).to_have_css("direction", "rtl")
    for place in (".prose pre", ".prose p"):
        expect(page.locator(place)).to_have_css("direction", "ltr")


def test_search_finds_chats_by_their_text_and_export_contains_all(page: Any, tmp_path: Path) -> None:
    import_chat(page, chat_file(tmp_path, 3))
    page.fill(".search input", "question 2")
    page.wait_for_selector(".list a:has-text('From a file')")
    page.fill(".search input", "giraffe")
    page.wait_for_selector("text=No matches")
    if FIREFOX:
        return  # BiDi reports no download of a blob
    with page.expect_download() as download:
        page.click("button[aria-label='Export all chats']")
    assert len(json.loads(Path(download.value.path()).read_text())["chats"][0]["messages"]) == 6


def test_engine_view_cancels_a_running_request(page: Any) -> None:
    set_grammar(page, ENDLESS)
    send_message(page, "Write letters.")
    page.wait_for_selector(".message.assistant .prose")
    page.evaluate("location.hash = '#/engine'")
    page.wait_for_selector(".slot.decode")
    page.click(".slot.decode button:has-text('Cancel')")
    expect(page.locator(".slot.decode")).to_have_count(0)
    page.evaluate("history.back()")
    page.wait_for_selector(".failure:has-text('cancelled')")
    page.evaluate("location.hash = '#/requests'")
    page.wait_for_selector(".outcome.cancelled")


def test_slot_is_saved_erased_and_restored(visit: Visit, server: RealServer) -> None:
    body = {"model": "demo", "prompt": "Once upon a time", "id_slot": 3, "n_predict": 4}
    server.request("POST", "/completion", body)
    page = visit.open("engine")
    slot = page.locator(".slot").nth(3)
    for action, notice in (
        ("Save", "was saved to slot-3.bin"),
        ("Erase", "was erased"),
        ("Restore", "was restored from slot-3.bin"),
    ):
        slot.locator(f"button:has-text('{action}')").click()
        page.wait_for_selector(f"text={notice}")


def test_models_are_loaded_and_unloaded_and_a_failed_load_shows_its_error(visit: Visit) -> None:
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


def test_tokens_view_shows_alternatives_and_branches(visit: Visit) -> None:
    page = visit.open("tokens")
    page.fill("label:has-text('Message') textarea", "Hello!")
    page.click("button[type=submit]")
    page.wait_for_selector(".chip")
    page.wait_for_selector("button[type=submit]")
    page.locator(".chip").first.click()
    page.wait_for_selector(".alternative")
    alternative = page.locator(".alternative:not(.own) .code").first.inner_text()
    page.locator(".alternative:not(.own)").first.click()
    page.wait_for_selector(".chip.given")
    assert page.locator(".chip").first.inner_text() == alternative
    page.fill("label:has-text('Grammar') textarea", 'root ::= "x" | "y"')
    page.wait_for_selector("button[type=submit]")
    page.click("button[type=submit]")
    page.wait_for_selector(".chip.forced")
    page.locator(".chip.forced").first.click()
    assert "Tokens that the grammar allows here: 2." in page.inner_text(".alternatives")
    assert page.locator(".forbidden .barred").count() == 8
    assert page.locator(".masks rect").count() == page.locator(".chip").count()


def test_tokens_of_a_chat_answer_are_shown_and_a_branch_is_saved_to_the_chat(page: Any) -> None:
    send_and_wait(page, "Hello! Who are you?")
    text = page.inner_text(".message.assistant .prose")
    page.click("button[aria-label='Show the tokens']")
    page.wait_for_selector(".chip")
    tokens = "".join(page.locator(".chip").all_inner_texts())
    assert tokens.replace("\u00b7", " ").replace("↵", "").strip().startswith(text[:20])
    page.reload()  # the view has its own URL
    page.wait_for_selector(".chip")
    page.locator(".chip").first.click()
    page.locator(".alternative:not(.own)").first.click()
    page.wait_for_selector(".chip.given")
    page.click("button:has-text('Save as another version'):enabled")
    page.wait_for_selector(".message.assistant [aria-label='Version 2 of 2']")


def test_sampling_settings_are_sent_to_the_server(page: Any) -> None:
    page.click("button[aria-label=Settings]")
    expect(page.get_by_label("Temperature")).to_have_attribute("placeholder", "0.8")  # the server's default
    page.click(".more summary")
    page.get_by_label("repeat_penalty").fill("1.3")
    page.get_by_label("samplers").fill("top_k; temperature")
    page.click(".settings button[aria-label=Close]")
    send_message(page, "Hello!")
    body = chat_body(page)
    assert (body["repeat_penalty"], body["samplers"]) == (1.3, ["top_k", "temperature"])
    wait_for_answer(page)


def test_wrong_settings_are_reported_before_the_request(page: Any) -> None:
    wrong = (
        ("Maximum tokens", "1,000", "is not a number"),
        ("Temperature", "1e999", "is not a number"),
        ("Tools (JSON, OpenAI format)", "null", "must be a JSON array"),
        ("Tools (JSON, OpenAI format)", '{"type": "function"}', "must be a JSON array"),
    )
    page.click("button[aria-label=Settings]")
    for n, (label, value, message) in enumerate(wrong, start=1):
        field = page.get_by_label(label, exact=True)
        field.fill(value)
        send_message(page, "Hello!")
        expect(page.locator(".failure")).to_have_count(n)
        expect(page.locator(".failure").last).to_contain_text(message)
        field.fill("")
    assert page.evaluate("window.chats") == []


def test_cached_states_are_listed(visit: Visit, server: RealServer) -> None:
    for i in range(6):  # more than the slots
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


def test_prompt_view_shows_roles_and_cached_tokens(visit: Visit) -> None:
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
        re.compile("the cached text differs|another slot has slightly more")  # other tests used the slots
    )


def test_shared_prefixes_of_slots_are_shown_as_a_tree(visit: Visit, server: RealServer) -> None:
    prefix, longer = "One two three four five six seven eight. " * 8, "Nine ten eleven twelve. " * 8
    for slot, text in enumerate((prefix + longer + "a", prefix + longer + "b", prefix + "c")):
        server.request("POST", "/completion", {"model": "demo", "prompt": text, "id_slot": slot, "n_predict": 1})
    page = visit.open("engine")
    inner = page.locator(".tree .branch .branch")
    expect(inner.locator(".leaf")).to_have_text(["Slot 0", "Slot 1"])
    outer = page.locator(".tree > .branch").filter(has_text="Slot 2")  # others are cached states of earlier tests
    expect(outer.locator(".leaf")).to_have_count(3)


def test_metrics_view_plots_the_last_hour(visit: Visit) -> None:
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


def test_bench_view_measures_two_servers(visit: Visit, guarded: RealServer) -> None:
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


def test_bench_run_continues_while_another_view_is_open_and_is_stopped(visit: Visit) -> None:
    page = visit.open("bench")
    page.get_by_label("Concurrent clients").fill("abc")
    page.click("button:has-text('Run')")
    expect(page.locator("[role=alert]")).to_contain_text("is not a number")
    page.get_by_label("Concurrent clients").fill("4")
    page.click("button:has-text('Run')")
    page.wait_for_selector("[role=status]:has-text('1 of 2')")
    page.evaluate("location.hash = '#/models'")
    page.wait_for_selector(".card")
    page.evaluate("history.back()")
    page.wait_for_selector("[role=status]:has-text(' of 2')")
    page.click("button:has-text('Stop')")
    page.wait_for_selector("button:has-text('Run')")


def test_models_view_pins_a_model_and_shows_the_server_log(visit: Visit) -> None:
    page = visit.open("models")
    pin = page.locator(".card:has(h2:text-is('other'))").get_by_label("Pin")
    pin.check()
    page.reload()
    page.wait_for_selector(".card")
    expect(pin).to_be_checked()
    pin.uncheck()
    page.click("button:has-text('Server log')")
    expect(page.get_by_role("log", name="Server log")).to_contain_text("access: POST '/models/pin'")


def test_requests_view_shows_the_bodies_of_a_request(visit: Visit, server: RealServer) -> None:
    text = "a sentence of this test only"
    body = {"model": "demo", "messages": [{"role": "user", "content": text}], "max_tokens": 2}
    server.request("POST", "/v1/chat/completions", body)
    page = visit.open("requests")
    page.locator("td button:has-text('Details')").first.click()
    expect(page.locator("dialog .raw").first).to_contain_text(text)
    expect(page.locator("dialog .raw").last).to_contain_text('"finish_reason"')
    page.keyboard.press("Escape")
    expect(page.locator("dialog")).to_have_count(0)


def test_tool_call_runs_on_the_server(page: Any, tmp_path: Path) -> None:
    import_chat(page, chat_file(tmp_path, calls="get_info"))
    page.get_by_role("button", name="Run", exact=True).click()
    expect(page.locator(".message.tool .result")).to_contain_text('"cwd"')
    wait_for_answer(page)
    page.click("button[aria-label=Settings]")
    page.click("text=Use the server's tools")
    expect(page.locator(".settings label:has-text('Tools') textarea")).to_have_value(re.compile("exec_shell_command"))


def test_tool_list_is_requested_again_after_a_failure(page: Any) -> None:
    page.route("**/tools", lambda route: route.abort(), times=1)
    page.click("button[aria-label=Settings]")
    for listed in (r"\[\]", "exec_shell_command"):
        page.click("text=Use the server's tools")
        expect(page.locator(".settings label:has-text('Tools') textarea")).to_have_value(re.compile(listed))


def add_mcp_server(page: Any, url: str) -> None:
    page.click("button[aria-label=Settings]")
    page.get_by_label("URL of an MCP server").fill(url)
    page.click("button:has-text('Add MCP server')")


def reply_with_call(route: Any, a: int, b: int) -> None:
    """Reply like a model that calls the tool `add`."""
    call = {"index": 0, "id": f"call_{a}", "function": {"name": "add", "arguments": json.dumps({"a": a, "b": b})}}
    chunks = [{"delta": {"tool_calls": [call]}}, {"delta": {}, "finish_reason": "tool_calls"}]
    body = "".join(f"data: {json.dumps({'choices': [chunk]})}\n\n" for chunk in chunks)
    route.fulfill(body=body, content_type="text/event-stream")


def test_mcp_tools_run_when_the_user_allows_them(visit: Visit, mcp: McpServer) -> None:
    visit.hosts += (mcp.origin,)
    page = visit.open()
    add_mcp_server(page, mcp.url)
    server = page.get_by_role("group", name="tests")
    server.get_by_text(re.compile("of 8 tools")).click()
    server.get_by_label("huge").uncheck()
    page.keyboard.press("Escape")
    requests: list[Any] = []

    def reply(route: Any) -> None:
        requests.append(route)
        if len(requests) < 4:
            reply_with_call(route, len(requests), 1)
        else:
            route.continue_()

    page.route("**/v1/chat/completions", reply)
    send_message(page, "How much is 1 plus 1?")
    expect(page.get_by_role("group", name="add").last).to_contain_text("The model calls add on tests (127.0.0.1")
    assert mcp.calls == []
    page.get_by_role("button", name="Run", exact=True).click()
    page.get_by_role("button", name="Deny").click()
    page.get_by_role("button", name="Run, and do not ask again in this chat").click()
    wait_for_answer(page)
    assert mcp.calls == [("add", (1, 1)), ("add", (3, 1))]
    bodies = page.evaluate("window.chats")
    offered = [tool["function"]["name"] for tool in bodies[0]["tools"]]
    assert "add" in offered
    assert "a_b_c" in offered
    assert "huge" not in offered
    results = [message["content"] for message in bodies[-1]["messages"] if message["role"] == "tool"]
    assert results == ["2", "The user denied this call.", "4"]
    requests.clear()
    send_and_wait(page, "And once more?", 2)
    assert mcp.calls[2:] == [("add", (1, 1)), ("add", (2, 1)), ("add", (3, 1))]
    page.reload()
    requests.clear()
    send_message(page, "After a reload?")
    page.get_by_role("button", name="Run", exact=True).wait_for()
    assert len(mcp.calls) == 5


def test_mcp_prompts_and_resources_are_inserted(visit: Visit, mcp: McpServer) -> None:
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
    wait_for_answer(page)


def test_dialog_opened_again_before_its_close_is_reported_stays_open(visit: Visit, mcp: McpServer) -> None:
    visit.hosts += (mcp.origin,)
    page = visit.open()
    add_mcp_server(page, mcp.url)
    insert = page.locator("button[aria-label='Insert from an MCP server']")
    insert.click()
    insert.evaluate("""insert => {
      const { close } = HTMLDialogElement.prototype;
      HTMLDialogElement.prototype.close = function () {
        close.call(this);
        HTMLDialogElement.prototype.close = close;
        queueMicrotask(() => insert.click());
        window.reported = new Promise((resolve) => this.addEventListener("close", () => resolve(true)));
      };
    }""")
    page.locator("dialog").get_by_role("button", name="today.txt").click()
    expect(page.locator(".composer .attached")).to_have_text("today.txt")
    assert page.evaluate("window.reported")
    page.locator("dialog").get_by_role("button", name="note").click()


def test_message_that_waits_for_an_mcp_server_is_stopped(visit: Visit) -> None:
    url = "http://127.0.0.1:45679/mcp"
    visit.hosts += (url,)
    page = visit.open()
    page.route(url, lambda _: None)  # never replies
    add_mcp_server(page, url)
    page.keyboard.press("Escape")
    send_message(page, "Hello!")
    page.click("button[aria-label=Stop]")
    expect(page.locator(".message.assistant .outcome")).to_have_text("Stopped.")
    assert page.evaluate("window.chats") == []


def test_mcp_server_that_ui_connect_does_not_list_is_not_contacted(visit: Visit, page: Any) -> None:
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
    send_and_wait(page, "Hello!")
    guarded_visit.open("metrics")
    expect(page.locator("section:has-text('Usage this month') tbody td").first).to_have_text("tester")


def test_text_file_is_sent_with_the_message(visit: Visit, tmp_path: Path) -> None:
    notes = tmp_path / "notes.md"
    notes.write_text("The password is swordfish.")
    page = visit.open()
    set_grammar(page, 'root ::= "It is swordfish."')  # the demo model is not trained for this
    page.set_input_files(".composer input[type=file]", str(notes))
    expect(page.locator(".composer .attached")).to_have_text("notes.md")
    send_message(page, "What is the password?")
    (document, _) = chat_body(page)["messages"][-1]["content"]
    assert (document["type"], document["file"]["filename"]) == ("file", "notes.md")
    wait_for_answer(page)
    expect(page.locator(".message.user .document")).to_have_text("notes.md")
    page.click("button[aria-label='Show the prompt']")
    expect(page.locator(".token-text")).to_contain_text("swordfish")


def test_refused_attachment_is_removed_from_a_sent_message(page: Any) -> None:
    set_grammar(page, 'root ::= "Good."')
    archive = {"name": "a.zip", "mimeType": "application/zip", "buffer": b"PK\x03\x04" + bytes(300)}
    page.set_input_files(".composer input[type=file]", archive)
    expect(page.locator(".composer .attached")).to_have_text("a.zip")
    send_message(page, "What is it?")
    expect(page.locator(".failure")).to_contain_text("ZIP archive")
    page.evaluate("window.chats = []")
    page.click(".message.user button[aria-label=Edit]")
    page.fill(".editor textarea", " ")
    expect(page.locator(".editor button[type=submit]")).to_be_enabled()
    page.click(".editor button[aria-label='Remove: a.zip']")
    expect(page.locator(".editor button[type=submit]")).to_be_disabled()
    page.fill(".editor textarea", "Hello!")
    page.click(".editor button[type=submit]")
    assert chat_body(page)["messages"] == [{"role": "user", "content": "Hello!"}]
    wait_for_answer(page)


def test_microphone_recording_is_sent_without_text(page: Any) -> None:
    page.select_option(".model-picker select", "multimodal")
    page.click("button[aria-label='Record audio']")
    page.click("button[aria-label='Stop recording']")
    expect(page.locator(".composer .attached")).to_have_text("recording.wav")
    page.click("button[aria-label=Send]")
    ((part,),) = [message["content"] for message in chat_body(page)["messages"]]
    recording = base64.b64decode(part["input_audio"]["data"])
    assert (recording[:4], int.from_bytes(recording[24:28], "little")) == (b"RIFF", 16000)
    assert 0.05 < len(recording) / 32000 < 60
    assert any(recording[44:])
    wait_for_answer(page)


MERMAID = """```mermaid
flowchart LR
  A["<img src=x onerror=parent.broken=1> first"] --> B[second]
  click A href "javascript:parent.broken=1"
```

```mermaid
no diagram
```
"""


def test_mermaid_block_is_rendered_as_an_image_and_runs_no_script(visit: Visit, tmp_path: Path) -> None:
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
    expect(page.locator(".code-box pre").last).to_have_text("no diagram\n")  # an invalid diagram shows its source
    expect(image).to_have_count(1)
    visit.faults[:] = [fault for fault in visit.faults if not re.search("inline event handler|script-src-attr", fault)]


def test_batches_are_listed_and_cancelled(visit: Visit) -> None:
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


def test_title_is_edited_or_generated(page: Any) -> None:
    send_and_wait(page, "Hello!")
    page.click("button[aria-label=Settings]")
    page.get_by_label("Title").fill("Greetings")
    expect(page.locator(".list .title")).to_have_text("Greetings")
    reply = {"choices": [{"message": {"role": "assistant", "content": '"A Friendly Start."'}}]}
    page.route("**/v1/chat/completions", lambda route: route.fulfill(json=reply))
    page.click("text=Let the model write a title")
    expect(page.locator(".list .title")).to_have_text("A Friendly Start")
    only_reasoning = {"choices": [{"message": {"role": "assistant", "content": None}}]}
    page.route("**/v1/chat/completions", lambda route: route.fulfill(json=only_reasoning))
    with page.expect_response("**/v1/chat/completions"):
        page.click("text=Let the model write a title")
    page.get_by_label("Title").fill("Hello again")
    expect(page.locator(".list .title")).to_have_text("Hello again")
    expect(page.locator(".settings [role=alert]")).to_have_count(0)


def test_generated_title_belongs_to_the_chat_for_which_it_was_requested(page: Any, tmp_path: Path) -> None:
    import_chat(page, chat_file(tmp_path))
    page.click(".bar button[aria-label='New chat']")
    send_and_wait(page, "Hello!")
    held: list[Any] = []
    page.route("**/v1/chat/completions", lambda route: held.append(route))  # noqa: PLW0108 (Playwright sets an attribute)
    page.click("button[aria-label=Settings]")
    with page.expect_request("**/v1/chat/completions"):
        page.click("text=Let the model write a title")
    page.click(".list a:has-text('From a file')")
    expect(page.locator(".message.user")).to_contain_text("Question 0")
    held[0].fulfill(json={"choices": [{"message": {"role": "assistant", "content": "A friendly start"}}]})
    expect(page.locator(".list .title")).to_have_text(["A friendly start", "From a file"])


def test_chat_continues_with_a_summary(page: Any, tmp_path: Path) -> None:
    import_chat(page, chat_file(tmp_path, 3))
    page.click("button[aria-label='Continue with a summary']")
    assert len(chat_body(page)["messages"]) == 7
    wait_for_answer(page)
    expect(page.locator(".message")).to_have_count(2)
    page.click("button[aria-label='Previous version']")
    expect(page.locator(".message")).to_have_count(6)


def save_chats(page: Any) -> None:
    with page.expect_response("**/v1/files"):
        page.click("button[aria-label='Save all chats on the server']")
    expect(page.locator(".chat-list [role=status]")).to_have_text("The chats are saved on the server.")


def load_chats(page: Any) -> None:
    with page.expect_response("**/v1/files/*/content"):
        page.click("button[aria-label='Load chats from the server']")


def test_chats_are_saved_on_the_server_and_loaded(page: Any, new_visit: Callable[..., Visit], tmp_path: Path) -> None:
    page.click("button[aria-label='Load chats from the server']")
    expect(page.locator(".chat-list [role=alert]")).to_contain_text("no chats are stored there")
    import_chat(page, chat_file(tmp_path))
    page.on("dialog", lambda dialog: dialog.accept())
    for _ in range(2):
        save_chats(page)
    other = new_visit().open()
    other.on("dialog", lambda dialog: dialog.accept())
    load_chats(other)
    expect(other.locator(".list .title")).to_have_text("From a file")
    other.click(".list a")
    page.click(".message.assistant button[aria-label=Edit]")  # the open chat of the other browser becomes this version
    page.fill(".editor textarea", "The corrected answer.")
    page.click(".editor button:has-text('Save')")
    save_chats(page)
    load_chats(other)
    expect(other.locator(".message.assistant .prose")).to_have_text("The corrected answer.")
    load_chats(other)
    for each, title in ((page, "Ours"), (other, "Theirs")):
        each.click("button[aria-label=Settings]")
        each.get_by_label("Title").fill(title)
    save_chats(page)
    load_chats(other)  # it was changed in both: the version of the server is a separate chat
    expect(other.locator(".list .title")).to_have_text(["Theirs", "Ours"])
    load_chats(other)
    page.get_by_label("Title").fill("Ours, too")
    save_chats(page)
    load_chats(other)
    expect(other.locator(".list .title")).to_have_text(["Ours, too", "Theirs"])
    save_chats(other)
    load_chats(page)
    expect(page.locator(".list .title")).to_have_text(["Ours, too", "Theirs"])
    page.click(".list a:has-text('Theirs')")
    chunk = json.dumps({"choices": [{"index": 0, "delta": {"content": " More."}}]})
    body = f"data: {chunk}\n\ndata: [DONE]\n\n"
    page.route("**/v1/chat/completions", lambda route: route.fulfill(body=body, content_type="text/event-stream"))
    page.click("button[aria-label=Continue]")
    expect(page.locator(".list .title")).to_have_text(["Theirs", "Ours, too"])
    save_chats(page)
    load_chats(other)
    expect(other.locator(".message.assistant .prose")).to_have_text("The corrected answer. More.")
    expect(other.locator(".list .title")).to_have_text(["Theirs", "Ours, too"])


@pytest.mark.parametrize(
    ("file", "question"), [("red-circle.png", "What is in the picture?"), ("tone.wav", "Is the tone high or low?")]
)
def test_image_and_audio_are_sent_and_answered(visit: Visit, tmp_path: Path, file: str, question: str) -> None:
    path = tmp_path / file
    path.write_bytes(circle() if file.endswith("png") else tone())
    page = visit.open()
    page.select_option(".model-picker select", "multimodal")
    page.wait_for_selector("button[aria-label='Attach a file']")
    page.set_input_files(".composer input[type=file]", str(path))
    page.wait_for_selector(".composer .attached")
    send_message(page, question)
    wait_for_answer(page)
    attachment = page.locator(".message.user img" if file.endswith("png") else ".message.user audio")
    expect(attachment).to_have_count(1)
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
    media = page.locator(".tok:has-text('image, ' )" if file.endswith("png") else ".tok:has-text('audio, ')")
    n_media = int(re.sub(r"\D", "", media.inner_text()))
    total = int(page.inner_text(".rendered figcaption .quiet").split()[0])
    assert total == page.locator(".tok").count() - 1 + n_media
    page.click("button:has-text('Send')")
    expect(page.locator(".row [role=status]")).to_contain_text(f"{total - 1} of {total} tokens")
    expect(page.locator(".tok").last).not_to_have_class(re.compile("cached"))
    expect(media).to_have_class(re.compile("cached"))


def test_lost_connection_is_shown_and_recovers(visit: Visit, page: Any) -> None:
    page.wait_for_function(
        "() => performance.getEntriesByType('resource').filter(({ name }) => name.includes('/engine/')).length > 6"
    )  # the view is preloaded, because browsers do not retry a failed preload
    visit.context.set_offline(True)
    send_message(page, "Hello!")
    page.wait_for_selector(".notice.warn")
    visit.context.set_offline(False)
    page.wait_for_selector(".notice.warn", state="detached")
    wait_for_answer(page)
    visit.context.set_offline(True)
    page.click("nav a:has-text('Engine')")
    expect(page.locator(".notices")).to_contain_text("cannot be reached")
    expect(page.locator("main")).not_to_contain_text("newer version of this page")
    visit.context.set_offline(False)
    page.wait_for_selector(".slot")
    expect(page.locator("main")).not_to_contain_text("fetch")


UNRELIABLE = """
window.attempts = 0;
const send = window.fetch;
window.fetch = async (url, options) => {
  if (window.offline) window.attempts += 1;
  if (window.offline) throw new TypeError("offline");
  const reply = await send(url, options);
  if (!/completions|stream[?]/.test(url) || !reply.ok) return reply;
  const reader = reply.body.getReader();
  let n = 0;
  return new Response(new ReadableStream({
    async pull(stream) {
      if (!window.offline && !(window.breaks && ++n > 8)) return stream.enqueue((await reader.read()).value);
      void reader.cancel();
      stream.error(new TypeError("broken"));
    },
  }));
};
"""
"""Requests fail and streams break with `window.offline`. Streams break after eight chunks with `window.breaks`."""


def test_answer_keeps_its_text_while_the_connection_is_lost_and_continues(page: Any) -> None:
    page.evaluate(UNRELIABLE)
    page.clock.install()
    start_letters(page, ENDLESS)
    page.evaluate("window.offline = true")
    while page.evaluate("window.attempts") < 8:
        page.clock.fast_forward(10_000)
    expect(page.locator(".notices")).to_contain_text("cannot be reached")
    text = page.inner_text(".message.assistant .prose")
    assert len(text) > 9
    assert page.locator(".failure").count() == 0
    page.evaluate("window.offline = false")
    page.clock.fast_forward(10_000)
    expect(page.locator(".message.assistant .prose")).to_contain_text(re.compile(f"^{text}.+"))
    page.click("button[aria-label=Stop]")
    page.wait_for_selector("text=Stopped.")


def test_answer_whose_stream_breaks_repeatedly_keeps_its_text_and_resumes_after_a_reload(page: Any) -> None:
    page.evaluate(UNRELIABLE + "window.breaks = true;")
    page.clock.install()
    start_letters(page, ENDLESS)
    while not page.locator(".failure").count():
        page.clock.fast_forward(10_000)
    expect(page.locator(".failure")).to_contain_text("connection was lost")
    text = page.inner_text(".message.assistant .prose")
    assert len(text) > 9
    page.reload()
    expect(page.locator(".message.assistant .prose")).to_contain_text(re.compile(f"^{text}.+"))
    page.click("button[aria-label=Stop]")
    page.wait_for_selector("text=Stopped.")
    assert page.locator(".failure").count() == 0


def test_answer_that_is_stopped_while_offline_is_not_requested_again(visit: Visit, page: Any) -> None:
    page.wait_for_selector(".model-picker select")
    visit.context.set_offline(True)
    send_message(page, "Hello!")
    for _ in range(2):
        page.wait_for_event("requestfailed", lambda request: request.url.endswith("/health"))
    page.click("button[aria-label=Stop]")
    visit.context.set_offline(False)
    expect(page.locator(".message.assistant .outcome")).to_have_text("Stopped.")
    assert page.evaluate("window.chats.length") == 1


def test_full_queue_is_shown_with_the_time_to_wait(guarded_visit: Visit, guarded: RealServer) -> None:
    page = with_key(guarded_visit)
    with full_queue(guarded):
        send_message(page, "Hello!")
        page.wait_for_selector(".failure:has-text('The queue is full. Retry in')")
    page.click(".failure button")
    wait_for_answer(page)


def test_message_loads_an_unloaded_model(page: Any, server: RealServer) -> None:
    page.select_option(".model-picker select", "other")
    page.wait_for_selector(".model-picker:has-text('not loaded')")
    send_and_wait(page, "Hello!")
    server.request("POST", "/models/unload", {"model": "other"})
    page.wait_for_selector(".model-picker:has-text('not loaded')")
    page.select_option(".model-picker select", "broken")
    send_message(page, "Hello!")
    page.wait_for_selector(".failure")


def test_key_dialog_refuses_wrong_keys_and_unlocks_all_tabs(guarded_visit: Visit) -> None:
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
    send_and_wait(page, "Hello!")
    page.reload()
    page.wait_for_selector(".model-picker select")  # the key is stored


def test_live_streams_are_retried_after_a_401(visit: Visit) -> None:
    """A key may be missing for a moment while the key file is rewritten."""
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


def test_german_browser_gets_german_texts(new_visit: Callable[..., Visit]) -> None:
    page = new_visit(locale="de-DE").open()
    page.wait_for_selector("text=Wie kann ich helfen?")
    assert page.evaluate("document.documentElement.lang") == "de"
    page.click(".language")
    page.wait_for_selector("text=How can I help?")


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize(
    ("options", "width", "height"),
    [(PHONE, 390, 844), ({"device_scale_factor": 2}, 640, 430)],  # 640 x 430: a window of 1280 x 860 in CSS pixels
    ids=["phone", "200 percent zoom"],
)
def test_no_view_scrolls_horizontally(
    new_visit: Callable[..., Visit], view: str, options: dict[str, Any], width: int, height: int
) -> None:
    visit = new_visit(**options)
    visit.page.set_viewport_size({"width": width, "height": height})
    page = visit.open(view)
    page.wait_for_selector(f".view-{view} h1")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate("document.querySelector('.page, .chat').scrollWidth") <= width
    expect(page.locator(".views [aria-current]")).to_be_in_viewport()


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("view", VIEWS)
def test_axe_finds_no_serious_violation(new_visit: Callable[..., Visit], axe: str, view: str, theme: str) -> None:
    page = new_visit(color_scheme=theme, bypass_csp=True).open(view)
    page.wait_for_selector(f".view-{view} h1")
    if view == "chat":
        send_and_wait(page, "Hello!")
        page.click("button[aria-label=Settings]")
    page.evaluate(axe)
    found = page.evaluate("axe.run()")["violations"]
    serious = [
        (violation["id"], [node["html"][:120] for node in violation["nodes"]])
        for violation in found
        if violation["impact"] in ("serious", "critical")
    ]
    assert serious == []


def test_keyboard_reaches_message_box_and_views(visit: Visit, page: Any) -> None:
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


def test_example_page_completes_a_prompt(browser: Any) -> None:
    with llamapool(DEMO, "--path", str(ROOT / "docs"), "-c", "2048") as server:
        visit = Visit(browser, server.base_url)
        visit.page.goto(f"{server.base_url}/example-page.html")
        visit.page.click("button:has-text('Complete')")
        visit.page.wait_for_selector("small:has-text('tokens/s')")
        assert visit.page.inner_text(".new").strip()
        visit.close()
