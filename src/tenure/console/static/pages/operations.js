// What operators did: operations on many jobs with their progress, the webhooks, and the audit log.
import { Acts, VERBS, hasRole, jobs } from "../acts.js";
import { meta, path } from "../api.js";
import { html, useEffect, useState } from "../html.js";
import { useLive } from "../live.js";
import { Facts, Heading, JobLink, Loaded, Name, ProblemBox, Section, Table, attempts } from "../parts.js";
import { address, jobAddress, jobsAddress } from "../route.js";
import { Time, count, now, span } from "../time.js";

const BUSY = ["waiting", "running", "stopping"];

/** The states of an operation: the colour of the badge, and words. */
const STATES = {
  waiting: ["waiting", "starts soon"],
  running: ["active", "running"],
  stopping: ["stopping", "stopping"],
  done: ["completed", "done"],
  incomplete: ["failed", "ended: results unknown"],
  stopped: ["cancelled", "stopped"],
  "count-changed": ["failed", "ended: too many jobs"],
  failed: ["failed", "failed"],
};

function OperationState({ operation: { state, starts, started } }) {
  const [kind, words] = STATES[state] ?? ["", state];
  const left = (Date.parse(starts) - now.value) / 1000;
  const text = state === "waiting" && left > 0.5 ? `starts in ${span(Math.round(left))}` : state === "stopped" && !started ? "undone" : words;
  return html`<span class=${`badge ${kind}`}>${text}</span>`;
}

const what = ({ action, filter }) => `${VERBS[action]?.[0] ?? action}: ${filter || "all jobs"}`;

const Progress = ({ operation: { met, count: all } }) => html`
  <span class="progress"><progress max=${Math.max(all, 1)} value=${met} aria-label=${`${met} of ${all} jobs`}></progress> ${count(met)} of ${count(all)}</span>`;

const OPERATIONS = [
  { title: "State", cell: (operation) => html`<${OperationState} operation=${operation} />` },
  { title: "Operation", kind: "long wide", cell: (operation) => html`<${Name} href=${address("operations", { id: operation.id })}>${what(operation)}<//>` },
  { title: "Progress", kind: "optional", cell: (operation) => html`<${Progress} operation=${operation} />` },
  { title: "By", kind: "long optional", cell: (operation) => html`<${Name}>${operation.actor}<//>` },
  { title: "Asked", kind: "when", cell: (operation) => html`<${Time} at=${operation.created} />` },
];

const stopAct = ({ id }) => ({
  name: "Stop", title: "Stop this operation?", path: path(["ops", id, "stop"]), done: "The operation was told to stop.",
  text: "If it has not started, nothing happens. Otherwise it ends after the jobs that it acts on now, and what it has done stays.",
});

function Chosen({ operation }) {
  const { met, done, refused, changed, gone, unknown, rate, cap } = operation;
  const busy = BUSY.includes(operation.state);
  return html`
    <${Section} title=${what(operation)} aside=${html`<${OperationState} operation=${operation} />
      <${Acts} acts=${[busy ? stopAct(operation) : null]} /><a href=${address("operations")}>Close</a>`}>
      <${Facts} facts=${[
        ["Progress", html`<${Progress} operation=${operation} />`],
        ["Done", count(done)],
        ["Refused", refused && count(refused)],
        ["Changed since they were counted", changed && count(changed)],
        ["Gone", gone && count(gone)],
        ["Result unknown, after a crash", unknown && count(unknown)],
        ["Filter", html`<a href=${jobsAddress(operation.filter)}>${operation.filter || "all jobs"}</a>`],
        ["Rate", rate],
        ["At most", cap && jobs(cap)],
        ["By", operation.actor],
        ["Reason", operation.reason],
        ["Starts", html`<${Time} at=${operation.starts} />`],
        ["Ended", operation.finished && html`<${Time} at=${operation.finished} />`],
      ].filter(([, value]) => value !== 0)} />
      ${operation.state === "count-changed" && html`<p class="callout warn">It met ${jobs(met)}, far more than the ${jobs(operation.count)} that were counted, and ended.</p>`}
      ${operation.error && html`<p class="callout bad">${operation.error}</p>`}
    <//>`;
}

function Operations({ wanted }) {
  const [busy, setBusy] = useState(false);
  // Progress is no event, so it is asked for.
  const live = useLive(path(["ops"], { limit: 50 }), { every: busy ? 1000 : 5000 });
  const chosen = useLive(wanted ? path(["ops", wanted]) : null, { every: busy ? 1000 : 5000 });
  useEffect(() => setBusy([...(live.data?.operations ?? []), ...(chosen.data ? [chosen.data] : [])].some(({ state }) => BUSY.includes(state))), [live.data, chosen.data]);
  return html`
    ${chosen.data && html`<${Chosen} operation=${chosen.data} />`}
    ${wanted && !chosen.data && !chosen.problem && html`<p class="loading">Loading …</p>`}
    ${wanted && chosen.problem && html`<${ProblemBox} problem=${chosen.problem} />`}
    <${Section} title="Operations on many jobs">
      <${Loaded} live=${live}>${(data) => html`
        ${!data.served && html`<p class="callout warn">Nothing runs operations now: start a console, or a worker with <code>--internal</code>.</p>`}
        <${Table} caption="Operations, the newest first" columns=${OPERATIONS} rows=${data.operations} id=${({ id }) => id} chosen=${({ id }) => id === wanted}
          empty="There is no operation. Filter the jobs, and act on all that match." />`}
      <//>
    <//>`;
}

