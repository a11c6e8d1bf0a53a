// The newest events of the log. New ones appear at the top.
import { get, path } from "../api.js";
import { html, useMemo } from "../html.js";
import { pretty } from "../json.js";
import { useLive } from "../live.js";
import { Choice, Heading, JobLink, Loaded, Name, Table } from "../parts.js";
import { Time } from "../time.js";

const SHOWN = 50;
const PAGE = 500;
const MOST_PAGES = 10;
const WINDOWS = ["10m", "1h", "1d", "7d"];
const KINDS = ["completed", "failed", "retried", "released", "stalled", "cancelled", "expired", "enqueued", "started"];
const SHOWN_ELSEWHERE = new Set(["event", "at", "cursor", "queue", "id", "task", "run", "result", "error"]);

/** Return a read that keeps the newest events: the first call reads the window, each later one what has come since. */
export function newest({ within, kind, most }) {
  let place = null;
  let events = [];
  return async (_, options) => {
    for (let page = 0; page < MOST_PAGES; page += 1) {
      const start = place === null ? { within } : { after: place };
      const found = await get(path(["events"], { ...start, kind, limit: PAGE }), options);
      place = found.next;
      events = [...events, ...found.events].slice(-most);
      if (found.end) return { events: events.toReversed(), behind: false };
    }
    return { events: events.toReversed(), behind: true };
  };
}

function shown(value) {
  if (typeof value === "string") return value;
  if (typeof value === "number" && !Number.isInteger(value)) return String(Number(value.toPrecision(3)));
  return pretty(value).replace(/\s+/g, " ");
}

function about(event) {
  const parts = Object.entries(event)
    .filter(([name, value]) => !SHOWN_ELSEWHERE.has(name) && value !== null)
    .map(([name, value]) => `${name}=${shown(value)}`);
  if (event.error) parts.unshift(`${event.error.type}: ${event.error.message}`);
  return parts.join(" ");
}

const COLUMNS = [
  { title: "At", kind: "when", cell: (event) => html`<${Time} at=${event.at} />` },
  { title: "Event", cell: (event) => html`<span class=${`badge ${event.event}`}>${event.event.replaceAll("_", " ")}</span>` },
  {
    title: "Job",
    kind: "long wide",
    cell: (event) =>
      event.queue && event.id ? html`<${JobLink} job=${event} />` : html`<span class="none">–</span>`,
  },
  { title: "Details", kind: "long rest optional", cell: (event) => html`<${Name}>${about(event) || "–"}<//>` },
];

export function Events({ params }) {
  const within = WINDOWS.includes(params.get("within")) ? params.get("within") : "1h";
  const kind = params.get("kind") ?? "";
  const read = useMemo(() => newest({ within, kind, most: SHOWN }), [within, kind]);
  const live = useLive(`${within} ${kind}`, { read, every: 3000 });
  return html`
    <${Heading}>Events<//>
    <div class="choices">
      <${Choice} page="events" label="Of the last" name="within" value=${within} choices=${WINDOWS.map((text) => [text, text])} params=${params} />
      <${Choice} page="events" label="Kind" name="kind" value=${kind} choices=${[["", "all"], ...KINDS.map((text) => [text, text])]} params=${params} />
    </div>
    <${Loaded} live=${live}>${({ events, behind }) => html`
      ${behind && html`<p class="callout warn">There are more events than were read so far; the newest follow. Choose a shorter time.</p>`}
      <${Table} caption="Newest events" columns=${COLUMNS} rows=${events} id=${(event) => event.cursor}
        empty="No event was recorded within this time." />`}
    <//>`;
}
