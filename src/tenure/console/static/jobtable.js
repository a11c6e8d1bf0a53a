// A table of jobs, as several pages show it.
import { html } from "./html.js";
import { Badge, Name, Table } from "./parts.js";
import { jobAddress, queueAddress } from "./route.js";
import { Time, span } from "./time.js";

const COLUMNS = [
  { title: "State", cell: (job) => html`<${Badge} state=${job.state} />` },
  {
    title: "Job",
    kind: "long wide",
    cell: (job) => html`<a class="job-link" href=${jobAddress(job)} title=${`${job.task} ${job.id}`}>
      <span class="name">${job.task}</span><span class="name id">${job.id}</span></a>`,
  },
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

export const JobTable = ({ jobs, caption, empty, hideQueue = false }) => html`
  <${Table}
    caption=${caption}
    columns=${hideQueue ? COLUMNS.filter(({ title }) => title !== "Queue") : COLUMNS}
    rows=${jobs}
    id=${(job) => `${job.queue} ${job.id}`}
    empty=${empty}
  />`;
