// The frame: navigation, model picker, API key, and the message shown while the server cannot be reached.
import { address, apiKey, connection, declineKey, json, keyMissing, keyWanted, onKeyElsewhere, sendable, useKey } from "./lib/api.js";
import { classes, html, render, signal, useEffect, useErrorBoundary, useRef, useState } from "./lib/dom.js";
import { Icon, IconButton } from "./lib/icons.js";
import { config, loadConfig } from "./lib/config.js";
import { follow } from "./lib/models.js";
import { link, place } from "./lib/router.js";
import { keep, kept } from "./lib/storage.js";
import { language, speak, t } from "./lib/texts.js";
import { ChatView } from "./views/chat/view.js";

/** @type {[name: any, load: () => Promise<any>][]} */
const VIEWS = [
  ["chat", async () => ChatView],
  ["prompt", async () => (await import("./views/prompt/view.js")).PromptView],
  ["tokens", async () => (await import("./views/tokens/view.js")).TokensView],
  ["engine", async () => (await import("./views/engine/view.js")).EngineView],
  ["requests", async () => (await import("./views/requests/view.js")).RequestsView],
  ["metrics", async () => (await import("./views/metrics/view.js")).MetricsView],
  ["models", async () => (await import("./views/models/view.js")).ModelsView],
  ["bench", async () => (await import("./views/bench/view.js")).BenchView],
];

const THEME = "llamapool.theme";
const theme = signal(kept(THEME));
theme.subscribe((name) => {
  if (name) document.documentElement.dataset.theme = name;
  else delete document.documentElement.dataset.theme;
});

function toggleTheme() {
  const dark = theme.value ? theme.value === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  theme.value = dark ? "light" : "dark";
  keep(THEME, theme.value);
}

/** The modules of the views that were opened. */
const loaded = signal(/** @type {Record<string, any>} */ ({ chat: ChatView }));

const Frame = () => {
  const { view } = place.value;
  const known = VIEWS.find(([name]) => name === view) ?? VIEWS[0];
  const Shown = loaded.value[known[0]];
  useEffect(() => {
    document.title = `${t(known[0])} · Llamapool`;
    const at = document.querySelector(".views [aria-current]");
    const bar = at?.closest(".views");
    if (at instanceof HTMLElement && bar && bar.scrollWidth > bar.clientWidth) bar.scrollLeft = at.offsetLeft - bar.clientWidth / 2; // on a phone
    if (!loaded.value[known[0]]) {
      known[1]().then(
        (made) => (loaded.value = { ...loaded.value, [known[0]]: made }),
        () => json("health").then(() => (outdated.value = true), () => {}), // a failed check means that the server is lost, which the frame shows
      );
    }
  }, [known[0], language.value, connection.value]);
  return html`
    <a class="skip" href="#main" onClick=${toMain}>${t("skip")}</a>
    <nav class="views" aria-label=${t("views")}>
      <a class="brand" href=${link("chat")} aria-label="Llamapool"><img src="favicon.svg" alt="" width="28" height="28" /></a>
      <ul>
        ${VIEWS.map(
          ([name]) => html`<li>
            <a href=${link(name)} aria-current=${name === known[0] ? "page" : undefined}>
              <${Icon} name=${name} /><span>${t(name)}</span>
            </a>
          </li>`,
        )}
      </ul>
      <div class="views-foot">
        <button type="button" class="language" onClick=${() => speak(language.value === "de" ? "en" : "de")}
          lang=${language.value === "de" ? "en" : "de"}>${t("language")}</button>
        ${(apiKey.value || keyMissing.value) && html`<${IconButton} icon="key" label=${t("keyForget")} onClick=${() => (keyWanted.value = true)} />`}
        <${IconButton} icon="theme" label=${t("theme")} onClick=${toggleTheme} />
      </div>
    </nav>
    <main id="main" class=${classes("view", `view-${known[0]}`)} tabindex="-1">
      <${Notices} />
      ${Shown ? html`<${Guarded} key=${known[0]} view=${Shown} />` : html`<p class="quiet" role="status">…</p>`}
    </main>
    ${keyWanted.value && html`<${KeyDialog} />`}
  `;
};

