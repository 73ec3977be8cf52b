// Page visibility. A browser opens at most six connections to a server for all tabs together, so a hidden tab keeps none
// open for live events.

/** The longest pause before a broken or unauthorized request is retried, in milliseconds. */
export const LONGEST_PAUSE = 8000;

/** Wait, at most until `stop`. @param {number} milliseconds @param {AbortSignal} stop @returns {Promise<void>} */
export function pause(milliseconds, stop) {
  return new Promise((resolve) => {
    const done = () => {
      clearTimeout(timer);
      stop.removeEventListener("abort", done);
      resolve();
    };
    const timer = setTimeout(done, milliseconds);
    stop.addEventListener("abort", done);
    if (stop.aborted) done();
  });
}

/**
 * Wait until the page is visible, or until `stop`.
 * @param {AbortSignal} stop
 * @returns {Promise<AbortSignal>} aborted as soon as the page is hidden, or with `stop`
 */
export function whileSeen(stop) {
  const hidden = new AbortController();
  let visible = false;
  return new Promise((resolve) => {
    const look = () => {
      if (document.hidden && !visible && !stop.aborted) return;
      visible = true;
      if (document.hidden || stop.aborted) {
        document.removeEventListener("visibilitychange", look);
        stop.removeEventListener("abort", look);
        hidden.abort();
      }
      resolve(hidden.signal);
    };
    document.addEventListener("visibilitychange", look);
    stop.addEventListener("abort", look);
    look();
  });
}
