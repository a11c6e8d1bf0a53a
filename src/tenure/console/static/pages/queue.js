// One queue, one task, and the list of tasks: how long their jobs wait and run, settings, and the newest jobs.
import { Acts } from "../acts.js";
import { path } from "../api.js";
import { FiguresSections } from "../chart.js";
import { html } from "../html.js";
import { useLive } from "../live.js";
import { concerns } from "../stream.js";
import { Facts, Heading, JobTable, Loaded, Name, Section, STATES, Table, Tile, Value } from "../parts.js";
import { address, jobsAddress, queueAddress, taskAddress, term } from "../route.js";
import { Time, count, span } from "../time.js";

const SERVERS = 5;

const kept = ({ age, count: most }) => span(age) + (most === null ? "" : `, the newest ${count(most)}`);

/** The live workers that serve a queue. */
const serving = (workers, queue) => workers.filter((worker) => !worker.stale && !worker.died && worker.queues.includes(queue));

const Settings = ({ queue, workers }) => html`
  <${Facts} facts=${[
    ["Served by", workers && servers(serving(workers, queue.queue))],
    ["Rate", queue.rate ? `one per ${span(queue.rate.every)}, up to ${queue.rate.burst} at once` : "no limit"],
    ...Object.entries(queue.retention).map(([state, keep]) => [`Keeps ${state}`, kept(keep)]),
    ["Lease", queue.stall?.lease ? span(queue.stall.lease) : "as the task says"],
    ["Stalls allowed", queue.stall?.max_stalls ?? null],
    ["Recorded on request", queue.record.join(", ")],
    ["Parked", queue.parked ? count(queue.parked) : null],
    ["Limits", queue.limits.length ? queue.limits.map((limit) => html`<span>${limit.rate ?? "queue"} until <${Time} at=${limit.until} /> </span>`) : null],
  ]} />`;

function servers(workers) {
  if (!workers.length) return "no live worker";
  const rest = workers.length - SERVERS;
  return html`${workers.slice(0, SERVERS).map(({ owner, name }) => html`<${Name} key=${owner} href=${address("workers", { worker: owner })}>${name}<//>`)}
    ${rest > 0 && `and ${count(rest)} more`}`;
}

function number(queue, state) {
  const jobs = count(queue.counts[state] ?? 0);
  const oldest = state === "waiting" ? queue.oldest_waiting : null;
  return oldest === null ? jobs : html`${jobs} <span class="tile-note">oldest ${span(oldest)}</span>`;
}

const pauseAct = (kind, name, paused) => ({
  path: path([`${kind}s`, name]),
  method: "PATCH",
  body: { paused: !paused },
  ...(paused
    ? { name: "Resume", title: `Resume this ${kind}?`, text: "Its jobs start again.", done: `The ${kind} is resumed.` }
    : { name: "Pause", title: `Pause this ${kind}?`, text: "None of its jobs starts until it is resumed. Runs go on to their end, and new jobs are accepted.", done: `The ${kind} is paused.` }),
});

export function Queue({ params }) {
  const name = params.get("name") ?? "";
  const options = { concerns: (found) => concerns(found, { queue: name }) };
  const settings = useLive(path(["queues", name]), options);
  const survey = useLive("survey", options);
  const filter = term("queue", name);
  const jobs = useLive(path(["jobs"], { filter, limit: 10 }), options);
  return html`
    <${Heading} above=${html`<a href=${address("")}>Now</a> / queue`}
      aside=${settings.data && html`
        ${settings.data.paused && html`<span class="badge paused">paused</span>`}
        <${Acts} acts=${[pauseAct("queue", name, settings.data.paused)]} />`}>${name}<//>
    <${Loaded} live=${settings}>${(queue) => html`
      <div class="tiles small">
        ${STATES.map((state) => html`<${Tile} key=${state} name=${state} value=${number(queue, state)}
          kind=${state === "failed" && queue.counts.failed ? "bad" : ""} href=${jobsAddress(filter, `state:${state}`)} />`)}
      </div>
      <${FiguresSections} page="queue" params=${params} about=${{ queue: name }} />
      <${Section} title="Newest jobs" aside=${html`<a href=${jobsAddress(filter)}>All jobs of this queue</a>`}>
        <${Loaded} live=${jobs}>${(page) => html`
          <${JobTable} jobs=${page.jobs} caption="Newest jobs of this queue" empty="This queue has no jobs." hideQueue=${true} />`}
        <//>
      <//>
      <${Section} title="Settings"><${Settings} queue=${queue} workers=${survey.data?.workers} /><//>`}
    <//>`;
}

