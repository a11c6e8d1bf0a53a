// The first page: is all well, and if not, where?
import { hasRole } from "../acts.js";
import { get, path } from "../api.js";
import { EndsChart, Heat, ended } from "../chart.js";
import { html, useMemo } from "../html.js";
import { useLive } from "../live.js";
import { Facts, Heading, JOB, Loaded, Name, Section, Table, Tile } from "../parts.js";
import { address, faultAddress, jobAddress, jobsAddress, queueAddress, term } from "../route.js";
import { Time, ago, count, now, span } from "../time.js";
import { Behind, newest, recent } from "./events.js";

const FAULTS = 5;
const STALLS = 5;
const FINDINGS = 4;
const LATE = 30_000;
const HOUR = 3_600_000;

const all = (queues, state) => queues.reduce((sum, queue) => sum + Number(queue.counts[state] ?? 0), 0);

/** What the diagnosis finds, the worst first; without one, what the health check complains about. */
function findingsOf(complaints, doctor) {
  const found = (doctor?.findings ?? []).filter(({ level }) => level !== "ok");
  if (!found.length) return complaints.map((message) => ({ level: "warning", message, remedy: "" }));
  return found.toSorted((a, b) => (a.level === "error" ? 0 : 1) - (b.level === "error" ? 0 : 1));
}

function Findings({ complaints }) {
  // A diagnosis reads more than the health check. It is made again if the number of complaints changes.
  const doctor = useLive(hasRole("operate") ? `doctor ${complaints.length}` : null, { every: 60_000, concerns: () => false, read: (_, options) => get("doctor", options) });
  const found = findingsOf(complaints, doctor.data);
  const asked = hasRole("operate") && !doctor.data && !doctor.problem;
  const checked = doctor.data ? "The diagnosis" : "The health check";
  if (!found.length && asked) return html`<div class="callout"><p class="loading">The diagnosis runs …</p></div>`;
  if (!found.length) return html`<div class="callout good"><strong>All is well.</strong> ${checked} finds nothing to mend.</div>`;
  const errors = found.filter(({ level }) => level === "error").length;
  const item = ({ level, message, remedy }) => html`
    <li key=${message}>${level === "error" && html`<strong>Error: </strong>`}${message}${remedy && html` <span class="remedy">– ${remedy}</span>`}</li>`;
  const rest = found.slice(FINDINGS);
  return html`
    <div class=${`callout ${errors ? "bad" : "warn"}`}>
      <strong>${found.length === 1 ? "One thing needs" : `${found.length} things need`} attention</strong>
      <ul>${found.slice(0, FINDINGS).map(item)}</ul>
      ${asked && html`<p class="loading">The diagnosis runs …</p>`}
      ${rest.length > 0 && html`<details><summary>Show ${rest.length} more</summary><ul>${rest.map(item)}</ul></details>`}
    </div>`;
}

function Tiles({ data, figures }) {
  const oldest = Math.max(...data.queues.map((queue) => queue.oldest_waiting ?? -1), -1);
  const alive = data.workers.filter((worker) => !worker.stale && !worker.died).length;
  const failed = all(data.queues, "failed");
  const lately = figures.data && !figures.stale ? (figures.data.total?.failed ?? 0) : null;
  return html`
    <div class="tiles">
      <${Tile} name="Waiting" value=${count(all(data.queues, "waiting"))} href=${jobsAddress("state:waiting")}
        note=${oldest < 0 ? "none waits" : `oldest ${span(oldest)}`} />
      <${Tile} name="Active" value=${count(all(data.queues, "active"))} href=${address("leases")} note="run now" />
      <${Tile} name="Delayed" value=${count(all(data.queues, "delayed"))} href=${jobsAddress("state:delayed")} note="due later" />
      <${Tile} name="Failed" value=${count(failed)} href=${address("failures")} kind=${failed ? "bad" : ""}
        note=${lately ? `${count(lately)} in the last hour` : !failed ? "none" : lately === null ? "–" : "none in the last hour"} />
      <${Tile} name="Workers" value=${alive} href=${address("workers")} kind=${alive ? "" : "warn"}
        note=${data.workers.length > alive ? `${data.workers.length - alive} not alive` : alive ? "all alive" : "none runs"} />
    </div>`;
}

const cell = (state, kind = "number") => ({
  title: state[0].toUpperCase() + state.slice(1),
  kind,
  cell: (queue) => {
    const number = queue.counts[state] ?? 0;
    const where = jobsAddress(term("queue", queue.queue), `state:${state}`);
    return number ? html`<a class=${`count ${state}`} href=${where}>${count(number)}</a>` : html`<span class="none">0</span>`;
  },
});

const QUEUES = [
  {
    title: "Queue",
    kind: "long",
    cell: (queue) => html`<span class="with-badge"><${Name} href=${queueAddress(queue.queue)}>${queue.queue}<//>
      ${queue.paused && html`<span class="badge paused">paused</span>`}
      ${queue.limits.length > 0 && html`<span class="badge paused">limited</span>`}</span>`,
  },
  { title: "Last hour", kind: "strip optional", cell: (queue) => html`<${Heat} ...${queue.heat} />` },
  { title: "Ended", kind: "number optional", cell: ({ heat }) => (heat.figures || heat.all ? count(ended(heat.figures?.total)) : "–") },
  { title: "Oldest waiting", kind: "number", cell: (queue) => span(queue.oldest_waiting) },
  cell("waiting"),
  cell("active"),
  cell("delayed", "number optional"),
  cell("failed"),
];

