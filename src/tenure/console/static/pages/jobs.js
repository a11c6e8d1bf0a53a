// Jobs that a filter selects, whose address is the filter; the failed jobs, one row a fault; and one fault.
import { BulkAct } from "../acts.js";
import { path } from "../api.js";
import { Hours } from "../chart.js";
import { html, useEffect, useRef } from "../html.js";
import { useLive } from "../live.js";
import { Choice, Facts, Heading, JobTable, Loaded, Name, STATES, Section, Table, announce } from "../parts.js";
import { address, faultAddress, go, jobAddress, jobsAddress, taskAddress, term } from "../route.js";
import { Time, count } from "../time.js";

const LIMIT = 50;
const STATE = /(^|\s)state:(\S+)/;

/** Return the filter with this state as its only one, or without it if it has it. */
function toggled(filter, state) {
  const has = STATE.exec(filter)?.[2] === state;
  const rest = filter.replace(STATE, " ").replace(/\s+/g, " ").trim();
  return has ? rest : `state:${state} ${rest}`.trim();
}

function FilterForm({ filter }) {
  const field = useRef(null);
  useEffect(() => {
    field.current.value = filter;
  }, [filter]);
  const submit = (event) => {
    event.preventDefault();
    go(address("jobs", { filter: field.current.value.trim() }));
  };
  const current = STATE.exec(filter)?.[2];
  return html`
    <form class="filter" role="search" onSubmit=${submit}>
      <label for="filter">Filter</label>
      <div class="filter-line">
        <input id="filter" ref=${field} type="search" name="filter" defaultValue=${filter} spellcheck="false" autocapitalize="off"
          autocomplete="off" placeholder="state:failed task:mail.* age:>1h" aria-describedby="filter-help" />
        <button type="submit" class="main-button">Show</button>
      </div>
      <p id="filter-help" class="help">Fields: state, queue, task, tag, reason, error, fault, owner, key, schedule, id, age, ended. All terms must hold.</p>
    </form>
    <ul class="chips" aria-label="States">
      ${STATES.map((state) => html`
        <li key=${state}><a href=${address("jobs", { filter: toggled(filter, state) })} class=${`chip ${state}`}
          aria-current=${current === state ? "true" : null}>${state}</a></li>`)}
    </ul>`;
}

function Pages({ filter, after, page }) {
  if (!page.jobs.length && !after && !page.next) return null;
  return html`
    <nav class="paging" aria-label="Pages of jobs">
      <span>${after ? `${page.jobs.length} older jobs` : `The newest ${page.jobs.length} jobs`}${page.short ? `, among ${page.looks} looked at` : ""}</span>
      <span class="buttons">
        ${after && html`<a class="button" href=${address("jobs", { filter })}>Newest</a>`}
        ${page.next && html`<a class="button" rel="next" href=${address("jobs", { filter, after: page.next })}>${page.short ? "Look further" : "Older"}</a>`}
      </span>
    </nav>`;
}

export function Jobs({ params }) {
  const filter = params.get("filter") ?? "";
  const after = params.get("after") ?? "";
  const live = useLive(path(["jobs"], { filter, after, limit: LIMIT }));
  const ready = live.data && !live.stale ? `${filter} ${after}` : null;
  useEffect(() => {
    if (ready !== null) announce(`${live.data.jobs.length} jobs`);
  }, [ready]);
  return html`
    <${Heading} aside=${html`<div class="acts"><${BulkAct} filter=${filter} /></div>`}>Jobs<//>
    <${FilterForm} filter=${filter} />
    <${Loaded} live=${live}>${(page) => html`
      <${JobTable} jobs=${page.jobs} caption="Jobs, the newest first" empty=${
        page.short ? "None of the jobs looked at matches; older ones may." : filter ? "No job matches this filter." : "There are no jobs."} />
      ${page.hints.map((hint) => html`<p key=${hint} class="callout warn">${hint}</p>`)}
      <${Pages} filter=${filter} after=${after} page=${page} />`}
    <//>`;
}