/** A view, or what to do where it failed: the frame stays. @param {{view: any}} props */
const Guarded = ({ view }) => {
  const [error, again] = useErrorBoundary((/** @type {unknown} */ fault) => console.error(fault));
  if (!error) return html`<${view} />`;
  return html`<div class="page"><div class="failure" role="alert">
    <p>${t("viewFailed")}</p><p class="code">${String(error)}</p>
    <p><button type="button" onClick=${again}>${t("retry")}</button></p>
  </div></div>`;
};

/** @param {Event} event */
function toMain(event) {
  event.preventDefault();
  document.getElementById("main")?.focus();
}

/** Whether the server now serves a different version of this page. */
const outdated = signal(false);

const Notices = () => html`<div class="notices" role="status" aria-live="polite">
  ${connection.value === "lost" && html`<p class="notice warn">${t("lost")}</p>`}
  ${keyMissing.value && !keyWanted.value &&
  html`<p class="notice warn">${t("keyTitle")}. <button type="button" onClick=${() => (keyWanted.value = true)}>${t("keyGive")}</button></p>`}
  ${outdated.value &&
  html`<p class="notice">${t("newVersion")} <button type="button" onClick=${() => location.reload()}>${t("reload")}</button></p>`}
</div>`;

const KeyDialog = () => {
  const box = useRef(/** @type {HTMLDialogElement | null} */ (null));
  const [key, setKey] = useState(apiKey.value);
  const [wrong, setWrong] = useState(Boolean(apiKey.value) && keyMissing.value);
  useEffect(() => {
    const dialog = box.current;
    dialog?.showModal();
    return () => {
      dialog?.close(); // closed before removal, so that the focus returns
      requestAnimationFrame(() => {
        const field = document.querySelector(".composer textarea");
        if (document.activeElement === document.body && field instanceof HTMLElement) field.focus();
      });
    };
  }, []);
  /** @param {Event} event */
  const use = (event) => {
    event.preventDefault();
    if (!sendable(key.trim())) return setWrong(true);
    useKey(key.trim());
    restart();
  };
  return html`<dialog ref=${box} aria-labelledby="key-title" onCancel=${declineKey}>
    <form onSubmit=${use}>
      <h2 id="key-title">${t("keyTitle")}</h2>
      ${wrong && html`<p class="wrong" role="alert">${t("keyWrong")}</p>`}
      <label>${t("keyLabel")}
        <input type="password" autocomplete="current-password" value=${key}
          onInput=${(/** @type {any} */ event) => setKey(event.target.value)} />
      </label>
      <p class="quiet">${t("keyAbout")}</p>
      <div class="row end"><button type="button" onClick=${declineKey}>${t("notNow")}</button><button type="submit" class="strong">${t("keyUse")}</button></div>
    </form>
  </dialog>`;
};

let following = new AbortController();

/** Follow the models again, for example with another key. */
function restart() {
  following.abort();
  following = new AbortController();
  void follow(following.signal);
  loadConfig().catch(() => {});
}

config.subscribe(({ settings }) => {
  const named = String(settings.theme ?? "");
  if (!kept(THEME) && ["light", "dark"].includes(named)) theme.value = named;
});

/** The version in this module's URL. */
const OWN = new URL(import.meta.url).pathname.split("/").at(-3);

connection.subscribe((state) => {
  if (state !== "ok") return;
  fetch(address("_app/version.json"))
    .then((reply) => reply.json())
    .then(({ version }) => (outdated.value = version !== OWN))
    .catch(() => {});
});

/** Poll the server while it cannot be reached. */
setInterval(() => {
  if (connection.value === "lost") json("health").catch(() => {});
}, 3000);

onKeyElsewhere(restart);

/** Preload the other views after this one, so that they open while the server cannot be reached. */
addEventListener("load", () => setTimeout(() => VIEWS.forEach(([, load]) => void load().catch(() => {})), 500));

const root = document.getElementById("page");
if (root) render(html`<${Frame} />`, root);
restart();