function Queues({ queues }) {
  const live = useLive(path(["figures", "queues"], { since: "1h", limit: 100 }), { every: 15_000 });
  // Without an answer, or if it leaves queues out, a queue without figures may have some.
  const { queues: figures = [], since, step, left_out: out } = live.data ?? {};
  const rows = queues.map((queue) => ({ ...queue, heat: { figures: figures.find((found) => found.queue === queue.queue), since, step, all: out === 0 } }));
  return html`
    <${Section} title="Queues">
      <${Table} caption="Queues with their jobs by state" columns=${QUEUES} rows=${rows} id=${(queue) => queue.queue}
        empty="There is no queue yet: the first job makes one." />
      ${rows.length > 0 && html`<p class="help optional">Last hour: a bar a minute. The higher it is, the longer 95 % of the jobs waited at most: up to
        1 s, 10 s, 1 min, 10 min, or longer. A mark below the line: runs failed or stalled.</p>`}
    <//>`;
}

const FAULT = [
  {
    title: "Fault",
    kind: "long wide",
    cell: (group) => html`<a class="job-link" href=${faultAddress(group.fault)} title=${`${group.error ?? group.reason}: ${group.message}`}>
      <span class="name">${group.error ?? group.reason}</span><span class="name id">${group.message || group.task}</span></a>`,
  },
  { title: "Jobs", kind: "number", cell: (group) => count(group.count) },
  { title: "Last seen", kind: "when", cell: (group) => html`<${Time} at=${group.last} />` },
];

function Faults() {
  const live = useLive("dead/groups", { every: 10_000 });
  return html`
    <${Section} title="Most frequent faults" aside=${html`<a href=${address("failures")}>All faults</a>`}>
      <${Loaded} live=${live}>${({ groups }) => html`
        <${Table} caption="The faults with the most failed jobs" columns=${FAULT} rows=${groups.slice(0, FAULTS)} id=${(group) => group.fault} empty="No job has failed." />`}
      <//>
    <//>`;
}

const STALL = [
  JOB,
  { title: "Reason", cell: (event) => (event.reason ?? "").replaceAll("_", " ") },
  { title: "At", kind: "when", cell: (event) => html`<${Time} at=${event.at} />` },
];

function Stalls() {
  const read = useMemo(() => newest({ start: { within: "1h" }, kind: "stalled", most: STALLS }), []);
  const live = useLive("stalls", { read, every: 10_000 });
  return html`
    <${Section} title="Stalls of the last hour" aside=${html`<a href=${address("leases")}>Leases</a>`}>
      <${Loaded} live=${live}>${({ events, behind }) => html`
        <${Behind} behind=${behind} />
        <${Table} caption="The newest stalls" columns=${STALL} rows=${recent(events, HOUR)} id=${(event) => event.cursor} empty=${behind ? "None so far." : "No run has stalled."} />`}
      <//>
    <//>`;
}

const TICK = [
  { title: "Schedule", kind: "long wide", cell: ({ name }) => html`<${Name} href=${address("schedules", { name })}>${name}<//>` },
  { title: "Was due", kind: "when", cell: ({ next_tick: due }) => html`<${Time} at=${due} />` },
];

function Late() {
  const live = useLive("schedules", { every: 15_000, concerns: () => false });
  const late = (!live.stale && live.data?.schedules || []).filter(({ paused, next_tick: due }) => !paused && due && now.value - Date.parse(due) > LATE);
  return late.length > 0 && html`
    <${Section} title="Late schedules">
      <${Table} caption="Schedules whose tick is overdue" columns=${TICK} rows=${late} id=${({ name }) => name} />
      <p class="help">A process that sweeps fires them: start a worker, or <code>tenure reaper</code>.</p>
    <//>`;
}

const SLOW = [
  { title: "Job", kind: "long rest", cell: (run) => html`<${Name} href=${jobAddress(run)}>${`${run.task} ${run.id}`}<//>` },
  { title: "Runs for", kind: "number", cell: (run) => span(run.ran) },
  { title: "Usual", kind: "number", cell: (run) => span(run.usual) },
];

export function Now() {
  const live = useLive("survey");
  const figures = useLive(path(["figures"], { since: "1h" }), { every: 15_000 });
  return html`
    <${Heading}>Now<//>
    <${Loaded} live=${live}>${(data) => html`
      <${Findings} complaints=${data.complaints} />
      <${Tiles} data=${data} figures=${figures} />
      <${Section} title="Ended per minute, in the last hour"><${Loaded} live=${figures}>${(found) => html`<${EndsChart} data=${found} />`}<//><//>
      <${Queues} queues=${data.queues} />
      <${Late} />
      <div class="pair"><${Faults} /><${Stalls} /></div>
      ${data.slow.length > 0 && html`<${Section} title="Slower than usual">
        <${Table} caption="Runs that take far longer than usual" columns=${SLOW} rows=${data.slow} id=${(run) => `${run.queue} ${run.id}`} />
        ${data.slow_capped && html`<p class="help">There may be more.</p>`}
      <//>`}
      <${Section} title="Storage">
        <${Facts} facts=${[
          ["Address", html`<code>${data.url}</code>`],
          ["Leader", data.leaders.length ? data.leaders.map((leader) => `${leader.owner} (${[leader.scope, `term ${leader.epoch}`].filter(Boolean).join(", ")})`).join("; ") : "none"],
          ["Last sweep", data.swept_ago === null ? "never" : ago(data.swept_ago)],
          ["Clock", html`<${Time} at=${data.now} />`],
          ["Paused tasks", data.paused_tasks.join(", ")],
        ]} />
      <//>`}
    <//>`;
}
