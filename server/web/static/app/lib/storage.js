// Short values that this browser stores besides the chats. Without storage (blocked cookies, a full disk) they last until
// the page is closed.

/** @type {Map<string, string>} */
const here = new Map();

/** @param {string} name @returns {string} "" = nothing */
export function kept(name) {
  try {
    return localStorage.getItem(name) ?? here.get(name) ?? "";
  } catch {
    return here.get(name) ?? "";
  }
}

/** Hear what another tab keeps under a name. @param {string} name @param {(value: string) => void} heard */
export function onKept(name, heard) {
  addEventListener("storage", ({ key, newValue }) => key === name && heard(newValue ?? ""));
}

/** @param {string} name @param {string} value "" = forget it */
export function keep(name, value) {
  here.set(name, value);
  try {
    if (value) localStorage.setItem(name, value);
    else localStorage.removeItem(name);
  } catch {
    // the value lasts until the page is closed
  }
}
