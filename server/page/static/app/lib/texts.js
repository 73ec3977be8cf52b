// Every word of the page, in English and German. `{0}` is the first argument.
import { signal } from "./dom.js";

const LANGUAGE = "llamapool.language";
const LANGUAGES = ["en", "de"];
const preferred = (navigator.language || "en").slice(0, 2);
/** "en" or "de". */
export const language = signal(localStorage.getItem(LANGUAGE) ?? (LANGUAGES.includes(preferred) ? preferred : "en"));
document.documentElement.lang = language.value;

/** @param {string} code */
export function speak(code) {
  language.value = code;
  localStorage.setItem(LANGUAGE, code);
  document.documentElement.lang = code;
}

/** @type {Record<string, [string, string]>} */
const TEXTS = {
  // frame
  chat: ["Chat", "Chat"],
  tokens: ["Tokens", "Tokens"],
  prompt: ["Prompt", "Prompt"],
  engine: ["Engine", "Maschine"],
  models: ["Models", "Modelle"],
  metrics: ["Metrics", "Messwerte"],
  requests: ["Requests", "Anfragen"],
  bench: ["Bench", "Messung"],
  views: ["Views", "Ansichten"],
  skip: ["Skip to content", "Zum Inhalt"],
  theme: ["Light or dark", "Hell oder dunkel"],
  language: ["Deutsch", "English"],
  lost: ["The server can't be reached. Trying again…", "Der Server ist nicht erreichbar. Neuer Versuch…"],
  newVersion: ["The server has a newer page.", "Der Server hat eine neuere Seite."],
  reload: ["Reload", "Neu laden"],
  keyTitle: ["This server wants an API key", "Dieser Server verlangt einen API-Schlüssel"],
  keyAbout: ["It is kept in this browser only.", "Er bleibt nur in diesem Browser."],
  keyLabel: ["API key", "API-Schlüssel"],
  keyWrong: ["The server does not know this key.", "Diesen Schlüssel kennt der Server nicht."],
  keyUse: ["Use it", "Verwenden"],
  keyForget: ["API key", "API-Schlüssel"],
  model: ["Model", "Modell"],
  noModels: ["No model is configured.", "Kein Modell ist eingerichtet."],
  loading: ["loading", "lädt"],
  loaded: ["ready", "bereit"],
  unloaded: ["not loaded", "nicht geladen"],
  sleeping: ["sleeping", "schläft"],
  downloading: ["downloading", "wird geholt"],
  failed: ["failed", "fehlgeschlagen"],
  draining: ["stopping", "endet"],
  load: ["Load", "Laden"],
  unload: ["Unload", "Entladen"],
  cancel: ["Cancel", "Abbrechen"],
  close: ["Close", "Schließen"],
  // chat
  newChat: ["New chat", "Neuer Chat"],
  chats: ["Chats", "Chats"],
  searchChats: ["Search chats", "Chats durchsuchen"],
  exportChats: ["Export all chats", "Alle Chats sichern"],
  importChats: ["Import chats", "Chats einlesen"],
  importFailed: ["That is no file of exported chats.", "Das ist keine Datei mit gesicherten Chats."],
  removeChat: ["Delete chat", "Chat löschen"],
  nothingFound: ["Nothing found", "Nichts gefunden"],
  notKept: ["This browser keeps nothing: chats end with the page.", "Dieser Browser merkt sich nichts: Chats enden mit der Seite."],
  greeting: ["What shall we talk about?", "Worüber sprechen wir?"],
  greetingAbout: [
    "Everything stays between this browser and your server.",
    "Alles bleibt zwischen diesem Browser und deinem Server.",
  ],
  message: ["Message", "Nachricht"],
  writeMessage: ["Write a message", "Nachricht schreiben"],
  send: ["Send", "Senden"],
  stop: ["Stop", "Anhalten"],
  edit: ["Edit", "Bearbeiten"],
  save: ["Save", "Sichern"],
  ask: ["Send as new branch", "Als neuen Zweig senden"],
  again: ["Answer again", "Neu beantworten"],
  goOn: ["Continue", "Fortsetzen"],
  copy: ["Copy", "Kopieren"],
  copied: ["Copied", "Kopiert"],
  before: ["Previous version", "Vorige Fassung"],
  after: ["Next version", "Nächste Fassung"],
  versions: ["Version {0} of {1}", "Fassung {0} von {1}"],
  you: ["You", "Du"],
  thoughts: ["Thoughts", "Gedanken"],
  thinking: ["Thinking…", "Denkt nach…"],
  reading: ["Reading the prompt", "Liest den Prompt"],
  calls: ["Calls {0}", "Ruft {0} auf"],
  result: ["Result", "Ergebnis"],
  resultOf: ["Result of {0}", "Ergebnis von {0}"],
  sendResults: ["Send results", "Ergebnisse senden"],
  stopped: ["Stopped.", "Angehalten."],
  cut: ["The limit of tokens ended this answer.", "Die Token-Grenze hat diese Antwort beendet."],
  lostAnswer: ["The page was left before the end of this answer.", "Die Seite wurde vor dem Ende dieser Antwort verlassen."],
  retry: ["Try again", "Noch einmal"],
  earlier: ["Earlier messages", "Frühere Nachrichten"],
  toNewest: ["To the newest message", "Zur neuesten Nachricht"],
  seePrompt: ["See the prompt", "Prompt ansehen"],
  seeTokens: ["See the tokens", "Tokens ansehen"],
  perSecond: ["{0} tokens/s", "{0} Tokens/s"],
  firstToken: ["first after {0}", "erstes nach {0}"],
  cached: ["{0} of {1} from cache", "{0} von {1} aus dem Cache"],
  context: ["Context", "Kontext"],
  contextOf: ["{0} of {1} tokens", "{0} von {1} Tokens"],
  errorLost: ["The connection was lost.", "Die Verbindung ist abgerissen."],
  errorKey: ["The server wants another API key.", "Der Server verlangt einen anderen API-Schlüssel."],
  errorFull: ["The queue is full. Try again in {0} s.", "Die Warteschlange ist voll. Neuer Versuch in {0} s."],
  errorModel: ["The model can't answer now.", "Das Modell kann gerade nicht antworten."],
  // settings
  settings: ["Settings", "Einstellungen"],
  system: ["System prompt", "System-Prompt"],
  sampling: ["Sampling", "Auswahl"],
  temperature: ["Temperature", "Temperatur"],
  topP: ["Top-p", "Top-p"],
  topK: ["Top-k", "Top-k"],
  minP: ["Min-p", "Min-p"],
  maxTokens: ["Most tokens", "Höchstens Tokens"],
  seed: ["Seed", "Startwert"],
  thinkingMode: ["Thoughts", "Gedanken"],
  auto: ["as the model does", "wie das Modell"],
  on: ["on", "an"],
  off: ["off", "aus"],
  shape: ["Shape of the answer", "Form der Antwort"],
  schema: ["JSON Schema", "JSON Schema"],
  grammar: ["Grammar (GBNF)", "Grammatik (GBNF)"],
  tools: ["Tools (JSON, as OpenAI's)", "Werkzeuge (JSON, wie bei OpenAI)"],
  asServer: ["server's", "vom Server"],
};

/** @param {string} key @param {...(string | number)} values */
export function t(key, ...values) {
  const text = TEXTS[key]?.[language.value === "de" ? 1 : 0] ?? key;
  return values.length ? text.replace(/\{(\d)\}/g, (_, i) => String(values[Number(i)])) : text;
}

/** For tests: whether each entry has both. */
export const complete = () => Object.values(TEXTS).every(([en, de]) => en && de);
