// The workers with the stacks of their runs; the leases, and what stalled.
import { Acts } from "../acts.js";
import { path } from "../api.js";
import { html, useMemo } from "../html.js";
import { useLive } from "../live.js";
import { Badge, Facts, Heading, JOB, Loaded, Name, Section, Table } from "../parts.js";
import { address, jobAddress, jobsAddress, queueAddress, term } from "../route.js";
import { Time, ago, count, now, size, span } from "../time.js";
import { Behind, newest, recent } from "./events.js";

const COLUMNS = [
  { title: "Worker", kind: "long", cell: (worker) => html`<${Name} href=${address("workers", { worker: worker.owner })}>${worker.name}<//>` },
  { title: "State", cell: (worker) => html`<${Badge} state=${worker.state} />` },
  { title: "Active", kind: "number", cell: (worker) => `${worker.active} of ${worker.concurrency}` },
  { title: "Process", kind: "long optional", cell: (worker) => html`<${Name}>${`${worker.host}:${worker.pid}`}<//>` },
  { title: "Last beat", kind: "number", cell: (worker) => ago(worker.seen_ago) },
  { title: "Lag", kind: "number optional", cell: (worker) => span(worker.lag) },
  { title: "Memory", kind: "number optional", cell: (worker) => size(worker.memory) },
  { title: "Started", kind: "when optional", cell: (worker) => html`<${Time} at=${worker.started} />` },
];

function orders(worker) {
  const order = (verb) => ({ path: path(["workers", worker.owner, verb]) });
  if (!["alive", "quiet"].includes(worker.state)) return [];
  return [
    worker.state === "quiet"
      ? { ...order("resume"), name: "Resume", title: `Resume ${worker.name}?`, text: "It takes jobs again.", done: "The worker takes jobs again." }
      : { ...order("quiet"), name: "Quiet", title: `Quiet ${worker.name}?`, text: "It takes no more jobs. Its runs go on to their end.", done: "The worker takes no more jobs." },
    {
      ...order("stop"), name: "Stop", title: `Stop ${worker.name}?`, strong: true, done: "The worker was told to stop.",
      text: "It takes no more jobs, waits for its runs as long as its settings say, hands back the rest, and ends. A supervisor may start a new one.",
    },
  ];
}

function Stacks({ worker }) {
  const live = useLive(path(["workers", worker.owner, "stacks"]));
  return html`
    <${Section} title=${`Runs of ${worker.name}`} aside=${html`<${Acts} acts=${orders(worker)} /><a href=${address("workers")}>Close</a>`}>
      ${worker.why && html`<p class="callout warn">${worker.why}</p>`}
      <${Facts} facts=${[
        ["Owner id", html`<code>${worker.owner}</code>`],
        ["Queues", worker.queues.map((queue) => html`<a key=${queue} class="tag" href=${queueAddress(queue)}>${queue}</a>`)],
        ["Jobs", html`<a href=${jobsAddress(term("owner", worker.owner))}>List its active jobs</a>`],
      ]} />
      <${Loaded} live=${live}>${({ stacks }) =>
        stacks.length === 0
          ? html`<p class="empty">It runs no jobs now.</p>`
          : html`<ol class="runs">${stacks.map((run) => html`<${Stack} key=${`${run.id} ${run.fence}`} run=${run} />`)}</ol>`}
      <//>
    <//>`;
}

const Stack = ({ run }) => html`
  <li>
    <div class="run-head">
      <a class="name" href=${jobAddress(run)} title=${run.id}><strong>${run.task}</strong></a>
      <span>run ${run.run}</span>
      <span>for ${span(run.ran)}</span>
      <span class="none">${run.trace ? `stack as of ${ago(run.seen_ago)}` : "no stack recorded yet"}</span>
    </div>
    ${run.trace && html`<pre class="detail" tabindex="0">${run.trace}</pre>`}
  </li>`;

export function Workers({ params }) {
  const wanted = params.get("worker");
  const live = useLive("workers");
  return html`
    <${Heading}>Workers<//>
    <${Loaded} live=${live}>${({ workers }) => {
      const chosen = workers.find((worker) => worker.owner === wanted);
      return html`
        <${Table} caption="Workers" columns=${COLUMNS} rows=${workers} id=${(worker) => worker.owner}
          chosen=${(worker) => worker.owner === wanted} empty="No worker is known. Start one: tenure worker MODULE:APP" />
        ${chosen && html`<${Stacks} key=${chosen.owner} worker=${chosen} />`}
        ${wanted && !chosen && html`<p class="callout warn">The worker <code>${wanted}</code> is not known any more.</p>`}
        ${!wanted && workers.length > 0 && html`<p class="remark">Choose a worker to see the stacks of its runs.</p>`}`;
    }}<//>`;
}

