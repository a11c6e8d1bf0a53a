// Addresses: the base of the console, the current page, and links between pages.
import { signal } from "./html.js";

/** Where the console is mounted. This module lies two folders below it. */
export const base = new URL("../../", import.meta.url);

/** The current page: its name ("" is the overview) and its parameters. */
export const route = signal(read());

function read() {
  const name = location.pathname.startsWith(base.pathname) ? location.pathname.slice(base.pathname.length) : "";
  return { name, params: new URLSearchParams(location.search) };
}

/** Return the address of a page; parameters without a value are left out. */
export function address(name, params = {}) {
  const given = Object.entries(params).filter(([, value]) => value !== undefined && value !== null && value !== "");
  const query = new URLSearchParams(given).toString();
  return base.pathname + name + (query ? `?${query}` : "");
}

/** Show a page. */
export function go(to, { replace = false } = {}) {
  history[replace ? "replaceState" : "pushState"](null, "", to);
  route.value = read();
  if (!replace) window.scrollTo(0, 0);
}

/** Follow links inside the console without loading it again. */
export function followLinks() {
  window.addEventListener("popstate", () => (route.value = read()));
  document.addEventListener("click", (event) => {
    const link = event.target.closest?.("a[href]");
    const plain = event.button === 0 && !event.ctrlKey && !event.metaKey && !event.shiftKey && !event.altKey;
    if (!link || !plain || event.defaultPrevented || link.target || link.origin !== location.origin) return;
    if (!link.pathname.startsWith(base.pathname) || link.hash) return;
    event.preventDefault();
    go(link.href);
  });
}

/** Return a term of a filter that selects exactly this value. */
export function term(field, value) {
  const text = String(value);
  return `${field}:${/^[A-Za-z0-9._/@-]+$/.test(text) ? text : `"${text.replace(/["\\]/g, "\\$&")}"`}`;
}

export const jobsAddress = (...terms) => address("jobs", { filter: terms.join(" ") });
export const jobAddress = (job) => address("job", { queue: job.queue, id: job.id });
export const taskAddress = (name) => address("task", { name });
export const faultAddress = (fault) => address("fault", { fault });
export const queueAddress = (queue) => address("queue", { name: queue });

/** Return a text as one word of a shell. */
export const quoted = (text) => (/^[\w./@:+-]+$/.test(text) ? text : `'${text.replaceAll("'", `'\\''`)}'`);
