// What every component is written with: Preact, signals, and htm's templates, which need no build.
import { h, render } from "../../vendor/preact.js";
import htm from "../../vendor/htm.js";

export { render };
export { useEffect, useErrorBoundary, useLayoutEffect, useMemo, useRef, useState } from "../../vendor/preact-hooks.js";
export { batch, computed, signal } from "../../vendor/signals.js";

/** A template as a tree of Preact's: html`<p class=${name}>${text}</p>`. */
export const html = htm.bind(h);

/**
 * Class names of which some depend on conditions.
 * @param {...(string | false | null | undefined)} names
 */
export const classes = (...names) => names.filter(Boolean).join(" ");
