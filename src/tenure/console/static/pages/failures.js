// The failed jobs, one row a fault.
import { html } from "../html.js";
import { useLive } from "../live.js";
import { Choice, Heading, Loaded, Name, Table } from "../parts.js";
import { jobAddress, jobsAddress, term } from "../route.js";
import { Time, count } from "../time.js";

const SHOWN = 2;

/** The end of an id: ids of one time begin alike. */
const tail = (id) => (id.length > 10 ? `…${id.slice(-6)}` : id);

const COLUMNS = [
  {
    title: "Fault",
    kind: "long wide",
    cell: (group) => html`
      <span class="fault"><a class="name" href=${jobsAddress(term("fault", group.fault))} title=${`${group.error ?? group.reason}: ${group.message}`}>
        ${group.error ?? group.reason}</a><span class="name id" title=${group.message}>${group.message || group.fault}</span></span>`,
  },
  { title: "Jobs", kind: "number", cell: (group) => html`<a class="count failed" href=${jobsAddress(term("fault", group.fault))}>${count(group.count)}</a>` },
  { title: "Task", kind: "long optional", cell: (group) => html`<${Name} href=${jobsAddress(term("task", group.task), "state:failed")}>${group.task}<//>` },
  { title: "Reason", kind: "optional", cell: (group) => group.reason },
  { title: "First seen", kind: "when optional", cell: (group) => html`<${Time} at=${group.first} />` },
  { title: "Last seen", kind: "when", cell: (group) => html`<${Time} at=${group.last} />` },
  {
    title: "Newest jobs",
    kind: "long optional",
    cell: (group) => html`<span class="ids">${group.newest.slice(0, SHOWN).map((job) => html`
      <a key=${job.id} class="name id" href=${jobAddress(job)} title=${`${job.queue} ${job.id}`}>${tail(job.id)}</a>`)}</span>`,
  },
];

const ORDERS = {
  "": { text: "most jobs", caption: "Faults, the one with the most jobs first", sorted: (groups) => groups },
  last: { text: "last seen", caption: "Faults, the last seen first", sorted: (groups) => groups.toSorted((a, b) => Date.parse(b.last) - Date.parse(a.last)) },
};

export function Failures({ params }) {
  const by = params.get("order") ?? "";
  const order = ORDERS[by] ?? ORDERS[""];
  const live = useLive("dead/groups", { every: 6000 });
  return html`
    <${Heading}>Failures<//>
    <${Loaded} live=${live}>${(data) => html`
      <p class="remark">${count(data.total)} failed ${data.total === 1 ? "job" : "jobs"}, grouped by
        fault.${" "}${data.others > 0 && `${count(data.others)} of them have faults too rare to be listed. `}To run them
        again: <code>tenure dead redrive --fault FAULT</code></p>
      <div class="choices">
        <${Choice} page="failures" label="Order" name="order" value=${by} choices=${Object.entries(ORDERS).map(([name, { text }]) => [name, text])} params=${params} />
      </div>
      <${Table} caption=${order.caption} columns=${COLUMNS} rows=${order.sorted(data.groups)}
        id=${(group) => group.fault} empty="No job has failed." />`}
    <//>`;
}
