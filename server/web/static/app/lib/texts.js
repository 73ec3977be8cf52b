// Every word of the page, in English and German.
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

/** A line each: its name, English | German. `{0}` is the first argument; `{0|token|tokens}` the first word if that is 1. */
const WORDS = `
# frame
chat: Chat | Chat
tokens: Tokens | Tokens
prompt: Prompt | Prompt
engine: Engine | Maschine
models: Models | Modelle
metrics: Metrics | Messwerte
requests: Requests | Anfragen
bench: Bench | Messung
views: Views | Ansichten
skip: Skip to content | Zum Inhalt
theme: Light or dark | Hell oder dunkel
language: Deutsch | English
lost: The server can't be reached. Trying again… | Der Server ist nicht erreichbar. Neuer Versuch…
newVersion: The server has a newer page. | Der Server hat eine neuere Seite.
reload: Reload | Neu laden
keyTitle: This server wants an API key | Dieser Server verlangt einen API-Schlüssel
keyAbout: It is kept in this browser only. | Er bleibt nur in diesem Browser.
keyLabel: API key | API-Schlüssel
keyWrong: The server does not know this key. | Diesen Schlüssel kennt der Server nicht.
keyUse: Use it | Verwenden
keyForget: API key | API-Schlüssel
keyGive: Give a key | Schlüssel angeben
notNow: Not now | Jetzt nicht
viewFailed: Something in this view went wrong. Nothing that was kept is lost. | In dieser Ansicht ging etwas schief. Was aufbewahrt war, ist noch da.
model: Model | Modell
noModels: No model is configured. | Kein Modell ist eingerichtet.
loading: loading | lädt
loaded: ready | bereit
unloaded: not loaded | nicht geladen
sleeping: sleeping | schläft
downloading: downloading | wird geholt
failed: failed | fehlgeschlagen
draining: stopping | endet
load: Load | Laden
unload: Unload | Entladen
cancel: Cancel | Abbrechen
close: Close | Schließen

# chat
newChat: New chat | Neuer Chat
chats: Chats | Chats
searchChats: Search chats | Chats durchsuchen
exportChats: Export all chats | Alle Chats sichern
importChats: Import chats | Chats einlesen
importFailed: Nothing was imported: {0} | Nichts wurde eingelesen: {0}
importNoJson: the file is no JSON ({0}) | die Datei ist kein JSON ({0})
importNoChats: it is no file of chats that this page has exported | sie ist keine Datei mit Chats, die diese Seite gesichert hat
importNoChat: chat {0} of the file is incomplete | Chat {0} der Datei ist unvollständig
importNoRoom: the browser could not keep it | der Browser konnte es nicht behalten
removeChat: Delete chat | Chat löschen
nothingFound: Nothing found | Nichts gefunden
notKept: This browser keeps nothing (more): chats end with the page. Export what you need. | Dieser Browser merkt sich nichts (mehr): Chats enden mit der Seite. Sichere, was du brauchst.
greeting: What shall we talk about? | Worüber sprechen wir?
greetingAbout: Everything stays between this browser and your server. | Alles bleibt zwischen diesem Browser und deinem Server.
ideas: To begin with | Für den Anfang
ideaSky: Why is the sky blue? | Warum ist der Himmel blau?
ideaCode: Write a Python function that adds two numbers. | Schreibe eine Python-Funktion, die zwei Zahlen addiert.
ideaStory: Tell me a short story about a llama. | Erzähle mir eine kurze Geschichte von einem Lama.
message: Message | Nachricht
writeMessage: Write a message | Nachricht schreiben
send: Send | Senden
stop: Stop | Anhalten
attach: Attach a file | Datei anhängen
detach: Remove | Entfernen
edit: Edit | Bearbeiten
save: Save | Sichern
ask: Send as new branch | Als neuen Zweig senden
again: Answer again | Neu beantworten
goOn: Continue | Fortsetzen
copy: Copy | Kopieren
copied: Copied | Kopiert
before: Previous version | Vorige Fassung
after: Next version | Nächste Fassung
versions: Version {0} of {1} | Fassung {0} von {1}
you: You | Du
thoughts: Thoughts | Gedanken
thinking: Thinking… | Denkt nach…
reading: Reading the prompt | Liest den Prompt
calls: Calls {0} | Ruft {0} auf
result: Result | Ergebnis
resultOf: Result of {0} | Ergebnis von {0}
sendResults: Send results | Ergebnisse senden
stopped: Stopped. | Angehalten.
answerDone: The answer is complete. | Die Antwort ist vollständig.
removeChatSure: Delete the chat “{0}”? | Den Chat „{0}“ löschen?
importedChats: {0} {0|chat|chats} read | {0} {0|Chat|Chats} eingelesen
cut: The limit of tokens ended this answer. | Die Token-Grenze hat diese Antwort beendet.
lostAnswer: The page was left before the end of this answer. | Die Seite wurde vor dem Ende dieser Antwort verlassen.
retry: Try again | Noch einmal
earlier: Earlier messages | Frühere Nachrichten
toNewest: To the newest message | Zur neuesten Nachricht
seePrompt: See the prompt | Prompt ansehen
seeTokens: See the tokens | Tokens ansehen
perSecond: {0} tokens/s | {0} Tokens/s
firstToken: first after {0} | erstes nach {0}
cached: {0} of {1} from cache | {0} von {1} aus dem Cache
context: Context | Kontext
contextOf: {0} of {1} tokens | {0} von {1} Tokens
errorLost: The connection was lost. | Die Verbindung ist abgerissen.
errorKey: The server wants another API key. | Der Server verlangt einen anderen API-Schlüssel.
errorFull: The queue is full. Try again in {0} s. | Die Warteschlange ist voll. Neuer Versuch in {0} s.
errorCancelled: The request was cancelled by who runs this server. | Wer diesen Server betreibt, hat die Anfrage abgebrochen.
errorModel: The model can't answer now. | Das Modell kann gerade nicht antworten.

# settings
settings: Settings | Einstellungen
system: System prompt | System-Prompt
sampling: Sampling | Auswahl
temperature: Temperature | Temperatur
topP: Top-p | Top-p
topK: Top-k | Top-k
minP: Min-p | Min-p
maxTokens: Most tokens | Höchstens Tokens
seed: Seed | Startwert
more: More | Mehr
moreUsed: More ({0} set) | Mehr ({0} gesetzt)
notANumber: {0}: “{1}” is no number. | {0}: „{1}“ ist keine Zahl.
thinkingMode: Thoughts | Gedanken
auto: as the model does | wie das Modell
on: on | an
off: off | aus
shape: Shape of the answer | Form der Antwort
schema: JSON Schema | JSON Schema
grammar: Grammar (GBNF) | Grammatik (GBNF)
tools: Tools (JSON, as OpenAI's) | Werkzeuge (JSON, wie bei OpenAI)
serverTools: Use the server's tools | Die Werkzeuge des Servers verwenden
runTool: Run {0} on the server | {0} auf dem Server ausführen
asServer: server's | vom Server

# engine
noEngine: No model is loaded. Load one, or ask one something. | Kein Modell ist geladen. Lade eines, oder frag eines etwas.
looking: Looking… | Moment…
slotsBusy: Slots in use | Slots belegt
waiting: Waiting | Wartend
running: Running | Laufend
generatedRate: Generated | Geschrieben
promptRate: Prompt read | Prompt gelesen
hitRate: From cache | Aus dem Cache
guessesRight: Guesses right | Richtig geraten
standing: State | Stand
parked: Parked so far | Bisher geparkt
parkedAfter: parked after {0} {0|token|tokens} | geparkt nach {0} {0|Token|Tokens}
steps: Steps | Schritte
slots: Slots | Slots
slot: Slot {0} | Slot {0}
queue: Queue | Warteschlange
prefixes: Shared beginnings | Gemeinsame Anfänge
tiers: Kept states | Aufbewahrte Zustände
adapters: LoRA adapters | LoRA-Adapter
adaptersAbout: For requests that name none, from now on. | Für Anfragen, die keinen nennen, von jetzt an.
request: Request | Anfrage
priority: Priority | Rang
promptTokens: Prompt | Prompt
waits: Waits | Wartet
andMore: and {0} more | und {0} weitere
lastStep: Last step: {0} generated, {1} guessed, {2} of prompts, {3} | Letzter Schritt: {0} geschrieben, {1} geraten, {2} aus Prompts, {3}
noSteps: No step since this page looks | Kein Schritt, seit diese Seite zusieht
decode: Generated | Geschrieben
guesses: Guesses | Geraten
phase_idle: idle | frei
phase_waiting: waiting | wartet
phase_prefill: reading | liest
phase_decode: writing | schreibt
phase_ended: ended | beendet
sharesWith: {0} tokens as in slot {1} | {0} Tokens wie in Slot {1}
sharesWithKept: {0} tokens as in a kept state ({1}) | {0} Tokens wie in einem Zustand ({1})
idleFor: idle for {0} | frei seit {0}
neverUsed: not used yet | noch nie benutzt
slot_save: Save | Sichern
slot_restore: Restore | Zurückholen
slot_erase: Erase | Leeren
did_save: Slot {0} is in {1}. | Slot {0} liegt in {1}.
did_restore: Slot {0} holds {1} again. | Slot {0} hält wieder {1}.
did_erase: Slot {0} is empty. | Slot {0} ist leer.
part_queued: Queue | Warten
part_placed: Place | Platz
part_prefill: Prompt | Prompt
part_decode: Writing | Schreiben
promptOf: {0} prompt tokens, {1} cached | {0} Prompt-Tokens, {1} aus dem Cache
written: {0} written | {0} geschrieben
nothingHeld: No slot holds anything. | Kein Slot hält etwas.
sharedBy: {0} tokens in {1} | {0} Tokens in {1}
sharedFurther: {0} more in {1} | {0} weitere in {1}
tier_ram: RAM | RAM
tier_disk: Disk | Platte
tierHolds: {0} {0|state|states}, {1}, taken back {2} {2|time|times} | {0} {0|Zustand|Zustände}, {1}, {2}-mal zurückgeholt
tierMap: {0} kept {0|state|states}; arrow keys choose one | {0} {0|aufbewahrter Zustand|aufbewahrte Zustände}; Pfeiltasten wählen einen
tierState: {0} {0|token|tokens}, {1}, last used {2} ago, {3} {3|use|uses}, worth {4} | {0} {0|Token|Tokens}, {1}, zuletzt vor {2}, {3}-mal benutzt, Wert {4}
tierLegend: Wide: many bytes. Pale: long unused. The line below: what it is worth, for its tokens and how lately it was used; who is worth least for its bytes goes first. Uses are those since it is kept.
  | Breit: viele Bytes. Blass: lange nicht benutzt. Die Linie darunter: der Wert, nach Tokens und wie kürzlich benutzt; wer für seine Bytes am wenigsten wert ist, geht zuerst. Nutzungen zählen, seit er aufbewahrt ist.
tierMore: {0} {0|token|tokens}, worth {1} | {0} {0|Token|Tokens}, Wert {1}
uses: {0} {0|use|uses} | {0}-mal
asTable: As a table | Als Tabelle
keptTokens: Tokens | Tokens
keptBytes: Size | Größe
keptAge: Unused for | Unbenutzt seit
keptUses: Uses | Nutzungen
keptWorth: Worth | Wert

# models
parameters: Parameters | Parameter
contextFacts: {0} per slot, {1} trained | {0} je Slot, trainiert {1}
file: File | Datei
mem_weights: weights | Gewichte
mem_context: context | Kontext
mem_compute: compute | Rechnen
can_completion: writes | schreibt
can_embedding: embeds | bettet ein
can_rerank: reranks | ordnet Treffer
can_multimodal: sees | sieht
removeModel: Delete | Löschen
removeModelSure: Delete the files of {0}? | Die Dateien von {0} löschen?
pull: Fetch | Holen
pullLabel: Fetch a model from the hub | Ein Modell vom Hub holen
log: Server log | Protokoll des Servers
done: Done here | Hier getan
pin: Pin | Festhalten
pinAbout: It stays loaded, whoever else has no room | Es bleibt geladen, wem sonst auch Platz fehlt
asked: asked | veranlasst

# metrics, requests, bench
lastHour: the last hour | die letzte Stunde
noSamples: The first values come after twenty seconds. | Die ersten Werte kommen nach zwanzig Sekunden.
firstTokens: First token | Erstes Token
gaps: Between tokens | Zwischen Tokens
tokenRates: Tokens per second | Tokens je Sekunde
load_: Requests | Anfragen
memory: Memory | Speicher
median: median | Median
p95: 95 % | 95 %
filter: Filter | Filtern
noRequests: No request yet. | Noch keine Anfrage.
time: Time | Zeit
fromCache: Cached | Cache
writtenTokens: Written | Geschrieben
speed: Speed | Tempo
course: Course | Verlauf
outcome: Outcome | Ausgang
outcome_done: done | fertig
outcome_cancelled: cancelled | abgebrochen
outcome_failed: failed | gescheitert
outcome_running: running | läuft
outcome_waiting: waiting | wartet
details: Details | Einzelheiten
bodiesOff: What was said is not kept (--log-bodies keeps it). | Was gesagt wurde, ist nicht aufbewahrt (--log-bodies bewahrt es auf).
reply: Reply | Antwort
measure: Measure | Messen
benchAbout: llamapool bench, run on the server's machine: clients with prompts that no cache holds, where a scenario is not about that.
  | llamapool bench, auf der Maschine des Servers: Clients mit Prompts, die kein Cache kennt, wenn es nicht gerade darum geht.
scenarios: Scenarios | Szenarien
clientsAtOnce: Clients at once | Clients zugleich
lengths: Lengths | Längen
quick: a quick look | ein kurzer Blick
whole: as on the command line | wie auf der Kommandozeile
otherAddress: Beside another address | Neben einer anderen Adresse
otherModel: Its model | Deren Modell
otherKey: Its API key | Deren API-Schlüssel
address_this: this server | dieser Server
address_other: the other one | der andere
runsNow: {0} of {1}: {2}, {3} | {0} von {1}: {2}, {3}
figure: Figure | Wert
itlZero: ITL is 0 where several tokens arrive in one piece, as when steps are quicker than HTTP; TPOT is their mean over the stream.
  | ITL ist 0, wo mehrere Tokens in einem Stück ankommen, weil Schritte schneller sind als HTTP; TPOT ist ihr Mittel über den Strom.
scene_one: one stream | ein Strom
scene_slots: a stream for every client | ein Strom je Client
scene_prefix: requests that share 700 words | Anfragen mit 700 gemeinsamen Wörtern
scene_long: a long prompt while others stream | ein langer Prompt, während andere schreiben
scene_conversations: 32 conversations in turn | 32 Gespräche im Wechsel
scene_rate: one token each | je ein Token
scene_constrained: output held to a schema | Ausgabe nach einem Schema
scene_partial: streams in some slots | Ströme in einigen Slots
scene_half: streams in half of the slots | Ströme in der Hälfte der Slots
scene_left: streams that are left over | Ströme, die übrig bleiben
scene_edit: a file written again with an edit | eine Datei neu geschrieben, mit einer Änderung
scene_quote: a text repeated | ein Text wiederholt
scene_other: stories, which repeat nothing | Geschichten, die nichts wiederholen
scene_context: one prompt of 12,000 tokens | ein Prompt mit 12.000 Tokens

# prompt, tokens
promptOwn: A message; an open chat would be shown in its place | Eine Nachricht; ein offener Chat stünde an ihrer Stelle
promptOfChat: The chat “{0}” up to its newest question | Der Chat „{0}“ bis zur neuesten Frage
askOnce: Ask once | Einmal fragen
fromWhere: {0} of {1} tokens from {2} | {0} von {1} Tokens {2}
from_none: a cache | aus einem Cache
from_slot: slot {0}, in place | aus Slot {0}, an Ort und Stelle
from_copy: slot {0}, copied | aus Slot {0}, kopiert
from_ram: RAM | aus dem RAM
from_disk: disk | von der Platte
anewBecause: {0} anew: {1} | {0} neu: {1}
anew_last: one token always is, for what comes next | eines immer, für das, was folgt
anew_off: the request takes nothing from a cache | die Anfrage nimmt nichts aus einem Cache
anew_scored: its log probabilities were wanted | seine Wahrscheinlichkeiten waren verlangt
anew_nothing: nobody held anything that begins like it | niemand hielt etwas, das so anfängt
anew_differs: from there on another text was held | von da an war ein anderer Text gehalten
anew_ends: no more was held | mehr war nicht gehalten
anew_uncut: more was held, in a memory that can be gone on from no later place | mehr war gehalten, in einem Speicher, der von keiner späteren Stelle aus weitergeht
anew_other: more was held, under another LoRA set or for somebody else | mehr war gehalten, unter anderem LoRA-Satz oder für jemand anderen
anew_short: another slot held a little more, not worth a copy | ein anderer Slot hielt etwas mehr, keine Kopie wert
raw: As the model wrote it | Wie das Modell es schrieb
parsed: As it was understood | Wie es verstanden wurde
anewFrom: anew from here | ab hier neu
nTokens: {0} tokens | {0} Tokens
role_system: system | System
role_user: user | Nutzer
role_assistant: assistant | Assistent
role_tool: tool | Werkzeug
role_template: template | Vorlage
greedy: Always the most probable token | Immer das wahrscheinlichste Token
answerMe: Answer | Antworten
sure: sure | sicher
unsure: unsure | unsicher
perplexity: perplexity {0} | Perplexität {0}
instead: What it could have been | Was es hätte sein können
maskSize: Allowed by the grammar here: {0}. | Von der Grammatik hier erlaubt: {0}.
maskSizes: Tokens that the grammar allowed at each step, from {0} to {1} | Tokens, die die Grammatik bei jedem Schritt erlaubt hat, von {0} bis {1}
forbidden: What the grammar forbade | Was die Grammatik verboten hat
forbade: The model preferred {0} of these to the one that was taken. | {0} davon waren dem Modell lieber als das gewählte.
branchIsFree: From the chosen token on it goes without the grammar, which holds for whole answers only. | Vom gewählten Token an geht es ohne die Grammatik weiter: sie gilt nur für ganze Antworten.
tokensOfChat: An answer of the chat “{0}”, tokenized again, and what the model would have said in each place.
  | Eine Antwort aus dem Chat „{0}“, neu in Tokens zerlegt, und was das Modell an jeder Stelle gesagt hätte.
toChat: To the chat | Zum Chat
askAnother: Ask something else | Etwas anderes fragen
medium_image: picture, {0} tokens | Bild, {0} Tokens
medium_audio: sound, {0} tokens | Ton, {0} Tokens
noAnswer: This browser has no such answer. | Dieser Browser hat keine solche Antwort.
keepVersion: Keep it as another version in the chat | Als weitere Fassung in den Chat übernehmen
tokensAbout: Choose a token to see others, and one of them to go on from there. | Wähle ein Token, um andere zu sehen, und eines davon, um dort weiterzugehen.
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
