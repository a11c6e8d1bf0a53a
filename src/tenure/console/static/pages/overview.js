// All queues and workers at a glance.
import { html } from "../html.js";
import { useLive } from "../live.js";
import { Badge, Facts, Heading, Loaded, Name, Section, STATES, Table, Tile } from "../parts.js";
import { address, jobAddress, jobsAddress, queueAddress, term } from "../route.js";
import { Time, ago, count, span } from "../time.js";

const all = (queues, state) => queues.reduce((sum, queue) => sum + Number(queue.counts[state] ?? 0), 0);

function Tiles({ data }) {
  const oldest = Math.max(...data.queues.map((queue) => queue.oldest_waiting ?? -1), -1);
  const alive = data.workers.filter((worker) => !worker.stale && !worker.died).length;
  const failed = all(data.queues, "failed");
  return html`
    <div class="tiles">
      <${Tile} name="Waiting" value=${count(all(data.queues, "waiting"))} href=${jobsAddress("state:waiting")}
        note=${oldest < 0 ? "none waits" : `oldest ${span(oldest)}`} />
      <${Tile} name="Active" value=${count(all(data.queues, "active"))} href=${jobsAddress("state:active")} note="run now" />
      <${Tile} name="Delayed" value=${count(all(data.queues, "delayed"))} href=${jobsAddress("state:delayed")} note="due later" />
      <${Tile} name="Failed" value=${count(failed)} href=${address("failures")} kind=${failed ? "bad" : ""} note=${failed ? "see the faults" : "none"} />
      <${Tile} name="Workers" value=${alive} href=${address("workers")} kind=${alive ? "" : "warn"}
        note=${data.workers.length > alive ? `${data.workers.length - alive} not alive` : alive ? "all alive" : "none runs"} />
    </div>`;
}

/** The shares of the unfinished and the failed jobs. The numbers stand in the other columns. */
function Mix({ counts }) {
  const shares = ["active", "waiting", "delayed", "failed"].map((state) => [state, Number(counts[state] ?? 0)]);
  const sum = shares.reduce((total, [, number]) => total + number, 0);
  return html`
    <span class="mix" aria-hidden="true">
      ${shares.filter(([, number]) => number).map(([state, number]) => html`
        <span key=${state} class=${state} style=${{ width: `${(100 * number) / sum}%` }}></span>`)}
    </span>`;
}

const cell = (state) => ({
  title: state[0].toUpperCase() + state.slice(1),
  kind: ["completed", "cancelled", "expired", "delayed"].includes(state) ? "number optional" : "number",
  cell: (queue) => {
    const number = queue.counts[state] ?? 0;
    const where = jobsAddress(term("queue", queue.queue), `state:${state}`);
    return number ? html`<a class=${`count ${state}`} href=${where}>${count(number)}</a>` : html`<span class="none">0</span>`;
  },
});

const QUEUES = [
  {
    title: "Queue",
    kind: "long wide",
    cell: (queue) => html`<span class="with-badge"><${Name} href=${queueAddress(queue.queue)}>${queue.queue}<//>
      ${queue.paused && html`<span class="badge paused">paused</span>`}
      ${queue.limits.length > 0 && html`<span class="badge paused">limited</span>`}</span>`,
  },
  { title: "Mix", kind: "optional", cell: (queue) => html`<${Mix} counts=${queue.counts} />` },
  { title: "Oldest waiting", kind: "number optional", cell: (queue) => span(queue.oldest_waiting) },
  ...STATES.map(cell),
];

const SLOW = [
  { title: "Job", kind: "long rest", cell: (run) => html`<${Name} href=${jobAddress(run)}>${`${run.task} ${run.id}`}<//>` },
  { title: "Runs for", kind: "number", cell: (run) => span(run.ran) },
  { title: "Usual", kind: "number", cell: (run) => span(run.usual) },
];

const WORKERS = [
  { title: "Worker", kind: "long", cell: (worker) => html`<${Name} href=${address("workers", { worker: worker.owner })}>${worker.name}<//>` },
  { title: "State", cell: (worker) => html`<${Badge} state=${stateOf(worker)} />` },
  { title: "Active", kind: "number", cell: (worker) => `${worker.active} of ${worker.concurrency}` },
  { title: "Queues", kind: "long wide optional", cell: (worker) => html`<${Name}>${worker.queues.join(", ")}<//>` },
  { title: "Last beat", kind: "number", cell: (worker) => ago(worker.seen_ago) },
];

function stateOf(worker) {
  if (worker.died) return "died";
  return worker.stale ? "stale" : worker.stopping ? "stopping" : worker.quiet ? "quiet" : "alive";
}

function Complaints({ complaints }) {
  if (!complaints.length) return html`<div class="callout good"><strong>Healthy.</strong> The health check finds nothing to mend.</div>`;
  return html`
    <div class="callout warn">
      <strong>${complaints.length === 1 ? "One thing needs" : `${complaints.length} things need`} attention</strong>
      <ul>${complaints.map((text) => html`<li key=${text}>${text}</li>`)}</ul>
    </div>`;
}

export function Overview() {
  const live = useLive("survey");
  return html`
    <${Heading}>Overview<//>
    <${Loaded} live=${live}>${(data) => html`
      <${Complaints} complaints=${data.complaints} />
      <${Tiles} data=${data} />
      <${Section} title="Queues">
        <${Table} caption="Queues with their jobs by state" columns=${QUEUES} rows=${data.queues} id=${(queue) => queue.queue}
          empty="There is no queue yet: the first job makes one." />
      <//>
      ${data.slow.length > 0 && html`<${Section} title="Slower than usual">
        <${Table} caption="Runs that take far longer than usual" columns=${SLOW} rows=${data.slow} id=${(run) => `${run.queue} ${run.id}`} />
      <//>`}
      <${Section} title="Workers">
        <${Table} caption="Workers" columns=${WORKERS} rows=${data.workers} id=${(worker) => worker.owner}
          empty="No worker is known. Start one: tenure worker MODULE:APP" />
      <//>
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
