// Pieces that the pages share: headings, tables, badges, problems, facts.
import { html, useState } from "./html.js";
import { pretty } from "./json.js";
import { address, go, jobAddress, queueAddress } from "./route.js";
import { Time, span } from "./time.js";

const ROWS = 100;
const APART = 5000;

export const STATES = ["waiting", "active", "delayed", "suspended", "failed", "completed", "cancelled", "expired"];

let last = -APART;
let timer = null;

/** Say a text to users of a screen reader; of several within five seconds the last one is said. */
export function announce(text) {
  clearTimeout(timer);
  timer = setTimeout(
    () => {
      last = performance.now();
      document.getElementById("announcer").textContent = text;
    },
    Math.max(150, last + APART - performance.now()),
  );
}

/** The state of a job or a worker, in words and in its colour. */
export const Badge = ({ state }) => html`<span class=${`badge ${state}`}>${state}</span>`;

/** The heading of a page, with what stands next to it. */
export const Heading = ({ children, aside, above }) => html`
  <header class="heading">
    ${above && html`<p class="above">${above}</p>`}
    <div class="line"><h1 tabindex="-1">${children}</h1>${aside}</div>
  </header>`;

/** What went wrong, and what to do about it. */
export const ProblemBox = ({ problem }) => html`
  <div class="callout bad" role="alert">
    <strong>${problem.title}</strong>
    ${problem.detail && html`<p>${problem.detail}</p>`}
    ${problem.remedy && html`<p class="remedy">${problem.remedy}</p>`}
  </div>`;

/** Show the data of a live read, or its problem, or that it is on its way. */
export function Loaded({ live, children }) {
  const { data, problem, stale } = live;
  if (data === null) return problem ? html`<${ProblemBox} problem=${problem} />` : html`<p class="loading">Loading …</p>`;
  return html`
    ${stale && problem && html`<div class="callout warn not-current">
      <strong>Not current.</strong> ${problem.title}. <span class="remedy">${problem.remedy}</span></div>`}
    <div class=${stale ? "outdated" : ""}>${children(data)}</div>`;
}

/** A section with a heading of its own. */
export const Section = ({ title, aside, children }) => html`
  <section>
    <div class="line"><h2>${title}</h2>${aside}</div>
    ${children}
  </section>`;

/**
 * A table with a caption. `columns`: {title, cell, kind}; a kind is a list of classes: `number`, `long`, `optional`
 * (left out on narrow screens). `empty`: what stands there if there are no rows. Long tables are shown in parts.
 */
export function Table({ caption, columns, rows, id, empty, chosen }) {
  const [most, setMost] = useState(ROWS);
  if (!rows.length) return html`<p class="empty">${empty}</p>`;
  return html`
    <div class="scroll" role="region" aria-label=${caption} tabindex="0">
      <table>
        <caption class="unseen">${caption}</caption>
        <thead><tr>${columns.map(({ title, kind }) => html`<th scope="col" class=${kind}>${title}</th>`)}</tr></thead>
        <tbody>
          ${rows.slice(0, most).map((row) => html`
            <tr key=${id(row)} class=${chosen?.(row) ? "chosen" : ""}>
              ${columns.map(({ cell, kind }) => html`<td class=${kind}>${cell(row)}</td>`)}
            </tr>`)}
        </tbody>
      </table>
    </div>
    ${rows.length > most && html`
      <button type="button" class="more" onClick=${() => setMost(most + ROWS)}>Show ${Math.min(ROWS, rows.length - most)} more of ${rows.length}</button>`}`;
}

/** Names with their values; a value that is null or undefined is left out. */
export const Facts = ({ facts }) => html`
  <dl class="facts">
    ${facts.filter(([, value]) => value !== null && value !== undefined && value !== "").map(([name, value]) => html`
      <div key=${name}><dt>${name}</dt><dd>${value}</dd></div>`)}
  </dl>`;

