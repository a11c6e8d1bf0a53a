// Instants and durations as texts.
import { skew } from "./api.js";
import { html, signal } from "./html.js";

/** Milliseconds since 1970 by the clock of the server; changes each second while the tab is visible. */
export const now = signal(Date.now());

setInterval(() => {
  if (!document.hidden) now.value = Date.now() + skew.value;
}, 1000);

const UNITS = [["d", 86_400], ["h", 3600], ["min", 60], ["s", 1]];

/** Return a duration in seconds as a short text: "320 ms", "4.2 s", "3 min", "2 h 5 min". */
export function span(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds < 0) return `−${span(-seconds)}`;
  if (seconds < 0.9995) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 9.95) return `${seconds.toFixed(1).replace(".0", "")} s`;
  return whole(Math.round(seconds), 2);
}

function whole(seconds, parts) {
  const first = UNITS.findIndex(([, size]) => seconds >= size);
  if (first < 0) return "0 s";
  const texts = [];
  let left = seconds;
  for (const [unit, size] of UNITS.slice(first, first + parts)) {
    const count = Math.floor(left / size);
    left -= count * size;
    if (count) texts.push(`${count} ${unit}`);
  }
  return texts.join(" ");
}

/** Return how far an instant is from now: "4 s ago", "in 3 min". */
export function distance(at) {
  const seconds = Math.round((now.value - Date.parse(at)) / 1000);
  if (seconds === 0) return "now";
  return seconds > 0 ? `${whole(seconds, 1)} ago` : `in ${whole(-seconds, 1)}`;
}

/** Return how long ago something was, of its seconds. */
export const ago = (seconds) => `${seconds < 9.95 ? span(seconds) : whole(Math.round(seconds), 1)} ago`;

/** Return an instant in UTC, exact to the millisecond. */
export const exact = (at) => `${new Date(at).toISOString().replace("T", " ").replace("Z", "")} UTC`;

/** An instant relative to now; its title is the exact one. */
export function Time({ at, none = "–" }) {
  if (!at) return html`<span class="none">${none}</span>`;
  return html`<time datetime=${at} title=${exact(at)}>${distance(at)}</time>`;
}

/** Return bytes as a short text. */
export function size(bytes) {
  if (!bytes) return "–";
  return bytes < 1e6 ? `${Math.round(bytes / 1e3)} kB` : `${(bytes / 1e6).toFixed(0)} MB`;
}

/** Return a count with thin spaces between thousands. */
export const count = (number) => String(number).replace(/\B(?=(\d{3})+$)/g, "\u202f");
