// One message: its text, reasoning, tool calls and actions.
import { copyText } from "../../lib/clipboard.js";
import { classes, html, useEffect, useRef, useState } from "../../lib/dom.js";
import { number, percent, seconds, short } from "../../lib/format.js";
import { IconButton } from "../../lib/icons.js";
import { Markdown } from "../../lib/markdown.js";
import { t } from "../../lib/texts.js";
import { answer, outcomeOf, runnerOf, serverTools } from "./tools.js";

/**
 * @typedef {import("./store.js").Message} Message
 * @typedef {{branch: (m: Message, text: string, attached: import("./store.js").Attached[]) => void, correct: (m: Message, text: string) => void, again: (m: Message) => void,
 *   goOn: (m: Message) => void, show: (m: Message) => void, proceed: (m: Message) => void,
 *   run: (m: Message, i: number, runner: import("./tools.js").Runner, always: boolean) => void,
 *   tokens: (m: Message) => void, prompt: () => void}} Actions
 */

/**
 * @param {{message: Message, state?: {progress: number}, settings: import("./store.js").Settings, siblings: Message[], last: boolean,
 *   actions: Actions}} props `settings`: of the chat
 */
export const MessageView = ({ message, state, settings, siblings, last, actions }) => {
  const [editing, setEditing] = useState(false);
  const foot = useRef(/** @type {HTMLElement | null} */ (null));
  const edited = useRef(false);
  useEffect(() => {
    if (edited.current && !editing) foot.current?.querySelector("button")?.focus(); // the focused field was removed
    edited.current = editing;
  }, [editing]);
  const user = message.role === "user";
  const name = user ? t("you") : message.role === "tool" ? t("result") : (message.model ?? "");
  return html`<article class=${classes("message", message.role)} aria-label=${name}>
    ${message.role === "assistant" && html`<${Thoughts} message=${message} growing=${Boolean(state)} />`}
    ${editing
      ? html`<${Editor} message=${message} actions=${actions} onEnd=${() => setEditing(false)} />`
      : html`<${Body} message=${message} growing=${Boolean(state)} />`}
    ${message.calls?.map((call) => html`<${Call} key=${call.id} call=${call} />`)}
    ${last && !state && message.calls?.length ? html`<${Results} message=${message} settings=${settings} actions=${actions} />` : null}
    ${state && html`<${Waiting} message=${message} progress=${state.progress} />`}
    ${!state && html`<${Outcome} message=${message} last=${last} actions=${actions} />`}
    ${!state && !editing && html`<footer>
      <${Versions} message=${message} siblings=${siblings} actions=${actions} />
      <span class="doings" ref=${foot}>
        ${message.role !== "tool" && html`<${IconButton} icon="edit" label=${t("edit")} onClick=${() => setEditing(true)} />`}
        ${message.role === "assistant" && html`<${IconButton} icon="again" label=${t("again")} onClick=${() => actions.again(message)} />`}
        ${message.role === "assistant" && last && !message.calls?.length &&
        html`<${IconButton} icon="on" label=${t("goOn")} onClick=${() => actions.goOn(message)} />`}
        <${Copy} text=${message.content} />
        ${message.role === "assistant" && message.content && html`<${IconButton} icon="tokens" label=${t("seeTokens")}
          onClick=${() => actions.tokens(message)} />`}
        ${message.role === "assistant" && last && html`<${IconButton} icon="prompt" label=${t("seePrompt")} onClick=${actions.prompt} />`}
      </span>
      <${Speed} message=${message} />
    </footer>`}
  </article>`;
};

/** @param {{message: Message, growing: boolean}} props */
const Body = ({ message, growing }) => {
  if (message.role === "assistant") return message.content ? html`<${Markdown} text=${message.content} growing=${growing} />` : null;
  const files = message.attached?.map((file) =>
    file.kind === "image"
      ? html`<img key=${file.url} src=${file.url} alt=${file.name} />`
      : file.kind === "audio"
        ? html`<audio key=${file.url} controls src=${file.url} aria-label=${file.name}></audio>`
        : html`<a class="document" key=${file.url} href=${file.url} download=${file.name}>${file.name}</a>`,
  );
  if (message.role === "user") return html`<div class="said">${files}<p dir="auto">${message.content}</p></div>`;
  return html`<div class="result">${files}<pre tabindex="0">${message.content}</pre></div>`;
};

