// One event stream for all visible tabs: a browser opens at most six connections to a server for all tabs together.
import { address } from "./api.js";

const HELLO = "hello";

/**
 * Run `work` in one tab at a time and deliver its events to all tabs. Without the Locks API (plain HTTP from another
 * machine) each tab runs it.
 * @template T
 * @param {string} name @param {AbortSignal} signal until when this tab takes part
 * @param {(say: (said: any) => void) => Promise<T>} work ends with `signal`
 * @param {(said: any) => void} heard
 * @param {() => any[]} [known] what a tab that opens later receives
 * @returns {Promise<T | undefined>} what the work gave, if it was done here
 */
export async function together(name, signal, work, heard, known = () => []) {
  if (!navigator.locks || typeof BroadcastChannel === "undefined") return work(heard);
  const place = `llamapool.${name} ${address("").pathname}`;
  const others = new BroadcastChannel(place);
  let here = false;
  others.onmessage = ({ data }) => {
    if (data !== HELLO) heard(data);
    else if (here) for (const said of known()) others.postMessage(said);
  };
  others.postMessage(HELLO);
  const done = () => {
    here = true;
    return work((said) => {
      others.postMessage(said);
      heard(said);
    });
  };
  try {
    return await navigator.locks.request(place, { signal }, done);
  } catch (error) {
    if (signal.aborted) return undefined;
    if (here) throw error;
    return work(heard); // the browser denies locks, for example with blocked cookies
  } finally {
    others.close();
  }
}
