// Line icons on a grid of 20, drawn for this page.
import { html } from "./dom.js";

const PATHS = {
  chat: "M3.500 5.500a2 2 0 0 1 2-2h9a2 2 0 0 1 2 2v6a2 2 0 0 1-2 2H9l-3.500 3v-3a2 2 0 0 1-2-2z",
  tokens: "M3 4.500h5v4H3zM10 4.500h7v4h-7zM3 11.500h8v4H3zM13 11.500h4v4h-4z",
  prompt: "M4 4h12M4 8h8M4 12h12M4 16h5",
  engine: "M2.500 10.500h3l2-6 4 11 2.500-7 1 2h2.500",
  models: "M10 2.800l6.500 3.600v7.200L10 17.200l-6.500-3.600V6.400zM3.700 6.500L10 10l6.300-3.500M10 10v7",
  metrics: "M3.500 16.500v-5M8 16.500V7M12.500 16.500v-7M17 16.500V3.500",
  requests: "M4 4.500h12M4 8.200h12M4 11.900h12M4 15.600h7",
  bench: "M10 16.500a6.500 6.500 0 1 1 6.500-6.500M10 10l3.500-3.500",
  send: "M10 16V4.500M5 9.200l5-5 5 5",
  stop: "M6 6h8v8H6z",
  plus: "M10 4v12M4 10h12",
  edit: "M4 16l.8-3.400L13.200 4.200l2.600 2.600-8.400 8.400z",
  again: "M15.800 8A6.200 6.200 0 1 0 16 11.500M16.200 4v4h-4",
  copy: "M7.500 7.500h8v8h-8zM12.500 7.500v-3h-8v8h3",
  trash: "M4.500 6h11M8 6V4h4v2M6 6l.7 10h6.600L14 6",
  left: "M12 5l-5 5 5 5",
  right: "M8 5l5 5-5 5",
  down: "M5 8l5 5 5-5",
  on: "M4 10h10.500M10.500 6l4 4-4 4",
  tune: "M3.500 6h7M14 6h2.500M3.500 14h2.500M9.500 14h7M12.200 4v4M7.700 12v4",
  close: "M5 5l10 10M15 5L5 15",
  menu: "M3.500 6h13M3.500 10h13M3.500 14h13",
  key: "M12.500 7.500a3.500 3.500 0 1 0-2.700 3.400L11 12h1.500v1.500H14V15h2.500v-2.300l-4.200-4.200a3.500 3.500 0 0 0 .2-1z",
  file: "M5.500 3h6l3.500 3.500V17h-9.500zM11.500 3v3.500H15",
  out: "M10 3.500v9M6 9l4 4 4-4M4 16.500h12",
  in: "M10 13V4M6 7.500l4-4 4 4M4 16.500h12",
  save: "M5.500 15.500a3 3 0 0 1 0-6 4.500 4.500 0 0 1 8.800-1 3.500 3.500 0 0 1 .7 7M10 16V10M7.500 12.300L10 9.800l2.500 2.500",
  restore: "M5.500 15.500a3 3 0 0 1 0-6 4.500 4.500 0 0 1 8.800-1 3.500 3.500 0 0 1 .7 7M10 10v6M7.500 13.700L10 16.200l2.500-2.500",
  compact: "M10 3v5M7.500 5.800L10 8.300l2.500-2.500M10 17v-5M7.500 14.200L10 11.700l2.500 2.500M3.500 10h13",
  plug: "M7 3v4M13 3v4M5 7h10v3a5 5 0 0 1-10 0zM10 15v3",
  mic: "M10 2.800a2.200 2.200 0 0 1 2.200 2.200v4a2.200 2.200 0 0 1-4.400 0V5A2.200 2.200 0 0 1 10 2.800zM5 9a5 5 0 0 0 10 0M10 14v3M7.500 17h5",
  theme: "M10 3.500a6.500 6.500 0 1 0 6.500 6.500A5 5 0 0 1 10 3.500z",
};

/** @param {{name: keyof typeof PATHS}} props */
export const Icon = ({ name }) => html`
  <svg class="icon" viewBox="0 0 20 20" aria-hidden="true"><path d=${PATHS[name]} /></svg>
`;

/**
 * A button that is only an icon; `label` is its accessible name and its tooltip.
 * @param {{icon: keyof typeof PATHS, label: string, onClick?: (event: Event) => void, disabled?: boolean, pressed?: boolean,
 *   tone?: string, type?: string}} props
 */
export const IconButton = ({ icon, label, onClick, disabled, pressed, tone = "", type = "button" }) => html`
  <button type=${type} class=${`icon-button ${tone}`} aria-label=${label} title=${label} onClick=${onClick} disabled=${disabled}
    aria-pressed=${pressed}>
    <${Icon} name=${icon} />
  </button>
`;