/** What the app or a worker says of a task. */
const said = (task) => task.declared ?? task.published;

const Marks = ({ task }) => html`
  ${task.paused && html`<span class="badge paused">paused</span>`}
  ${task.waiting_unknown && html`<span class="badge failed">jobs that no worker can read</span>`}`;

const TASKS = [
  {
    title: "Task",
    kind: "long wide",
    cell: (task) => html`<span class="with-badge"><${Name} href=${taskAddress(task.name)}>${task.name}<//><${Marks} task=${task} /></span>
      <span class="name id" title=${said(task)?.help}>${said(task)?.help}</span>`,
  },
  { title: "Queue", kind: "long optional", cell: (task) => (said(task) ? html`<${Name} href=${queueAddress(said(task).queue)}>${said(task).queue}<//>` : "–") },
  { title: "Arguments", kind: "long optional", cell: (task) => html`<${Name}>${said(task)?.signature ?? "–"}<//>` },
  { title: "Version", kind: "number optional", cell: (task) => task.version ?? said(task)?.version ?? "–" },
  { title: "Live workers", kind: "number", cell: (task) => task.workers },
];

export function Tasks() {
  const live = useLive("tasks", { every: 10_000 });
  return html`
    <${Heading}>Tasks<//>
    <${Loaded} live=${live}>${({ tasks }) => html`
      <${Table} caption="Tasks that the app, a worker or a schedule names" columns=${TASKS} rows=${tasks} id=${(task) => task.name}
        empty="No task is known. Workers publish their tasks when they start: tenure worker MODULE:APP" />`}
    <//>`;
}

function TaskFacts({ task }) {
  const { queue, signature, options = {} } = said(task) ?? {};
  return html`<${Facts} facts=${[
    ["Queue", queue && html`<a href=${queueAddress(queue)}>${queue}</a>`],
    ["Arguments", signature && html`<code>${signature}</code>`],
    ["Live workers", task.workers],
    ["Payload version", task.version],
    ["Rate", task.rate && `one per ${span(task.rate.every)}, up to ${task.rate.burst} at once`],
    ["Published", task.published && html`<${Time} at=${task.published.published} />`],
    ["Found by", task.published?.search.join(", ")],
    ...Object.entries(options),
  ]} />`;
}

export function Task({ params }) {
  const name = params.get("name") ?? "";
  const live = useLive(path(["tasks", name]));
  const filter = term("task", name);
  const jobs = useLive(path(["jobs"], { filter, limit: 10 }));
  return html`
    <${Heading} above=${html`<a href=${address("tasks")}>Tasks</a> / task`}
      aside=${live.data && html`<${Marks} task=${live.data} /><${Acts} acts=${[pauseAct("task", name, live.data.paused)]} />`}>${name}<//>
    <${Loaded} live=${live}>${(task) => html`
      ${said(task)?.help && html`<p class="remark">${said(task).help}</p>`}
      <${TaskFacts} task=${task} />
      <${FiguresSections} page="task" params=${params} about=${{ task: name }} />
      <${Section} title="Newest jobs" aside=${html`<a href=${jobsAddress(filter)}>All jobs of this task</a>`}>
        <${Loaded} live=${jobs}>${(page) => html`
          <${JobTable} jobs=${page.jobs} caption="Newest jobs of this task" empty=${page.short ? "None of the newest jobs is of this task." : "This task has no jobs."} />`}
        <//>
      <//>
      ${task.published?.arguments && html`<${Section} title="JSON Schema of the arguments"><${Value} value=${task.published.arguments} /><//>`}`}
    <//>`;
}
