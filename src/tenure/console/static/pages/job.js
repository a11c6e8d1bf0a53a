// One job: its facts, why it does not run, its runs on one time axis, its log, arguments and result.
import { Acts } from "../acts.js";
import { path } from "../api.js";
import { html, useMemo } from "../html.js";
import { useLive } from "../live.js";
import { concerns } from "../stream.js";
import { Badge, Facts, Heading, Loaded, Name, Section, Table, Value, attempts } from "../parts.js";
import { address, jobAddress, jobsAddress, queueAddress, taskAddress, term } from "../route.js";
import { Time, exact, now, span } from "../time.js";
import { newest } from "./events.js";

const EVENTS = 500;

const OVER = ["completed", "failed", "cancelled", "expired"];

function Why({ reasons }) {
  if (!reasons.length) return null;
  const [first, ...others] = reasons;
  return html`
    <div class="callout why">
      <${Cause} reason=${first} main=${true} />
      ${others.length > 0 && html`<ul>${others.map((reason) => html`<li key=${reason.cause}><${Cause} reason=${reason} /></li>`)}</ul>`}
    </div>`;
}

function Cause({ reason, main = false }) {
  return html`
    <p class=${main ? "cause" : ""}>${reason.text}
      ${reason.until && html` <span class="none">(until <${Time} at=${reason.until} />)</span>`}
      ${reason.blocker && html` <a href=${jobAddress(reason.blocker)}>Show that job</a>`}
    </p>
    ${reason.remedy && html`<p class="remedy">${reason.remedy}</p>`}`;
}

const retryText = ({ max_attempts, backoff, base, cap }) =>
  max_attempts === 1 ? "one attempt" : `${max_attempts} attempts, ${backoff}, ${span(base)} to ${span(cap)} apart`;

const WorkerLink = ({ owner, name }) => html`<${Name} href=${address("workers", { worker: owner })}>${name}<//>`;

function JobFacts({ job }) {
  const over = OVER.includes(job.state);
  const progress = job.progress === null ? null : typeof job.progress === "number" ? `${Math.round(job.progress * 100)} %` : JSON.stringify(job.progress, (_, value) => (typeof value === "bigint" ? String(value) : value));
  return html`
    <${Facts} facts=${[
      ["Task", html`<a href=${taskAddress(job.task)}>${job.task}</a>`],
      ["Queue", html`<a href=${queueAddress(job.queue)}>${job.queue}</a>`],
      ["Id", html`<code class="wrap">${job.id}</code>`],
      ["Enqueued", html`<${Time} at=${job.created} />`],
      ["Due", !over && html`<${Time} at=${job.run_at} />`],
      ["Started", job.started && html`<${Time} at=${job.started} />`],
      ["Ended", job.finished && html`<${Time} at=${job.finished} />`],
      ["Took", job.started && job.finished && span((Date.parse(job.finished) - Date.parse(job.started)) / 1000)],
      ["Attempt", job.starts ? attempts(job) : null],
      ["Stalls", job.stalls ? `${job.stalls}, ${job.max_stalls} allowed` : null],
      ["Handed back", job.releases || null],
      ["Reason", job.reason],
      ["Progress", [progress, job.progress_note].filter(Boolean).join(", ")],
      ["Worker", job.owner && html`<${WorkerLink} owner=${job.owner} name=${job.runs.findLast((run) => run.owner === job.owner)?.worker || job.owner} />`],
      ["Lease until", job.lease_until && html`<${Time} at=${job.lease_until} />`],
      ["Cancellation", job.cancel_asked && html`requested <${Time} at=${job.cancel_asked} />${job.cancel_reason ? `: ${job.cancel_reason}` : ""}`],
      ["Expires", job.expires_at && html`<${Time} at=${job.expires_at} />`],
      ["Deadline", job.deadline && html`<${Time} at=${job.deadline} />`],
      ["Timeout", job.timeout && span(job.timeout)],
      ["Retry", retryText(job.retry)],
      ["Priority", job.priority || null],
      ["Schedule", job.schedule && html`<a href=${jobsAddress(term("schedule", job.schedule))}>${job.schedule}</a>`],
      ["Tags", job.tags.length ? job.tags.map((tag) => html`<a key=${tag} class="tag" href=${jobsAddress(term("tag", tag))}>${tag}</a>`) : null],
    ].map(([name, value]) => [name, value === false ? null : value])} />`;
}

/** Return what filled the time from `from` to `to`, in which the job did not run; `due`: when it could start. */
function pause(from, to, due, kind) {
  const at = Math.min(Math.max(due ?? from, from), to);
  return [{ kind, from, to: at }, { kind: "waiting", from: at, to }].filter((part) => part.to - part.from >= 1);
}

