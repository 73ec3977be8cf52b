// The libraries of every component: Preact, signals, and htm's templates, which need no build step.
import { h, render } from "../../vendor/preact.js";
import htm from "../../vendor/htm.js";

export { render };
export { useEffect, useErrorBoundary, useLayoutEffect, useMemo, useRef, useState } from "../../vendor/preact-hooks.js";
export { batch, computed, signal } from "../../vendor/signals.js";

/** Render a template as a Preact tree: html`<p class=${name}>${text}</p>`. */
export const html = htm.bind(h);

/**
 * Join class names, leaving out those whose condition is false.
 * @param {...(string | false | null | undefined)} names
 */
export const classes = (...names) => names.filter(Boolean).join(" ");