/** @param {{message: Message, growing: boolean}} props */
const Thoughts = ({ message, growing }) => {
  if (!message.reasoning) return null;
  const now = growing && !message.content;
  return html`<details class=${classes("reasoning", now && "now")}>
    <summary>${now ? t("thinking") : t("reasoning")}</summary>
    <${Markdown} text=${message.reasoning} growing=${growing} />
  </details>`;
};

/** @param {{call: import("./store.js").ToolCall}} props */
const Call = ({ call }) => html`<div class="call">
  <span>${t("calls", call.name)}</span>
  <pre tabindex="0">${pretty(call.arguments)}</pre>
</div>`;

/** @param {string} text */
function pretty(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}

/**
 * The calls without a result: the user runs or denies a tool, or writes the result of an unknown tool.
 * @param {{message: Message, settings: import("./store.js").Settings, actions: Actions}} props
 */
const Results = ({ message, settings, actions }) => {
  const calls = message.calls ?? [];
  const [texts, setTexts] = useState(calls.map(() => ""));
  useEffect(() => {
    void serverTools().then(() => actions.proceed(message));
  }, [message.id]);
  const runners = calls.map((call) => runnerOf(call.name, settings));
  const unknown = calls.flatMap((_, i) => (runners[i] || outcomeOf(message, i) ? [] : [i]));
  /** @param {number} i */
  const state = (i) => {
    const { name } = calls[i];
    const outcome = outcomeOf(message, i);
    const runner = runners[i];
    if (outcome?.content !== undefined) return html`<p class="quiet">${t("resultOf", name)}</p><pre class="result" tabindex="0">${outcome.content}</pre>`;
    if (outcome) return html`<p role="status">${t("toolRuns", name)}</p><button type="button" onClick=${outcome.stop}>${t("cancel")}</button>`;
    if (!runner) {
      return html`<label>${t("resultOf", name)}
        <textarea rows="2" value=${texts[i]} onInput=${(/** @type {any} */ event) => setTexts(texts.map((old, j) => (j === i ? event.target.value : old)))}></textarea>
      </label>`;
    }
    const deny = () => {
      answer(message, i);
      actions.proceed(message);
    };
    return html`<p role="status">${t("mayRun", name, runner.where)}</p><div class="row">
      <button type="button" class="strong" onClick=${() => actions.run(message, i, runner, false)}>${t("run")}</button>
      <button type="button" onClick=${() => actions.run(message, i, runner, true)}>${t("runAlways")}</button>
      <button type="button" onClick=${deny}>${t("deny")}</button>
    </div>`;
  };
  return html`<form class="results" onSubmit=${(/** @type {Event} */ event) => {
    event.preventDefault();
    for (const i of unknown) answer(message, i, texts[i]);
    actions.proceed(message);
  }}>
    ${calls.map((call, i) => html`<div key=${call.id} role="group" aria-label=${call.name}>${state(i)}</div>`)}
    ${unknown.length > 0 && html`<div class="row end"><button type="submit" class="strong">${t("sendResults")}</button></div>`}
  </form>`;
};

/** @param {{message: Message, progress: number}} props */
const Waiting = ({ message, progress }) => {
  if (message.content || message.reasoning || message.calls?.length) return null;
  return html`<p class="waiting" role="status">
    <span class="pulse" aria-hidden="true"></span>
    ${progress > 0 && progress < 1 ? `${t("prefilling")} ${percent(progress)}` : t("prefilling")}
  </p>`;
};

