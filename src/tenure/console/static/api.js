// Asks the admin API, and keeps the token of the user for as long as the tab is open.
import { signal } from "./html.js";
import { parse } from "./json.js";
import { base } from "./route.js";

const KEY = `tenure.token ${base.pathname}`;

/** A failure in the form of RFC 9457: title, detail, remedy, status. */
export class Problem extends Error {
  constructor({ type = "", title, detail = "", remedy = "", status = 0, errors = [] }) {
    super(title);
    Object.assign(this, { type, title, detail, remedy, status, errors });
  }
}

/** True if the API has refused this tab's token, or wants one; the sign-in form is shown then. */
export const refused = signal(false);

/** True if this tab holds a token. */
export const signedIn = signal(read() !== null);

/** What the API says of itself and of this user: {version, read_only, user: {name, role}, …}; null until then. */
export const meta = signal(null);

/** Milliseconds by which the clock of the server is ahead of this one. */
export const skew = signal(0);

function read() {
  try {
    return sessionStorage.getItem(KEY);
  } catch {
    return null;
  }
}

/** Return the headers with the token of this tab. */
export const authorization = (token = read()) => (token === null ? {} : { authorization: `Bearer ${token}` });

const hex = (bytes) => Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");

/** Return a random key, with which a request may be repeated. */
export const randomKey = () => hex(crypto.getRandomValues(new Uint8Array(16)));

/** Return a digest of the token of this tab. It needs a secure context. */
export async function tokenDigest() {
  const bytes = await crypto.subtle.digest("SHA-256", new TextEncoder().encode(read() ?? ""));
  return hex(new Uint8Array(bytes, 0, 8));
}

/** Keep a token; null removes it. */
export function keepToken(token) {
  if (token === null) sessionStorage.removeItem(KEY);
  else sessionStorage.setItem(KEY, token);
  signedIn.value = token !== null;
}

/** Return the answer to a read. Raises Problem. */
export const get = (path, options = {}) => ask(path, options, {});

/** Change something; return the answer. Raises Problem. */
export const send = (path, { method = "POST", body = {}, key = null } = {}) =>
  ask(path, {}, {
    method,
    body: JSON.stringify(body),
    headers: { "content-type": "application/json", ...(key === null ? {} : { "idempotency-key": key }) },
  });

async function ask(path, { signal: stop, token = read() }, { headers = {}, ...request }) {
  let response, text;
  try {
    response = await fetch(new URL(`api/v1/${path}`, base), {
      signal: stop,
      cache: "no-store",
      ...request,
      headers: { accept: "application/json", ...authorization(token), ...headers },
    });
    text = await response.text();
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Problem({
      title: "The console cannot be reached",
      detail: String(error.message),
      remedy: `check that it runs and that the network works; ${request.method ? "then look whether it was done" : "this page tries again by itself"}`,
    });
  }
  noteClock(response.headers.get("date"));
  let body = null;
  try {
    body = parse(text);
  } catch {
    body = null;
  }
  if (response.ok && body !== null) return body;
  const problem = new Problem({
    title: `The answer is not one of this API (status ${response.status})`,
    remedy: "find out what stands between this page and the console, such as a proxy",
    ...(body && body.title ? body : {}),
    status: response.status,
  });
  // A late answer to another token means nothing.
  if (response.status === 401 && token === read()) refused.value = true;
  throw problem;
}

function noteClock(date) {
  const ahead = Date.parse(date ?? "") - Date.now();
  // The header has whole seconds, so a small difference means nothing.
  skew.value = Number.isNaN(ahead) || Math.abs(ahead) < 2500 ? 0 : ahead;
}

/** Return a path of the API whose names and parameters are escaped. */
export function path(names, params = {}) {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(params)) {
    for (const one of Array.isArray(value) ? value : [value]) {
      if (one !== undefined && one !== null && one !== "") query.append(name, one);
    }
  }
  return names.map(encodeURIComponent).join("/") + (query.size ? `?${query}` : "");
}
