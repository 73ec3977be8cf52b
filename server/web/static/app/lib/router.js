// Each view's URL differs only after the #, so the server and proxies only need to serve files.
import { computed, signal } from "./dom.js";

const hash = signal(location.hash);
addEventListener("hashchange", () => (hash.value = location.hash));

/** The current route: the view's name and its argument. */
export const place = computed(() => {
  const [view, ...rest] = hash.value.replace(/^#\/?/, "").split("/");
  return { view: view || "chat", rest: rest.map(decoded) };
});

/** @param {string} part of an address; somebody may have typed it */
function decoded(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

/** @param {...string} parts half a surrogate pair, which has no URL, is replaced */
export const link = (...parts) => `#/${parts.map((part) => encodeURIComponent(part.replace(/\p{Surrogate}/gu, "\ufffd"))).join("/")}`;

/** @param {...string} parts */
export function go(...parts) {
  location.hash = link(...parts);
}