/** Return the lanes: each run with the time before it, in parts {kind, from, to}; and the time since, if it may run again. */
function lanesOf(job, events, end) {
  const of = (kind, run) => events.find((event) => event.event === kind && event.run === run);
  const dueAfter = (run) => {
    const event = of("retried", run) ?? of("released", run);
    return event && Date.parse(event.at) + (event.delay ?? 0) * 1000;
  };
  const redriven = (from, to) => events.map((event) => (event.event === "redriven" ? Date.parse(event.at) : 0)).findLast((at) => at >= from && at <= to);
  let before = null;
  const since = (to, due) => {
    if (before === null) return pause(Date.parse(job.created), to, due, "delayed");
    const from = Date.parse(before.end);
    const again = redriven(from, to);
    return again ? pause(again, to, due, "delayed") : pause(from, to, due ?? dueAfter(before.number), "back-off");
  };
  const lanes = job.runs.map((run) => {
    const [from, to] = [Date.parse(run.start), run.end ? Date.parse(run.end) : end];
    // The event of its end says how long the job had waited when it was due.
    const { waited } = events.find((event) => event.run === run.number && event.waited) ?? {};
    const due = waited ? from - waited * 1000 : before === null && job.starts === 1 ? Date.parse(job.run_at) : undefined;
    const pauses = before === null && run.number > 1 ? [] : since(from, due);
    const stalled = events.find((event) => event.event === "stalled" && event.run === run.number && event.reason === "lease_expired");
    const suspect = Math.max(from, stalled ? Date.parse(stalled.at) - (stalled.silent_for ?? 0) * 1000 : run.end ? to : Math.min(to, Date.parse(job.lease_until ?? end)));
    before = run;
    const parts = [...pauses, { kind: kindOf(run.ended), from, to: Math.min(suspect, to), run: true }, { kind: "suspect", from: suspect, to }];
    return { run, parts: parts.filter((part) => part.run || part.to - part.from >= 1) };
  });
  if (job.state === "waiting" || job.state === "delayed") lanes.push({ run: null, parts: since(end, Date.parse(job.run_at)) });
  return lanes;
}

const PARTS = { delayed: "delayed", "back-off": "back-off before the next attempt", waiting: "waiting for a worker", suspect: "no sign of life" };

/** The runs, one lane each, on the time from the enqueue to the end. */
function Runs({ job, events }) {
  if (!job.runs.length) return html`<p class="empty">The job has not run yet.</p>`;
  const begin = Date.parse(job.created);
  const ends = [...job.runs.map((run) => Date.parse(run.end ?? run.start)), begin + 1];
  const end = Math.max(...ends, OVER.includes(job.state) ? Date.parse(job.finished ?? job.created) : now.value);
  const lanes = lanesOf(job, events, end);
  const place = (at) => Math.min(100, Math.max(0, (100 * (at - begin)) / (end - begin)));
  const used = Object.entries(PARTS).filter(([kind]) => lanes.some(({ parts }) => parts.some((part) => part.kind === kind)));
  return html`
    ${job.why && html`<p class="remark">${job.why}</p>`}
    <ol class="runs">
      ${lanes.map(({ run, parts }) => html`<${Run} key=${run?.fence ?? "next"} run=${run} parts=${parts} place=${place} />`)}
    </ol>
    <p class="axis"><span>enqueued <${Time} at=${job.created} /></span><span>${span((end - begin) / 1000)} later</span></p>
    ${used.length > 0 && html`<ul class="legend lanes" aria-hidden="true">${used.map(([kind, text]) => html`<li key=${kind} class=${kind}>${text}</li>`)}</ul>`}`;
}

function kindOf(ended) {
  if (ended === null) return "active";
  if (ended === "completed" || ended === "returned") return "completed";
  return ["cancelled", "released", "snoozed", "interrupted"].includes(ended) ? "cancelled" : "failed";
}

const lasting = (parts, wanted) => parts.filter(({ kind }) => kind === wanted).map(({ from, to }) => span((to - from) / 1000))[0];

/** The time before a run, and its silence at the end, in words. */
function timesOf(parts) {
  const [delayed, off, waited, silent] = ["delayed", "back-off", "waiting", "suspect"].map((kind) => lasting(parts, kind));
  return [delayed && `delayed ${delayed}`, off && `back-off ${off}`, waited && `waited ${waited}`, silent && `no sign of life for ${silent}`].filter(Boolean).join(", ");
}

const Lane = ({ parts, place, title }) => html`
  <div class="lane" aria-hidden="true" title=${title}>
    ${parts.map(({ kind, from, to, run }) => html`
      <span key=${kind} class=${`${kind}${run ? " run" : ""}`} style=${{ left: `${place(from)}%`, width: `${Math.max(place(to) - place(from), 0)}%` }}></span>`)}
  </div>`;

