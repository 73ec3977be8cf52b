// The last lines of the server's log, polled while they are visible.
import { ApiError, json } from "../../lib/api.js";
import { classes, html, useEffect, useState } from "../../lib/dom.js";
import { clock } from "../../lib/format.js";
import { t } from "../../lib/texts.js";

/** @typedef {{number: number, at: number, level: string, origin: string, text: string}} Line */

const EVERY_MS = 2000;
const KEPT = 500;

export const ServerLog = () => {
  const [shown, setShown] = useState(false);
  const [lines, setLines] = useState(/** @type {Line[]} */ ([]));
  const [trouble, setTrouble] = useState("");
  useEffect(() => {
    if (!shown) return undefined;
    let last = 0;
    let asking = false;
    const ask = async () => {
      if (asking || document.hidden) return;
      asking = true;
      try {
        const found = (await json(`page/log?after=${last}`)).lines;
        last = found.at(-1)?.number ?? last;
        if (found.length) setLines((old) => [...old, ...found].slice(-KEPT));
        setTrouble("");
      } catch (error) {
        setTrouble(error instanceof ApiError ? error.message : String(error));
      }
      asking = false;
    };
    setLines([]);
    void ask();
    const timer = setInterval(ask, EVERY_MS);
    return () => clearInterval(timer);
  }, [shown]);
  return html`<section aria-labelledby="log-title">
    <h2 id="log-title"><button type="button" aria-expanded=${shown} onClick=${() => setShown(!shown)}>${t("log")}</button></h2>
    ${trouble && html`<p class="failure" role="alert">${trouble}</p>`}
    ${shown && html`<div class="log" tabindex="0" role="log" aria-labelledby="log-title">${[...lines].reverse().map(
      (line) => html`<div key=${line.number} class=${classes("EC".includes(line.level) && "wrong", line.level === "W" && "warned")}>${
        clock(line.at * 1000)} ${line.level} ${line.origin}: ${line.text}</div>`)}</div>`}
  </section>`;
};