const SHOWN = 2;

/** The end of an id: ids of one time begin alike. */
const tail = (id) => (id.length > 10 ? `…${id.slice(-6)}` : id);

const COLUMNS = [
  {
    title: "Fault",
    kind: "long wide",
    cell: (group) => html`
      <span class="fault"><a class="name" href=${faultAddress(group.fault)} title=${`${group.error ?? group.reason}: ${group.message}`}>
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
        fault.${" "}${data.others > 0 && `${count(data.others)} of them have faults too rare to be listed.`}</p>
      <div class="choices">
        <${Choice} page="failures" label="Order" name="order" value=${by} choices=${Object.entries(ORDERS).map(([name, { text }]) => [name, text])} params=${params} />
      </div>
      <${Table} caption=${order.caption} columns=${COLUMNS} rows=${order.sorted(data.groups)}
        id=${(group) => group.fault} empty="No job has failed." />`}
    <//>`;
}

/** When the jobs of a fault failed, by hour. */
function Lately({ data }) {
  const { hours, short, looks } = data;
  const sum = hours.reduce((total, number) => total + number, 0);
  const most = Math.max(...hours);
  const text = sum ? `${count(sum)} failed within 48 hours, at most ${count(most)} in an hour, the last ${hours.length - hours.findLastIndex((number) => number)} hours ago or less` : "None failed within 48 hours";
  return html`
    <figure class="chart">
      <figcaption>${sum ? `${count(sum)} failed${short ? ", among those looked at" : ""}; at most ${count(most)} in an hour` : `None of ${short ? "those looked at" : "its jobs"} failed within this time.`}</figcaption>
      ${sum > 0 && html`<div class="plot low"><${Hours} values=${hours} text=${text} /></div>
        <p class="axis" aria-hidden="true"><span>48 h ago</span><span>24 h ago</span><span>now</span></p>`}
      <p class="help">Jobs that have been run again or deleted do not count.${short && ` About ${count(looks)} jobs were looked at, and there are more.`}</p>
    </figure>`;
}

export function Fault({ params }) {
  const name = params.get("fault") ?? "";
  const live = useLive(path(["dead", "groups", name]), { every: 6000 });
  const hours = useLive(path(["dead", "groups", name, "hours"]), { every: 30_000 });
  const filter = term("fault", name);
  const jobs = useLive(path(["jobs"], { filter, limit: 10 }), { every: 6000 });
  return html`
    <${Heading} above=${html`<a href=${address("failures")}>Failures</a> / fault`}
      aside=${live.data && html`<div class="acts"><${BulkAct} filter=${filter} name="Run again …" actions=${["redrive"]} /><${BulkAct} filter=${filter} name="Delete …" actions=${["delete"]} /></div>`}>${live.data?.error ?? live.data?.reason ?? name}<//>
    <${Loaded} live=${live}>${(group) => html`
      ${group.message && html`<pre class="value" tabindex="0">${group.message}</pre>`}
      <${Facts} facts=${[
        ["Jobs", html`<a href=${jobsAddress(filter)}>${count(group.count)}</a>`],
        ["Task", html`<a href=${taskAddress(group.task)}>${group.task}</a>`],
        ["Reason", group.reason],
        ["First seen", html`<${Time} at=${group.first} />`],
        ["Last seen", html`<${Time} at=${group.last} />`],
        ["Fault", html`<code>${group.fault}</code>`],
      ]} />
      <${Section} title="The last 48 hours"><${Loaded} live=${hours}>${(data) => html`<${Lately} data=${data} />`}<//><//>
      <${Section} title="Newest jobs" aside=${html`<a href=${jobsAddress(filter)}>All jobs with this fault</a>`}>
        <${Loaded} live=${jobs}>${(page) => html`<${JobTable} jobs=${page.jobs} caption="Newest jobs with this fault" empty="No job has this fault any more." />`}<//>
      <//>`}
    <//>`;
}