function Run({ run, parts, place }) {
  const times = timesOf(parts);
  if (run === null) return html`<li><div class="run-head"><strong>Next run</strong><span>${times}</span></div><${Lane} parts=${parts} place=${place} /></li>`;
  const kind = kindOf(run.ended);
  return html`
    <li>
      <div class="run-head">
        <strong>Run ${run.number}</strong>
        <span class=${`badge ${kind}`}>${run.ended ?? "runs"}${run.reason && run.reason !== run.ended ? `: ${run.reason}` : ""}</span>
        <span>${run.took === null ? "so far " : "took "}${span(run.took ?? Math.max(0, (now.value - Date.parse(run.start)) / 1000))}</span>
        ${times && html`<span class="none">${times}</span>`}
        <span><${Time} at=${run.start} /></span>
        <span class="run-worker">on <${WorkerLink} owner=${run.owner} name=${run.worker || run.owner} /> <span class="none">${run.host}:${run.pid}</span></span>
      </div>
      <${Lane} parts=${parts} place=${place} title=${`${exact(run.start)} – ${run.end ? exact(run.end) : "now"}`} />
      ${run.detail && html`<pre class="detail" tabindex="0">${run.detail}</pre>`}
      ${run.trace && html`<details><summary>Last known stack of run ${run.number}</summary><pre tabindex="0">${run.trace}</pre></details>`}
    </li>`;
}

const LOG = [
  { title: "At", kind: "when", cell: (line) => html`<${Time} at=${line.at} />` },
  { title: "Run", kind: "number optional", cell: (line) => line.run },
  { title: "Level", cell: (line) => html`<span class=${`level ${line.level.toLowerCase()}`}>${line.level.toLowerCase()}</span>` },
  {
    title: "Message",
    kind: "text",
    cell: (line) => html`${line.message}${Object.entries(line.fields).map(([name, value]) => html` <span class="field">${name}=${value}</span>`)}`,
  },
];

const Log = ({ job }) => html`
  ${job.log_dropped > 0 && html`<p class="remark">${job.log_dropped} older lines are missing.</p>`}
  <${Table} caption="What the handler has logged" columns=${LOG} rows=${job.log.map((line, index) => ({ ...line, index }))}
    id=${(line) => line.index} empty="The handler has logged nothing." />`;

const Failure = ({ error }) => html`
  <${Section} title="Error">
    <p class="error-text"><strong>${error.type}</strong>: ${error.message}</p>
    ${error.traceback && html`<details><summary>Traceback</summary><pre tabindex="0">${error.traceback}</pre></details>`}
  <//>`;

/** What can be done with the job, each only if it is still as shown. */
function JobActs({ job }) {
  const over = OVER.includes(job.state);
  const about = (verb) => ({ path: path(["jobs", job.queue, job.id, verb]), body: { ended: job.finished } });
  return html`<${Acts} acts=${[
    over ? null : {
      ...about("cancel"), name: "Cancel", title: "Cancel this job?", done: "The job is cancelled, or its run was asked to stop.",
      text: job.state === "active" ? "Its run is asked to stop. If the handler ignores that, the run goes on to its end." : "It will not run.",
    },
    job.state === "completed" || !over ? null : {
      ...about("redrive"), name: "Run again", title: "Run this job again?", done: "The job is back in its queue.",
      text: "It goes back into its queue with the same arguments and new attempts.",
    },
    job.state === "active" ? null : {
      ...about("delete"), name: "Delete", title: "Delete this job?", role: "admin", strong: true, done: "The job is deleted.",
      text: `${over ? "" : "It will not run. "}Its record, its result and its log are removed. This cannot be undone.`,
    },
  ]} />`;
}

export function Job({ params }) {
  const [queue, id] = [params.get("queue") ?? "", params.get("id") ?? ""];
  const names = ["jobs", queue, id];
  const options = { every: 3000, concerns: (found) => concerns(found, { queue, id }) };
  const live = useLive(path(names), options);
  const why = useLive(path([...names, "why"]), options);
  // They are found by reading the log: only the first read begins at its start, and a frame must name the job.
  const read = useMemo(() => newest({ names: [...names, "events"], start: { after: "0" }, most: EVENTS }), [queue, id]);
  const events = useLive(`events ${queue} ${id}`, { read, every: 15_000, concerns: (found) => concerns({ ...found, complete: true }, { queue, id }) });
  return html`
    <${Heading} above=${html`<a href=${address("jobs")}>Jobs</a> / job`}
      aside=${live.data && html`<${Badge} state=${live.data.state} /><${JobActs} job=${live.data} />`}>${live.data?.task ?? params.get("id") ?? "Job"}<//>
    <${Loaded} live=${live}>${(job) => html`
      <${Why} reasons=${why.data?.reasons ?? []} />
      <${JobFacts} job=${job} />
      <${Section} title="Runs"><${Runs} job=${job} events=${events.data?.events.toReversed() ?? []} /><//>
      ${job.error && html`<${Failure} error=${job.error} />`}
      <${Section} title="Log"><${Log} job=${job} /><//>
      <${Section} title="Arguments"><${Value} value=${job.arguments} /><//>
      ${job.state === "completed" && html`<${Section} title="Result"><${Value} value=${job.result} /><//>`}
      ${job.data !== null && html`<${Section} title="Data"><${Value} value=${job.data} /><//>`}
      ${Object.keys(job.headers).length > 0 && html`<${Section} title="Headers"><${Value} value=${job.headers} /><//>`}`}
    <//>
    ${live.problem?.status === 404 && html`<p><a href=${jobsAddress(term("id", names[2]))}>Look for this id in all queues</a></p>`}`;
}
