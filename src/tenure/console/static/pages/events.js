// The newest events of the log. New ones appear at the top.
import { get, path } from "../api.js";
import { html, useMemo } from "../html.js";
import { pretty } from "../json.js";
import { useLive } from "../live.js";
import { Choice, Heading, JobLink, Loaded, Name, Table } from "../parts.js";
import { Time, now } from "../time.js";

const SHOWN = 50;
const PAGE = 500;
const MOST_PAGES = 10;
const WINDOWS = ["10m", "1h", "1d", "7d"];
const KINDS = ["completed", "failed", "retried", "released", "stalled", "cancelled", "expired", "enqueued", "started"];
const SHOWN_ELSEWHERE = new Set(["event", "at", "cursor", "queue", "id", "task", "run", "result", "error"]);

/**
 * Return a read that keeps the newest `most` events: the first call reads from `start` on, each later one what has come since.
 * `behind`: the log has more events than were read so far, so newer ones may be missing.
 */
export function newest({ names = ["events"], start, kind, most }) {
  let place = start;
  let events = [];
  return async (_, options) => {
    for (let page = 0; page < MOST_PAGES; page += 1) {
      const found = await get(path(names, { ...place, kind, limit: PAGE }), options);
      place = { after: found.next };
      // An event that says that others are gone is of another kind, and belongs to no job.
      events = [...events, ...found.events.filter(({ event }) => !kind || event === kind)].slice(-most);
      if (found.end) return { events: events.toReversed(), behind: false };
    }
    return { events: events.toReversed(), behind: true };
  };
}

/** Return the events that are younger than this many milliseconds. */
export const recent = (events, age) => events.filter(({ at }) => now.value - Date.parse(at) < age);

export const Behind = ({ behind }) => behind && html`<p class="callout warn">The log has more events than were read so far. What is shown is not complete.</p>`;

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
  const read = useMemo(() => newest({ start: { within }, kind, most: SHOWN }), [within, kind]);
  const live = useLive(`${within} ${kind}`, { read, every: 3000 });
  return html`
    <${Heading}>Events<//>
    <div class="choices">
      <${Choice} page="events" label="Of the last" name="within" value=${within} choices=${WINDOWS.map((text) => [text, text])} params=${params} />
      <${Choice} page="events" label="Kind" name="kind" value=${kind} choices=${[["", "all"], ...KINDS.map((text) => [text, text])]} params=${params} />
    </div>
    <${Loaded} live=${live}>${({ events, behind }) => html`
      <${Behind} behind=${behind} />
      <${Table} caption="Newest events" columns=${COLUMNS} rows=${events} id=${(event) => event.cursor}
        empty=${behind ? "None so far." : "No event was recorded within this time."} />`}
    <//>`;
}
