// The workers, and the stacks of the jobs that one of them runs.
import { Acts } from "../acts.js";
import { path } from "../api.js";
import { html } from "../html.js";
import { useLive } from "../live.js";
import { Badge, Facts, Heading, Loaded, Name, Section, Table } from "../parts.js";
import { address, jobAddress, jobsAddress, queueAddress, term } from "../route.js";
import { Time, ago, size, span } from "../time.js";

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
