// The strings of the web UI, in English and German.
import { signal } from "./dom.js";
import { keep, kept } from "./storage.js";

const LANGUAGE = "llamapool.language";
const LANGUAGES = ["en", "de"];
const preferred = (navigator.language || "en").slice(0, 2);
/** "en" or "de". */
export const language = signal(kept(LANGUAGE) || (LANGUAGES.includes(preferred) ? preferred : "en"));
document.documentElement.lang = language.value;

/** @param {string} code */
export function speak(code) {
  language.value = code;
  keep(LANGUAGE, code);
  document.documentElement.lang = code;
}

/** One string per line: name, English | German. `{0}` is the first argument; `{0|token|tokens}` is the first word if it is 1. */
const WORDS = `
# frame
chat: Chat | Chat
tokens: Tokens | Tokens
prompt: Prompt | Prompt
engine: Engine | Engine
models: Models | Modelle
metrics: Metrics | Metriken
requests: Requests | Anfragen
bench: Benchmark | Benchmark
views: Views | Ansichten
skip: Skip to content | Zum Inhalt
theme: Light or dark | Hell oder dunkel
language: Deutsch | English
lost: The server cannot be reached. Retrying… | Der Server ist nicht erreichbar. Neuer Versuch…
newVersion: The server has a newer version of this page. | Der Server hat eine neuere Version dieser Seite.
reload: Reload | Neu laden
keyTitle: This server requires an API key | Dieser Server verlangt einen API-Schlüssel
keyAbout: The operator of the server creates keys with llamapool keys add FILE NAME (--keys-file), or sets one with --api-key. The key is stored in this browser only. | Der Betreiber des Servers erstellt Schlüssel mit llamapool keys add DATEI NAME (--keys-file) oder setzt einen mit --api-key. Der Schlüssel wird nur in diesem Browser gespeichert.
keyLabel: API key | API-Schlüssel
keyWrong: The server rejected this key. | Der Server hat diesen Schlüssel abgelehnt.
keyUse: Use it | Verwenden
keyForget: API key | API-Schlüssel
keyGive: Enter a key | Schlüssel eingeben
notNow: Not now | Jetzt nicht
viewFailed: This view failed. Stored data is not lost. | Diese Ansicht ist fehlgeschlagen. Gespeicherte Daten sind nicht verloren.
model: Model | Modell
noModels: No model is configured. Start the server with -m FILE, -hf OWNER/NAME or a configuration file. | Es ist kein Modell konfiguriert. Starte den Server mit -m DATEI, -hf OWNER/NAME oder einer Konfigurationsdatei.
loading: loading | wird geladen
loaded: ready | bereit
unloaded: not loaded | nicht geladen
sleeping: sleeping | im Ruhezustand
downloading: downloading | wird heruntergeladen
failed: failed | fehlgeschlagen
draining: draining | wird entladen
load: Load | Laden
unload: Unload | Entladen
cancel: Cancel | Abbrechen
close: Close | Schließen

# chat
newChat: New chat | Neuer Chat
chats: Chats | Chats
searchChats: Search chats | Chats durchsuchen
exportChats: Export all chats | Alle Chats exportieren
importChats: Import chats | Chats importieren
importFailed: Import failed: {0} | Import fehlgeschlagen: {0}
importNoJson: the file is not JSON ({0}) | die Datei ist kein JSON ({0})
importNoChats: the file is not an export of chats from this page | die Datei ist kein Chat-Export dieser Seite
importNoChat: chat {0} of the file is incomplete | Chat {0} der Datei ist unvollständig
importNoRoom: the browser has no storage left | der Speicher des Browsers ist voll
serverSave: Save all chats on the server | Alle Chats auf dem Server speichern
serverSaveSure: Save all chats in the server's file store, in place of those saved before? On a server without API keys, every client can read them. | Alle Chats im Dateispeicher des Servers speichern und die zuvor gespeicherten ersetzen? Auf einem Server ohne API-Schlüssel kann jeder Client sie lesen.
serverSaved: The chats are saved on the server. | Die Chats sind auf dem Server gespeichert.
serverLoad: Load chats from the server | Chats vom Server laden
serverNoChats: no chats are stored there | dort sind keine Chats gespeichert
serverFailed: The server's file store: {0} | Dateispeicher des Servers: {0}
compact: Continue with a summary | Mit einer Zusammenfassung fortfahren
compactAsk: Summarize our conversation so far, with all facts and decisions that are needed to continue it. | Fasse unser bisheriges Gespräch zusammen, mit allen Fakten und Entscheidungen, die man zum Weiterführen braucht.
title: Title | Titel
titleByModel: Let the model write a title | Titel vom Modell schreiben lassen
titleAsk: Write a title of at most six words for our conversation. Reply with the title only. | Schreibe einen Titel mit höchstens sechs Wörtern für unser Gespräch. Antworte nur mit dem Titel.
removeChat: Delete chat | Chat löschen
nothingFound: No matches | Keine Treffer
notKept: The browser's storage is full. New chats are lost when the page is closed; export those that you need. | Der Speicher des Browsers ist voll. Neue Chats gehen beim Schließen der Seite verloren; exportiere, was du brauchst.
greeting: How can I help? | Wie kann ich helfen?
greetingAbout: Messages are sent to your server only. | Nachrichten gehen nur an deinen Server.
ideas: Examples | Beispiele
ideaSky: Why is the sky blue? | Warum ist der Himmel blau?
ideaCode: Write a Python function that adds two numbers. | Schreibe eine Python-Funktion, die zwei Zahlen addiert.
ideaStory: Write a short story about a llama. | Schreibe eine kurze Geschichte über ein Lama.
message: Message | Nachricht
writeMessage: Write a message | Nachricht schreiben
send: Send | Senden
stop: Stop | Stopp
attach: Attach a file | Datei anhängen
notAttached: Not attached, because the model does not take such files or they are empty: {0} | Nicht angehängt, weil das Modell solche Dateien nicht annimmt oder sie leer sind: {0}
detach: Remove | Entfernen
mic: Record audio | Audio aufnehmen
micStop: Stop recording | Aufnahme beenden
micFailed: The microphone cannot be used: {0} | Das Mikrofon kann nicht verwendet werden: {0}
diagramSource: Source | Quelltext
edit: Edit | Bearbeiten
save: Save | Speichern
ask: Send as new branch | Als neuen Zweig senden
again: Regenerate | Neu generieren
goOn: Continue | Fortsetzen
copy: Copy | Kopieren
copied: Copied | Kopiert
before: Previous version | Vorherige Version
after: Next version | Nächste Version
versions: Version {0} of {1} | Version {0} von {1}
you: You | Du
reasoning: Reasoning | Reasoning
thinking: Reasoning… | Reasoning…
prefilling: Prefill | Prefill
calls: Calls {0} | Aufruf von {0}
result: Result | Ergebnis
resultOf: Result of {0} | Ergebnis von {0}
sendResults: Send results | Ergebnisse senden
stopped: Stopped. | Gestoppt.
answerDone: The answer is complete. | Die Antwort ist vollständig.
removeChatSure: Delete the chat “{0}”? | Den Chat „{0}“ löschen?
cut: The token limit ended this answer. | Die Antwort endete am Token-Limit.
lostAnswer: The page was closed before this answer was complete. | Die Seite wurde geschlossen, bevor die Antwort vollständig war.
retry: Retry | Erneut versuchen
earlier: Earlier messages | Frühere Nachrichten
toNewest: To the newest message | Zur neuesten Nachricht
seePrompt: Show the prompt | Prompt anzeigen
seeTokens: Show the tokens | Tokens anzeigen
perSecond: {0} tokens/s | {0} Tokens/s
firstToken: first token after {0} | erstes Token nach {0}
cached: {0} of {1} cached | {0} von {1} aus dem Cache
context: Context | Kontext
contextOf: {0} of {1} tokens | {0} von {1} Tokens
errorLost: The connection was lost. | Die Verbindung wurde unterbrochen.
errorKey: The server requires another API key. | Der Server verlangt einen anderen API-Schlüssel.
errorFull: The queue is full. Retry in {0} s. | Die Warteschlange ist voll. Neuer Versuch in {0} s.
errorCancelled: The operator of this server cancelled the request. | Der Betreiber dieses Servers hat die Anfrage abgebrochen.
errorModel: The model cannot answer now. | Das Modell kann gerade nicht antworten.

# settings
settings: Settings | Einstellungen
system: System prompt | System-Prompt
sampling: Sampling | Sampling
temperature: Temperature | Temperatur
topP: Top-p | Top-p
topK: Top-k | Top-k
minP: Min-p | Min-p
maxTokens: Maximum tokens | Maximale Tokens
seed: Seed | Seed
more: More | Mehr
moreUsed: More ({0} set) | Mehr ({0} gesetzt)
notANumber: {0}: “{1}” is not a number. | {0}: „{1}“ ist keine Zahl.
notAList: {0}: must be a JSON array. | {0}: muss ein JSON-Array sein.
reasoningMode: Reasoning | Reasoning
auto: model default | Modellstandard
on: on | an
off: off | aus
responseFormat: Response format | Antwortformat
schema: JSON Schema | JSON Schema
grammar: Grammar (GBNF) | Grammatik (GBNF)
tools: Tools (JSON, OpenAI format) | Tools (JSON, OpenAI-Format)
serverTools: Use the server's tools | Tools des Servers verwenden
run: Run | Ausführen
runAlways: Run, and do not ask again in this chat | Ausführen und in diesem Chat nicht mehr fragen
deny: Deny | Ablehnen
mayRun: The model calls {0} on {1}. | Das Modell ruft {0} auf {1} auf.
toolRuns: {0} is running… | {0} läuft…
thisServer: this server | diesem Server
mcpServers: MCP servers | MCP-Server
mcpUrl: URL of an MCP server (streamable HTTP) | URL eines MCP-Servers (Streamable HTTP)
mcpHeader: Header such as Authorization: Bearer …, stored in this browser only | Header wie Authorization: Bearer …, nur in diesem Browser gespeichert
mcpProxy: Connect through this server (--ui-mcp-proxy) | Über diesen Server verbinden (--ui-mcp-proxy)
mcpAdd: Add MCP server | MCP-Server hinzufügen
mcpRemove: Remove | Entfernen
mcpRetry: Reconnect | Neu verbinden
mcpNoUrl: Enter an http or https URL without a password. | Gib eine http- oder https-URL ohne Passwort ein.
mcpNoHeader: A header has the form Name: value. | Ein Header hat die Form Name: Wert.
mcpConnecting: connecting… | wird verbunden…
mcpTools: {0} of {1} tools | {0} von {1} Tools
mcpFailed: MCP server {0}: {1} | MCP-Server {0}: {1}
mcpBlocked: The operator of this server has not allowed this page to connect to {0} (--ui-connect). | Der Betreiber dieses Servers hat dieser Seite die Verbindung zu {0} nicht erlaubt (--ui-connect).
mcpUnreachable: The MCP server cannot be reached, redirects, or does not allow this page's origin (CORS). | Der MCP-Server ist nicht erreichbar, leitet um oder erlaubt den Ursprung dieser Seite nicht (CORS).
mcpTimeout: The MCP server did not reply within {0} s. | Der MCP-Server hat nicht innerhalb von {0} s geantwortet.
mcpNoReply: The connection ended without a reply. | Die Verbindung endete ohne Antwort.
resourceUnread: {0} has a type that cannot be attached: {1} | {0} hat einen Typ, der nicht angehängt werden kann: {1}
insertMcp: Insert from an MCP server | Von einem MCP-Server einfügen
insert: Insert | Einfügen
asServer: server default | Server-Standard

# engine
noEngine: No model is loaded. Load one under Models, or send it a message. | Es ist kein Modell geladen. Lade eines in der Ansicht Modelle oder sende ihm eine Nachricht.
looking: Loading… | Wird geladen…
slotsBusy: Slots in use | Slots belegt
waiting: Waiting | Wartend
running: Running | Laufend
generatedRate: Decode | Decode
promptRate: Prefill | Prefill
hitRate: Cache hit rate | Cache-Trefferquote
acceptanceRate: Acceptance rate | Akzeptanzrate
standing: Status | Status
preempted: Preempted | Verdrängt
preemptedAfter: preempted after {0} {0|token|tokens} | verdrängt nach {0} {0|Token|Tokens}
steps: Steps | Schritte
slots: Slots | Slots
slot: Slot {0} | Slot {0}
queue: Queue | Warteschlange
prefixes: Shared prefixes | Gemeinsame Präfixe
tiers: Cached KV states | KV-Zustände im Cache
adapters: LoRA adapters | LoRA-Adapter
adaptersAbout: Default scales of new requests that name no adapters. | Standardwerte für neue Anfragen, die keine Adapter angeben.
request: Request | Anfrage
priority: Priority | Priorität
promptTokens: Prompt | Prompt
waits: Waits | Wartet
andMore: and {0} more | und {0} weitere
lastStep: Last step: {0} decode, {1} draft and {2} prefill tokens, {3} | Letzter Schritt: {0} Decode-, {1} Draft- und {2} Prefill-Tokens, {3}
noSteps: No step since this page was opened | Kein Schritt, seit diese Seite geöffnet wurde
decode: Decode | Decode
drafts: Draft tokens | Draft-Tokens
phase_idle: idle | frei
phase_waiting: waiting | wartet
phase_prefill: prefill | Prefill
phase_decode: decode | Decode
phase_ended: ended | beendet
sharesWith: shares {0} tokens with slot {1} | {0} Tokens gemeinsam mit Slot {1}
sharesWithKept: shares {0} tokens with a cached KV state ({1}) | {0} Tokens gemeinsam mit einem KV-Zustand im Cache ({1})
idleFor: idle for {0} | frei seit {0}
neverUsed: not used yet | noch nie benutzt
slot_save: Save | Speichern
slot_restore: Restore | Wiederherstellen
slot_erase: Erase | Löschen
did_save: Slot {0} was saved to {1}. | Slot {0} wurde in {1} gespeichert.
did_restore: Slot {0} was restored from {1}. | Slot {0} wurde aus {1} wiederhergestellt.
did_erase: Slot {0} was erased. | Slot {0} wurde gelöscht.
part_queued: Queue | Warteschlange
part_placed: Placement | Platzierung
part_prefill: Prefill | Prefill
part_decode: Decode | Decode
promptOf: {0} prompt tokens, {1} cached | {0} Prompt-Tokens, {1} aus dem Cache
written: {0} generated | {0} generiert
nothingHeld: All slots are empty. Prefixes appear here after the first request. | Alle Slots sind leer. Nach der ersten Anfrage erscheinen hier die Präfixe.
sharedBy: {0} tokens in {1} | {0} Tokens in {1}
sharedFurther: {0} more in {1} | {0} weitere in {1}
tier_ram: RAM | RAM
tier_disk: Disk | Disk
tierHolds: {0} {0|state|states}, {1}, {2} {2|hit|hits} | {0} {0|Zustand|Zustände}, {1}, {2} Treffer
tierMap: {0} cached {0|state|states}; arrow keys select one | {0} {0|Zustand|Zustände} im Cache; Pfeiltasten wählen einen aus
tierState: {0} {0|token|tokens}, {1}, last used {2} ago, {3} {3|use|uses}, value {4} | {0} {0|Token|Tokens}, {1}, zuletzt vor {2}, {3}-mal benutzt, Wert {4}
tierLegend: Width: bytes. Pale: not used recently. Line: value of keeping the state, from its tokens and last use; the state with the lowest value per byte is evicted first. Uses count since the state was cached.
  | Breite: Bytes. Blass: länger nicht benutzt. Linie: Wert im Cache, aus Tokens und letzter Nutzung; der Zustand mit dem niedrigsten Wert je Byte wird zuerst verdrängt. Nutzungen zählen, seit der Zustand im Cache ist.
tierMore: {0} {0|token|tokens}, value {1} | {0} {0|Token|Tokens}, Wert {1}
uses: {0} {0|use|uses} | {0}-mal
asTable: Show as a table | Als Tabelle anzeigen
keptTokens: Tokens | Tokens
keptBytes: Size | Größe
keptAge: Last used | Zuletzt benutzt
keptUses: Uses | Nutzungen
keptWorth: Value | Wert

# models
parameters: Parameters | Parameter
contextFacts: {0} per slot, {1} trained | {0} je Slot, trainiert {1}
file: File | Datei
mem_weights: weights | Gewichte
mem_context: context | Kontext
mem_compute: compute buffers | Rechenpuffer
can_completion: text | Text
can_embedding: embeddings | Embeddings
can_rerank: reranking | Reranking
can_multimodal: multimodal | multimodal
removeModel: Delete | Löschen
removeModelSure: Delete the files of {0}? | Die Dateien von {0} löschen?
pull: Download | Herunterladen
pullLabel: Download a model from the hub | Modell vom Hub herunterladen
log: Server log | Server-Log
done: Actions on this page | Aktionen auf dieser Seite
pin: Pin | Anheften
pinAbout: Never evict this model for others | Dieses Modell nie für andere entladen
asked: requested | angefordert

# metrics, requests, bench
lastHour: the last hour | die letzte Stunde
noSamples: The first values appear after twenty seconds. | Die ersten Werte erscheinen nach zwanzig Sekunden.
firstTokens: Time to first token | Zeit bis zum ersten Token
gaps: Inter-token latency | Inter-Token-Latenz
tokenRates: Tokens per second | Tokens pro Sekunde
load_: Requests | Anfragen
memory: Memory | Speicher
median: median | Median
p95: 95th percentile | 95. Perzentil
filter: Filter | Filtern
noRequests: No request yet. Send one from Chat or any client. | Noch keine Anfrage. Sende eine aus dem Chat oder einem Client.
time: Time | Zeit
fromCache: Cached | Aus dem Cache
writtenTokens: Generated | Generiert
speed: Tokens/s | Tokens/s
course: Timeline | Zeitverlauf
outcome: Outcome | Ergebnis
outcome_done: done | fertig
outcome_cancelled: cancelled | abgebrochen
outcome_failed: failed | fehlgeschlagen
outcome_running: running | läuft
outcome_waiting: waiting | wartet
details: Details | Details
bodiesOff: Bodies are not stored; start the server with --log-bodies. | Bodys werden nicht gespeichert; starte den Server mit --log-bodies.
reply: Reply | Antwort
batches: Batches | Batches
batch: Batch | Batch
endpoint: Endpoint | Endpunkt
batchDone: {0} of {1} requests | {0} von {1} Anfragen
batch_in_progress: running | läuft
batch_finalizing: finalizing | wird abgeschlossen
batch_completed: completed | abgeschlossen
batch_failed: failed | fehlgeschlagen
batch_expired: expired | abgelaufen
batch_cancelling: cancelling | wird abgebrochen
batch_cancelled: cancelled | abgebrochen
batchFailed: {0} failed | {0} fehlgeschlagen
measure: Run | Starten
benchAbout: Runs llamapool bench on the server's machine. Prompts are new to every cache unless the scenario measures caching.
  | Führt llamapool bench auf der Maschine des Servers aus. Prompts sind in keinem Cache, außer wenn das Szenario den Cache misst.
scenarios: Scenarios | Szenarien
clientsAtOnce: Concurrent clients | Gleichzeitige Clients
lengths: Lengths | Längen
quick: short | kurz
whole: full, as on the command line | vollständig, wie auf der Kommandozeile
otherAddress: Compare with another URL | Mit einer anderen URL vergleichen
otherModel: Its model | Modell dort
otherKey: Its API key | API-Schlüssel dort
address_this: this server | dieser Server
address_other: other server | anderer Server
runsNow: {0} of {1}: {2}, {3} | {0} von {1}: {2}, {3}
figure: Metric | Metrik
scene_prefix: requests that share a prefix of 700 words | Anfragen mit einem gemeinsamen Präfix von 700 Wörtern
scene_long: a long prompt while other requests decode | ein langer Prompt, während andere Anfragen generieren
scene_conversations: 32 alternating conversations | 32 abwechselnde Gespräche

usage: Usage this month | Nutzung in diesem Monat
usageKey: Key | Schlüssel
budget_day: Budget today: {0} of {1} tokens used | Budget heute: {0} von {1} Tokens verbraucht
budget_month: Budget this month: {0} of {1} tokens used | Budget in diesem Monat: {0} von {1} Tokens verbraucht

# prompt, tokens
promptOwn: A message; an open chat is shown instead | Eine Nachricht; ein offener Chat wird stattdessen angezeigt
promptOfChat: The chat “{0}” up to its latest question | Der Chat „{0}“ bis zur letzten Frage
askOnce: Send | Senden
fromWhere: {0} of {1} tokens from {2} | {0} von {1} Tokens {2}
from_none: no cache | ohne Cache
from_slot: slot {0}, in place | aus Slot {0}, direkt
from_copy: slot {0}, copied | aus Slot {0}, kopiert
from_ram: RAM | aus dem RAM
from_disk: disk | von der Disk
recomputedBecause: {0} recomputed: {1} | {0} neu berechnet: {1}
recomputed_last: the last token is always computed, for the next one | das letzte Token wird immer berechnet, für das nächste
recomputed_off: the request disabled the prompt cache | die Anfrage hat den Prompt-Cache abgeschaltet
recomputed_scored: the request asked for log probabilities of the prompt | die Anfrage verlangt Log-Wahrscheinlichkeiten des Prompts
recomputed_nothing: no cached prefix | kein Präfix im Cache
recomputed_differs: the cached text differs from here | ab hier weicht der Text im Cache ab
recomputed_ends: the cached prefix ends here | hier endet das Präfix im Cache
recomputed_uncut: a longer state is cached, but it cannot be truncated and has no later checkpoint | ein längerer Zustand ist im Cache, lässt sich aber nicht kürzen und hat keinen späteren Checkpoint
recomputed_other: a longer prefix is cached for another LoRA set or cache namespace | ein längeres Präfix ist für einen anderen LoRA-Satz oder Cache-Namensraum vorhanden
recomputed_short: another slot has slightly more, which does not pay for a copy | ein anderer Slot hat etwas mehr, eine Kopie lohnt sich nicht
raw: Raw output | Rohausgabe
parsed: Parsed | Geparst
recomputedFrom: recomputed from here | ab hier neu berechnet
nTokens: {0} tokens | {0} Tokens
role_system: system | System
role_user: user | Benutzer
role_assistant: assistant | Assistent
role_tool: tool | Tool
role_template: template | Template
greedy: Greedy: always the most probable token | Greedy: immer das wahrscheinlichste Token
answerMe: Generate | Generieren
sure: probable | wahrscheinlich
unsure: improbable | unwahrscheinlich
perplexity: perplexity {0} | Perplexität {0}
instead: Alternatives | Alternativen
maskSize: Tokens that the grammar allows here: {0}. | Von der Grammatik hier erlaubte Tokens: {0}.
maskSizes: Number of tokens that the grammar allowed at each step, from {0} to {1} | Zahl der von der Grammatik erlaubten Tokens je Schritt, von {0} bis {1}
forbidden: Masked by the grammar | Von der Grammatik ausgeschlossen
forbade: {0} of these were more probable than the sampled token. | {0} davon waren wahrscheinlicher als das gewählte Token.
branchIsFree: The grammar does not constrain the text after the selected token, because it covers whole answers only. | Nach dem gewählten Token gilt die Grammatik nicht, denn sie beschreibt nur ganze Antworten.
tokensOfChat: An answer of the chat “{0}”, tokenized again, with the model's probabilities for each token.
  | Eine Antwort aus dem Chat „{0}“, neu tokenisiert, mit den Wahrscheinlichkeiten des Modells für jedes Token.
toChat: Back to the chat | Zurück zum Chat
askAnother: New prompt | Neuer Prompt
medium_image: image, {0} tokens | Bild, {0} Tokens
medium_audio: audio, {0} tokens | Audio, {0} Tokens
noAnswer: This answer is not stored in this browser. | Diese Antwort ist nicht in diesem Browser gespeichert.
keepVersion: Save as another version in the chat | Als weitere Version im Chat speichern
tokensAbout: Select a token to see its alternatives; select an alternative to continue from there. | Wähle ein Token, um Alternativen zu sehen; wähle eine Alternative, um von dort fortzusetzen.
`;

/** @type {Record<string, string[]>} */
const TEXTS = Object.fromEntries([...WORDS.matchAll(/^(\w+): (.+?)\s+\| (.+)$/gm)].map(([, name, ...both]) => [name, both]));

/** @param {string} key @param {...(string | number)} values */
export function t(key, ...values) {
  const text = TEXTS[key]?.[language.value === "de" ? 1 : 0] ?? key;
  const said = (/** @type {string} */ _, /** @type {string} */ i, /** @type {string} */ one, /** @type {string} */ many) => {
    const value = String(values[Number(i)]);
    return one === undefined ? value : value === "1" ? one : many;
  };
  return values.length ? text.replace(/\{(\d)(?:\|([^|}]*)\|([^}]*))?\}/g, said) : text;
}
