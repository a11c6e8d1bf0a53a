// Follows the stream of changes while the tab is visible. Of several tabs one follows it and passes it on to the others.
import { authorization, tokenDigest } from "./api.js";
import { signal } from "./html.js";
import { base } from "./route.js";

const SHORT = 5_000;
const SILENT = 45_000;
const FIRST_PAUSE = 1_000;
const LONGEST_PAUSE = 30_000;

/** The newest frame: {kind: "changes", queues, jobs, complete, …}, or {kind: "resync"} after which all may be new. */
export const frame = signal(null);

/** Return true if a frame may concern this job or this queue. */
export const concerns = (found, { queue, id }) =>
  found.kind === "resync" || !found.complete ||
  (id === undefined ? queue in found.queues : found.jobs.some((job) => job.queue === queue && job.id === id));

let lastId = null;

/** Follow the stream until the signal `stop` is given. Without Web Locks (plain HTTP) the pages only read now and then. */
export async function follow(stop) {
  if (!navigator.locks || !globalThis.BroadcastChannel) return;
  // Users who see different queues do not share frames.
  const name = `tenure ${base.pathname} ${await tokenDigest()}`;
  if (stop.aborted) return;
  const channel = new BroadcastChannel(name);
  channel.onmessage = ({ data }) => show(data);
  stop.addEventListener("abort", () => channel.close());
  try {
    await navigator.locks.request(name, { signal: stop }, () => lead(channel, stop));
  } catch (error) {
    if (error.name !== "AbortError") throw error;
  }
}

function show({ found, id }) {
  lastId = id;
  frame.value = found;
}

async function lead(channel, stop) {
  let pause = FIRST_PAUSE;
  while (!stop.aborted) {
    const began = performance.now();
    try {
      await read(stop, (message) => {
        show(message);
        if (!stop.aborted) channel.postMessage(message);
      });
      // The server ends each stream after a while.
      if (performance.now() - began > SHORT) {
        pause = FIRST_PAUSE;
        continue;
      }
    } catch (error) {
      if (stop.aborted) return;
      // The reads of the page tell the user; the stream comes back by itself.
      if (error.status === 401) return;
    }
    await rest(pause * (0.5 + Math.random() / 2), stop);
    pause = Math.min(2 * pause, LONGEST_PAUSE);
  }
}

const rest = (pause, stop) =>
  new Promise((done) => {
    setTimeout(done, pause);
    stop.addEventListener("abort", done, { once: true });
  });

async function read(stop, tell) {
  // A comment comes each 15 s. A connection that was lost without a word would be read for ever.
  const lost = new AbortController();
  let timer = setTimeout(() => lost.abort(), SILENT);
  const heard = () => {
    clearTimeout(timer);
    timer = setTimeout(() => lost.abort(), SILENT);
  };
  try {
    await readParts(AbortSignal.any([stop, lost.signal]), heard, tell);
  } finally {
    clearTimeout(timer);
    lost.abort();
  }
}

async function readParts(stop, heard, tell) {
  const response = await fetch(new URL("api/v1/events/stream", base), {
    signal: stop,
    cache: "no-store",
    headers: { accept: "text/event-stream", ...authorization(), ...(lastId === null ? {} : { "last-event-id": lastId }) },
  });
  if (!response.ok) throw Object.assign(new Error(response.statusText), { status: response.status });
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    heard();
    const parts = (text + value).split("\n\n");
    text = parts.pop();
    for (const part of parts) {
      const fields = Object.fromEntries(part.split("\n").map((line) => line.split(/: ?(.*)/s, 2)));
      if (fields.event) tell({ found: { kind: fields.event, ...JSON.parse(fields.data) }, id: fields.id });
    }
  }
}
