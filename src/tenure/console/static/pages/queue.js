// One queue: its jobs, how long they wait and run, and its settings.
import { Acts } from "../acts.js";
import { path } from "../api.js";
import { html } from "../html.js";
import { JobTable } from "../jobtable.js";
import { useLive } from "../live.js";
import { concerns } from "../stream.js";
import { Facts, Heading, Loaded, Section, STATES, Table, Tile } from "../parts.js";
import { address, jobsAddress, term } from "../route.js";
import { Time, count, span } from "../time.js";

const SPREADS = [
  { title: "Of ended jobs", cell: ([name]) => name },
  { title: "Median", kind: "number", cell: ([, spread]) => span(spread.half) },
  { title: "95 %", kind: "number", cell: ([, spread]) => span(spread.most) },
  { title: "Longest", kind: "number", cell: ([, spread]) => span(spread.longest) },
];

function Recent({ data }) {
  const spreads = [["waited", data.waited], ["ran", data.ran]].filter(([, spread]) => spread);
  const ended = Object.values(data.ended).reduce((sum, number) => sum + number, 0);
  if (!ended) return html`<p class="empty">No job has ended within the last ${span(data.window)}.</p>`;
  return html`
    <${Facts} facts=${[
      ...Object.entries(data.ended).filter(([, number]) => number).map(([state, number]) => [state, count(number) + (data.capped ? " or more" : "")]),
      ["per minute", Number(data.per_minute.toPrecision(3))],
      ["reasons of failures", Object.entries(data.reasons).map(([reason, number]) => `${reason || "unknown"}: ${number}`).join(", ")],
    ]} />
    ${spreads.length > 0 && html`<${Table} caption="How long jobs waited and ran" columns=${SPREADS} rows=${spreads} id=${([name]) => name} />`}`;
}

const kept = ({ age, count: most }) => span(age) + (most === null ? "" : `, the newest ${count(most)}`);

const Settings = ({ queue }) => html`
  <${Facts} facts=${[
    ["Rate", queue.rate ? `one per ${span(queue.rate.every)}, up to ${queue.rate.burst} at once` : "no limit"],
    ...Object.entries(queue.retention).map(([state, keep]) => [`Keeps ${state}`, kept(keep)]),
    ["Lease", queue.stall?.lease ? span(queue.stall.lease) : "as the task says"],
    ["Stalls allowed", queue.stall?.max_stalls ?? null],
    ["Recorded on request", queue.record.join(", ")],
    ["Parked", queue.parked ? count(queue.parked) : null],
    ["Limits", queue.limits.length ? queue.limits.map((limit) => html`<span>${limit.rate ?? "queue"} until <${Time} at=${limit.until} /> </span>`) : null],
  ]} />`;

function number(queue, state) {
  const jobs = count(queue.counts[state] ?? 0);
  const oldest = state === "waiting" ? queue.oldest_waiting : null;
  return oldest === null ? jobs : html`${jobs} <span class="tile-note">oldest ${span(oldest)}</span>`;
}

const pauseAct = (name, paused) => ({
  path: path(["queues", name]),
  method: "PATCH",
  body: { paused: !paused },
  ...(paused
    ? { name: "Resume", title: "Resume this queue?", text: "Its jobs start again.", done: "The queue is resumed." }
    : { name: "Pause", title: "Pause this queue?", text: "None of its jobs starts until it is resumed. Runs go on to their end, and new jobs are accepted.", done: "The queue is paused." }),
});

export function Queue({ params }) {
  const name = params.get("name") ?? "";
  const options = { concerns: (found) => concerns(found, { queue: name }) };
  const settings = useLive(path(["queues", name]), options);
  const recent = useLive(path(["queues", name, "statistics"]), { ...options, every: 10_000 });
  const filter = term("queue", name);
  const jobs = useLive(path(["jobs"], { filter, limit: 10 }), options);
  return html`
    <${Heading} above=${html`<a href=${address("")}>Overview</a> / queue`}
      aside=${settings.data && html`
        ${settings.data.paused && html`<span class="badge paused">paused</span>`}
        <${Acts} acts=${[pauseAct(name, settings.data.paused)]} />`}>${name}<//>
    <${Loaded} live=${settings}>${(queue) => html`
      <div class="tiles small">
        ${STATES.map((state) => html`<${Tile} key=${state} name=${state} value=${number(queue, state)}
          kind=${state === "failed" && queue.counts.failed ? "bad" : ""} href=${jobsAddress(filter, `state:${state}`)} />`)}
      </div>
      <${Section} title="Last hour"><${Loaded} live=${recent}>${(data) => html`<${Recent} data=${data} />`}<//><//>
      <${Section} title="Newest jobs" aside=${html`<a href=${jobsAddress(filter)}>All jobs of this queue</a>`}>
        <${Loaded} live=${jobs}>${(page) => html`
          <${JobTable} jobs=${page.jobs} caption="Newest jobs of this queue" empty="This queue has no jobs." hideQueue=${true} />`}
        <//>
      <//>
      <${Section} title="Settings"><${Settings} queue=${queue} /><//>`}
    <//>`;
}