/** @param {{message: Message, last: boolean, actions: Actions}} props */
const Outcome = ({ message, last, actions }) => {
  if (message.error) {
    return html`<p class="failure" role="alert">${message.error}
      ${last && html`<button type="button" onClick=${() => actions.again(message)}>${t("retry")}</button>`}
    </p>`;
  }
  const said = { length: t("cut"), stopped: t("stopped"), lost: t("lostAnswer") }[message.finish ?? ""];
  return said ? html`<p class="quiet outcome">${said}</p>` : null;
};

/** @param {{message: Message, siblings: Message[], actions: Actions}} props */
const Versions = ({ message, siblings, actions }) => {
  if (siblings.length < 2) return null;
  const at = siblings.findIndex((one) => one.id === message.id);
  return html`<span class="versions">
    <${IconButton} icon="left" label=${t("before")} disabled=${at < 1} onClick=${() => actions.show(siblings[at - 1])} />
    <span aria-label=${t("versions", at + 1, siblings.length)}>${at + 1}/${siblings.length}</span>
    <${IconButton} icon="right" label=${t("after")} disabled=${at >= siblings.length - 1} onClick=${() => actions.show(siblings[at + 1])} />
  </span>`;
};

/** @param {{text: string}} props */
const Copy = ({ text }) => {
  const [done, setDone] = useState(false);
  const copy = async () => {
    setDone(await copyText(text));
    setTimeout(() => setDone(false), 1500);
  };
  return html`<${IconButton} icon="copy" label=${done ? t("copied") : t("copy")} tone=${done ? "done" : ""} onClick=${copy} />`;
};

/** @param {{message: Message}} props */
const Speed = ({ message }) => {
  const timings = message.timings;
  if (!timings || message.role !== "assistant") return null;
  const prompt = timings.cache_n + timings.prompt_n;
  return html`<span class="speed">
    ${timings.predicted_n > 1 && html`<span>${t("perSecond", short(timings.predicted_per_second))}</span>`}
    ${timings.first_ms !== undefined && html`<span>${t("firstToken", seconds(timings.first_ms / 1000))}</span>`}
    ${prompt > 0 && html`<span class="wide">${t("cached", number(timings.cache_n), number(prompt))}</span>`}
  </span>`;
};

/** Files that a message will have: each is a button that removes it.
 *  @param {{files: import("./store.js").Attached[], onChange: (files: import("./store.js").Attached[]) => void}} props */
export const AttachedFiles = ({ files, onChange }) => files.map((file) => html`<button type="button" class="attached" key=${file.url}
  title=${t("detach")} aria-label=${`${t("detach")}: ${file.name}`} onClick=${() => onChange(files.filter((one) => one !== file))}>
  ${file.kind === "image" ? html`<img src=${file.url} alt="" />` : file.name}</button>`);

/** @param {{message: Message, actions: Actions, onEnd: () => void}} props */
const Editor = ({ message, actions, onEnd }) => {
  const [text, setText] = useState(message.content);
  const [attached, setAttached] = useState(message.attached ?? []);
  const field = useRef(/** @type {HTMLTextAreaElement | null} */ (null));
  useEffect(() => field.current?.focus(), []);
  const user = message.role === "user";
  return html`<form class="editor" onSubmit=${(/** @type {Event} */ event) => {
    event.preventDefault();
    onEnd();
    if (user) actions.branch(message, text.trim(), attached);
    else actions.correct(message, text);
  }}>
    <textarea ref=${field} dir="auto" rows=${Math.min(14, text.split("\n").length + 2)} value=${text} aria-label=${t("edit")}
      onInput=${(/** @type {any} */ event) => setText(event.target.value)}
      onKeyDown=${(/** @type {KeyboardEvent} */ event) => event.key === "Escape" && onEnd()}></textarea>
    <div class="row end">
      <${AttachedFiles} files=${attached} onChange=${setAttached} /><span class="stretch"></span>
      <button type="button" onClick=${onEnd}>${t("cancel")}</button>
      <button type="submit" class="strong" disabled=${user && !text.trim() && !attached.length}>${user ? t("ask") : t("save")}</button>
    </div>
  </form>`;
};