/** A name that may be long: it is cut at the end, and its title is whole. */
export const Name = ({ href, children }) => {
  const text = String(children);
  return href ? html`<a class="name" href=${href} title=${text}>${text}</a>` : html`<span class="name" title=${text}>${text}</span>`;
};

/** A job by its task and its id. */
export const JobLink = ({ job }) => html`<a class="job-link" href=${jobAddress(job)} title=${`${job.task ?? ""} ${job.queue} ${job.id}`}>
  <span class="name">${job.task ?? job.queue}</span><span class="name id">${job.id}</span></a>`;

/** A column of jobs. */
export const JOB = { title: "Job", kind: "long wide", cell: (job) => html`<${JobLink} job=${job} />` };

/** A value as JSON, or the number of its bytes if this user or this console cannot read it. */
export function Value({ value }) {
  if (value && typeof value === "object" && Object.keys(value).join() === "opaque_bytes") {
    return html`<p class="none">${value.opaque_bytes} bytes that are not shown: this user may not see them, or only the
      app's codec reads them.</p>`;
  }
  return html`<pre class="value" tabindex="0">${pretty(value)}</pre>`;
}

/** A choice that the address of the page keeps. `choices`: [value, text]; an empty value is the default. */
export const Choice = ({ page, label, name, value, choices, params }) => html`
  <label>${label}
    <select value=${value} onChange=${(event) => go(address(page, { ...Object.fromEntries(params), [name]: event.target.value }))}>
      ${choices.map(([given, text]) => html`<option key=${given} value=${given}>${text}</option>`)}
    </select>
  </label>`;

/** A figure with its name. */
export const Tile = ({ name, value, href, kind = "", note }) => html`
  <a class=${`tile ${kind}`} href=${href}>
    <span class="tile-name">${name}</span>
    <span class="tile-value">${value}</span>
    ${note !== undefined && html`<span class="tile-note">${note}</span>`}
  </a>`;

const JOBS = [
  { title: "State", cell: (job) => html`<${Badge} state=${job.state} />` },
  JOB,
  { title: "Queue", kind: "optional", cell: (job) => html`<${Name} href=${queueAddress(job.queue)}>${job.queue}<//>` },
  { title: "Enqueued", kind: "when", cell: (job) => html`<${Time} at=${job.created} />` },
  { title: "Attempt", kind: "number optional", cell: (job) => (job.starts ? attempts(job) : "–") },
  { title: "Took", kind: "number optional", cell: took },
  { title: "Remark", kind: "long optional", cell: remark },
];

/** Which attempt it is. A failed job has used one more than it was at, so it is never more than there are. */
export const attempts = (job) => `${Math.min(job.attempt, job.max_attempts)} of ${job.max_attempts}`;

function took(job) {
  return job.started && job.finished ? span((Date.parse(job.finished) - Date.parse(job.started)) / 1000) : "–";
}

function remark(job) {
  if (job.error && job.state !== "completed") {
    const text = `${job.error.type}: ${job.error.message}`;
    return html`<span class="name" title=${text}>${text}</span>`;
  }
  if (job.state === "delayed") return html`due <${Time} at=${job.run_at} />`;
  if (job.cancel_asked && job.state === "active") return "cancellation requested";
  if (job.state === "active" && job.progress !== null) {
    const share = typeof job.progress === "number" ? `${Math.round(job.progress * 100)} %` : "";
    const text = [share, job.progress_note].filter(Boolean).join(", ");
    return html`<span class="name" title=${text}>${text}</span>`;
  }
  const text = job.reason ?? (job.tags.length ? job.tags.join(", ") : "");
  return text ? html`<span class="name" title=${text}>${text}</span>` : html`<span class="none">–</span>`;
}

/** A table of jobs, as several pages show it. */
export const JobTable = ({ jobs, caption, empty, hideQueue = false }) => html`
  <${Table}
    caption=${caption}
    columns=${hideQueue ? JOBS.filter(({ title }) => title !== "Queue") : JOBS}
    rows=${jobs}
    id=${(job) => `${job.queue} ${job.id}`}
    empty=${empty}
  />`;
