// The libraries of every component: Preact, signals, and htm's templates, which need no build step.
import { h, render } from "../../vendor/preact.js";
import htm from "../../vendor/htm.js";
import { useEffect, useRef } from "../../vendor/preact-hooks.js";

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

/**
 * Properties of a `<dialog>` that is modal while its component is mounted. Close it by calling `onClose`, not `close()`:
 * browsers report a close a frame later, and the dialog may have been opened again by then.
 * @param {() => void} onClose
 */
export function useModal(onClose) {
  const ref = useRef(/** @type {HTMLDialogElement | null} */ (null));
  useEffect(() => {
    const dialog = ref.current;
    dialog?.showModal();
    return () => dialog?.close(); // closed before removal, so that the focus returns
  }, []);
  return { ref, onClose: () => ref.current && onClose() };
}