const WEBHOOKS = [
  {
    title: "Webhook",
    kind: "long",
    cell: (hook) => html`<span class="with-badge"><${Name} href=${address("operations", { webhook: hook.name })}>${hook.name}<//>
      ${hook.paused && html`<span class="badge paused">paused</span>`}${hook.problem && html`<span class="badge failed">delivers nothing</span>`}</span>`,
  },
  { title: "Address", kind: "long wide optional", cell: (hook) => html`<${Name}>${hook.url}<//>` },
  { title: "Events", kind: "long", cell: (hook) => html`<${Name}>${hook.events.join(", ")}<//>` },
];

const DELIVERIES = (hook) => [
  { title: "State", cell: ({ state }) => html`<span class=${`badge ${state}`}>${state}</span>` },
  { title: "Event", kind: "long", cell: (delivery) => html`<${Name} href=${jobAddress(delivery)}>${delivery.type}<//>` },
  { title: "About", kind: "long optional", cell: ({ subject }) => (subject ? html`<${JobLink} job=${subject} />` : "–") },
  { title: "Attempt", kind: "number optional", cell: attempts },
  { title: "At", kind: "when optional", cell: (delivery) => html`<${Time} at=${delivery.finished ?? delivery.created} />` },
  { title: "Answer", kind: "long wide optional", cell: ({ error }) => html`<${Name}>${error?.message ?? "–"}<//>` },
  {
    title: "Act",
    cell: ({ id, state }) => ["completed", "failed", "cancelled", "expired"].includes(state) && html`<${Acts} acts=${[{
      name: "Send again", title: "Send this message again?", text: "The receiver gets the same message once more.", done: "The message is sent again.",
      path: path(["webhooks", hook.name, "redeliver"]), body: { id },
    }]} />`,
  },
];

const hookActs = ({ name, paused }) => {
  const act = (verb) => ({ path: path(["webhooks", name, verb]) });
  return [
    { ...act("test"), name: "Send a test", title: `Send a test message to ${name}?`, text: "It is sent at once.", done: "The test message was sent.",
      failed: ({ delivered, error, status }) => !delivered && (error ?? `The receiver answered with status ${status}.`) },
    paused
      ? { ...act("resume"), name: "Resume", title: `Resume ${name}?`, text: "What waits is delivered.", done: "The webhook is resumed." }
      : { ...act("pause"), name: "Pause", title: `Pause ${name}?`, text: "Messages wait until it is resumed.", done: "The webhook is paused." },
  ];
};

function Hook({ hook }) {
  const live = useLive(path(["webhooks", hook.name, "deliveries"], { limit: 50 }));
  return html`
    <${Section} title=${`Deliveries of ${hook.name}`} aside=${html`<${Acts} acts=${hookActs(hook)} /><a href=${address("operations")}>Close</a>`}>
      ${hook.problem && html`<p class="callout bad">${hook.problem}</p>`}
      <${Loaded} live=${live}>${({ deliveries }) => html`
        <${Table} caption=${`Deliveries of ${hook.name}, the newest first`} columns=${DELIVERIES(hook)} rows=${deliveries} id=${({ id }) => id} empty="Nothing was delivered yet." />`}
      <//>
    <//>`;
}

function Webhooks({ wanted }) {
  const live = useLive("webhooks", { every: 10_000 });
  const hooks = live.data?.webhooks ?? [];
  const chosen = hooks.find(({ name }) => name === wanted);
  return hooks.length > 0 && html`
    <${Section} title="Webhooks">
      <${Table} caption="Webhooks" columns=${WEBHOOKS} rows=${hooks} id=${({ name }) => name} chosen=${({ name }) => name === wanted} />
    <//>
    ${chosen && html`<${Hook} key=${chosen.name} hook=${chosen} />`}`;
}

const AUDIT = [
  { title: "At", kind: "when", cell: (act) => html`<${Time} at=${act.asked} />` },
  { title: "By", kind: "long optional", cell: (act) => html`<span class="name" title=${`${act.actor}, role ${act.role}, by ${act.via}`}>${act.actor}</span>` },
  {
    title: "Act",
    kind: "long wide",
    cell: (act) => html`<${Name}>${act.action}<//><span class="name id" title=${act.target}>${[act.target, act.filter].filter(Boolean).join(" ")}</span>`,
  },
  { title: "Result", kind: "long", cell: (act) => html`<${Name}>${act.verdict ?? "unknown"}<//>` },
  { title: "Change, reason", kind: "long optional", cell: (act) => html`<${Name}>${[act.change, act.reason].filter(Boolean).join("; ") || "–"}<//>` },
];

function Audit({ after }) {
  const live = useLive(path(["audit"], { limit: 20, after }), { every: 5000 });
  return html`
    <${Section} title="Audit log">
      <${Loaded} live=${live}>${({ acts, next }) => html`
        <${Table} caption="What operators did, the newest first" columns=${AUDIT} rows=${acts} id=${({ id }) => id} empty="No operator has acted yet." />
        ${(after || next) && html`<nav class="paging" aria-label="Pages of the audit log"><span></span><span class="buttons">
          ${after && html`<a class="button" href=${address("operations")}>Newest</a>`}
          ${next && html`<a class="button" rel="next" href=${address("operations", { acts: next })}>Older</a>`}</span></nav>`}`}
      <//>
    <//>`;
}

export function OperationsPage({ params }) {
  const has = (feature) => meta.value?.features.includes(feature);
  const narrowed = Boolean(meta.value?.user.queues);
  return html`
    <${Heading}>Operations<//>
    ${has("operations") && html`<${Operations} wanted=${params.get("id")} />`}
    ${has("webhooks") && html`<${Webhooks} wanted=${params.get("webhook")} />`}
    ${hasRole("admin") && !narrowed
      ? html`<${Audit} after=${params.get("acts") ?? ""} />`
      : html`<p class="remark">The audit log is shown to admins who see all queues.</p>`}`;
}