const DAY = 86_400_000;
const KEPT = 2_000;
const SHOWN = 20;

/** The reasons of stalls, in words. */
const REASONS = {
  lease_expired: "lease ran out: the worker gave no sign",
  process_died: "the process died",
  no_progress: "the run made no progress",
  loop_blocked: "the event loop was blocked",
};

const Left = ({ lease }) => {
  // Between two answers the time goes on.
  const left = (Date.parse(lease.lease_until) - now.value) / 1000;
  if (lease.suspect_until) return html`<strong class="late">out, stalls <${Time} at=${lease.suspect_until} /></strong>`;
  return left <= 0 ? html`<strong class="late">out for ${span(-left)}</strong>` : span(Math.round(left));
};

const LEASES = [
  { title: "Time left", kind: "when", cell: (lease) => html`<${Left} lease=${lease} />` },
  JOB,
  { title: "Last sign", kind: "number", cell: (lease) => (lease.last_sign === null ? "–" : ago(lease.last_sign)) },
  { title: "Runs for", kind: "number optional", cell: (lease) => span(lease.ran) },
  { title: "Run", kind: "number optional", cell: (lease) => html`<span title=${`fence ${lease.fence}`}>${lease.run}</span>` },
  { title: "Queue", kind: "optional long", cell: (lease) => html`<${Name} href=${queueAddress(lease.queue)}>${lease.queue}<//>` },
  {
    title: "Worker",
    kind: "long optional",
    cell: (lease) => html`<span class="with-badge"><${Name} href=${address("workers", { worker: lease.owner })}>${lease.worker || lease.owner}<//>
      ${lease.worker_state !== "alive" && html`<${Badge} state=${lease.worker_state ?? "not known"} />`}</span>`,
  },
  { title: "Lag", kind: "number optional", cell: (lease) => span(lease.lag) },
];

const STALLED = [
  { title: "At", kind: "when", cell: (event) => html`<${Time} at=${event.at} />` },
  JOB,
  { title: "Reason", kind: "long optional", cell: (event) => html`<${Name}>${REASONS[event.reason] ?? event.reason}<//>` },
  { title: "Silent for", kind: "number optional", cell: (event) => span(event.silent_for) },
  { title: "Then", cell: (event) => html`<span class=${`badge ${event.action === "failed" ? "failed" : "waiting"}`}>${event.action === "failed" ? "failed" : "runs again"}</span>` },
];

function Recoveries() {
  const read = useMemo(() => newest({ start: { within: "1d" }, kind: "stalled", most: KEPT }), []);
  const live = useLive("stalls", { read, every: 10_000 });
  return html`
    <${Section} title="Stalls of the last 24 hours" aside=${html`<a href=${address("events", { within: "1d", kind: "stalled" })}>All events</a>`}>
      <${Loaded} live=${live}>${({ events, behind }) => {
        const stalls = recent(events, DAY);
        const reasons = Object.groupBy(stalls, ({ reason }) => reason);
        return html`
          <${Behind} behind=${behind} />
          ${stalls.length > 0 && html`<${Facts} facts=${Object.entries(reasons).map(([reason, { length }]) => [REASONS[reason] ?? reason, count(length)])} />`}
          <${Table} caption="The newest stalls" columns=${STALLED} rows=${stalls.slice(0, SHOWN)} id=${(event) => event.cursor}
            empty=${behind ? "None so far." : "No run has stalled: each worker renewed its leases in time."} />`;
      }}<//>
    <//>`;
}

export function Leases() {
  const live = useLive(path(["leases"], { limit: 50 }), { every: 10_000 });
  return html`
    <${Heading}>Leases<//>
    <p class="remark">Each run holds a lease, which its worker renews. A run whose lease is out is suspect, and after a grace period it
      counts as stalled: the job runs again, or fails.</p>
    <${Loaded} live=${live}>${(data) => html`
      <${Table} caption="Leases, the one with the least time left first" columns=${LEASES} rows=${data.leases} id=${(lease) => `${lease.queue} ${lease.id}`}
        empty="No job runs now." />
      ${(data.short || data.active > data.leases.length) && html`<p class="remark">${count(data.leases.length)} of ${data.short ? `the ${count(data.active)} active jobs that were enqueued last` : `${count(data.active)} active jobs`}.</p>`}`}
    <//>
    <${Recoveries} />`;
}
