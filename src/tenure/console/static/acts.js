// Buttons that change something: each asks for confirmation, sends one request, and says what came of it. An act on all
// jobs that a filter selects counts them first.
import { Problem, meta, randomKey, send } from "./api.js";
import { html, useEffect, useRef, useState } from "./html.js";
import { Facts, ProblemBox, announce } from "./parts.js";
import { address, base, go, jobAddress, quoted } from "./route.js";
import { frame } from "./stream.js";
import { count, span } from "./time.js";

const ROLES = ["read", "operate", "admin"];

/** Return true if the user has this role. */
export const hasRole = (role) => ROLES.indexOf(meta.value?.user.role) >= ROLES.indexOf(role);

/** Return true if this console changes things, and its user has this role. */
export const mayAct = (role) => meta.value?.read_only === false && hasRole(role);

/**
 * Buttons next to one another. An act: {name, title, text, path, method, body, role, done, strong, once}; null is left
 * out. `strong`: it cannot be undone. `once`: a repeated request has the same Idempotency-Key. `failed`: returns what an answer
 * says if the act failed although the request did not.
 */
export function Acts({ acts }) {
  const [chosen, setChosen] = useState(null);
  const allowed = acts.filter((act) => act !== null && mayAct(act.role ?? "operate"));
  // An open dialog stays, even if what it asks about can no longer be done: the answer says so.
  if (!allowed.length && !chosen) return null;
  return html`
    <div class="acts">
      ${allowed.map((act) => html`
        <button key=${act.name} type="button" class=${act.strong ? "strong" : ""} aria-haspopup="dialog" onClick=${() => setChosen(act)}>${act.name}</button>`)}
      ${chosen && html`<${Confirmation} key=${chosen.name} act=${chosen} close=${() => setChosen(null)} />`}
    </div>`;
}

const Reason = ({ reason, set }) => html`
  <label><span>Reason, for the audit log <span class="none">(optional)</span></span>
    <input type="text" maxlength="500" autocomplete="off" value=${reason} onInput=${(event) => set(event.target.value)} />
  </label>`;

/** Return the request of an act as a command of the shell. */
const command = ({ path, method = "POST", body = {} }) =>
  `curl -X ${method} ${quoted(`${base}api/v1/${path}`)} -H "authorization: Bearer $TOKEN" -H "content-type: application/json" -d ${quoted(JSON.stringify(body))}`;

function Confirmation({ act, close }) {
  const dialog = useRef(null);
  const [reason, setReason] = useState("");
  const [busy, setBusy] = useState(false);
  const [problem, setProblem] = useState(null);
  const key = useRef(act.once ? randomKey() : null);
  useEffect(() => dialog.current.showModal(), []);

  const submit = async (event) => {
    event.preventDefault();
    if (busy) return;
    setBusy(true);
    setProblem(null);
    try {
      const answer = await send(act.path, { method: act.method, body: { ...act.body, ...(reason ? { reason } : {}) }, key: key.current });
      const refusal = act.failed?.(answer);
      if (refusal) throw new Problem({ title: "It was tried, and failed", detail: refusal });
    } catch (failure) {
      setBusy(false);
      setProblem(failure);
      return;
    }
    announce(act.done);
    // All that the page shows may be new.
    frame.value = { kind: "resync" };
    dialog.current?.close();
  };
  return html`
    <dialog ref=${dialog} class="confirmation" aria-labelledby="act-title" onClose=${close}>
      <form onSubmit=${submit}>
        <h2 id="act-title">${act.title}</h2>
        <p>${act.text}</p>
        <${Reason} reason=${reason} set=${setReason} />
        <details><summary>As a command</summary><pre tabindex="0">${command(act)}</pre></details>
        ${problem && html`<${ProblemBox} problem=${problem} />`}
        <div class="buttons">
          <button type="submit" class=${act.strong ? "strong" : "main-button"} disabled=${busy}>${act.name}</button>
          <button type="button" onClick=${() => dialog.current.close()}>Back</button>
        </div>
      </form>
    </dialog>`;
}

/** What an operation does to its jobs. */
export const VERBS = { redrive: ["Run again", "run again"], cancel: ["Cancel", "cancelled"], delete: ["Delete", "deleted"] };

const NAMED = 6;

export const jobs = (number) => `${count(number)} ${number === 1 ? "job" : "jobs"}`;

/** Return the largest numbers of a mapping in words. */
function largest(numbers) {
  const found = Object.entries(numbers).toSorted((a, b) => b[1] - a[1]);
  const rest = found.length - NAMED;
  return found.slice(0, NAMED).map(([name, number]) => `${name}: ${count(number)}`).join(", ") + (rest > 0 ? ` and ${count(rest)} more` : "");
}

function Counted({ found }) {
  return html`
    <p class="cause">${jobs(found.count)} would be ${VERBS[found.action][1]}.</p>
    ${found.count > 0 && html`<${Facts} facts=${[
      ["By state", largest(found.states)],
      ["By queue", largest(found.queues)],
      ["By task", largest(found.tasks)],
      ["For example", found.samples.map((job) => html`<a key=${job.id} class="name" href=${jobAddress(job)} title=${job.id}>${job.task} ${job.id}</a>`)],
    ]} />`}
    ${found.refused.map(({ state, count: number, why }) => html`<p key=${state} class="help">${jobs(number)} that ${number === 1 ? "is" : "are"} ${state} would stay: ${why}</p>`)}
    ${found.count > 0 && html`<p class="help">${found.window ? `It starts ${span(found.window)} after the confirmation. A stop before that undoes it.` : "It starts at once."}
      ${" "}A later stop leaves the jobs as they are then.</p>`}`;
}

function BulkDialog({ filter, actions, close }) {
  const dialog = useRef(null);
  const key = useRef(randomKey());
  const [ask, setAsk] = useState({ action: actions[0], rate: "", cap: "" });
  const [reason, setReason] = useState("");
  const [found, setFound] = useState(null);
  const [problem, setProblem] = useState(null);
  const [busy, setBusy] = useState(false);
  useEffect(() => dialog.current.showModal(), []);
  const change = (name) => (event) => {
    setAsk({ ...ask, [name]: event.target.value });
    setFound(null);
  };
  const submit = async (event) => {
    event.preventDefault();
    if (busy) return;
    setBusy(true);
    setProblem(null);
    const body = { action: ask.action, filter, cap: Number(ask.cap) || null, rate: ask.rate ? `${ask.rate}/s` : null };
    try {
      if (found === null) setFound(await send("ops", { body: { ...body, dry_run: true } }));
      else {
        const { operation } = await send("ops", { body: { ...body, confirm: found.confirm, ...(reason ? { reason } : {}) }, key: key.current });
        dialog.current?.close();
        go(address("operations", { id: operation.id }));
        return;
      }
    } catch (failure) {
      setFound(null);
      setProblem(failure);
    }
    setBusy(false);
  };
  // The button that counts becomes the one that starts: neither a double click nor a held Enter presses both.
  const once = (event) => (event.detail > 1 || (event.repeat && event.key === "Enter")) && event.preventDefault();
  const [name] = VERBS[ask.action];
  return html`
    <dialog ref=${dialog} class="confirmation wide" aria-labelledby="bulk-title" onClose=${close}>
      <form onSubmit=${submit} onKeyDown=${once}>
        <h2 id="bulk-title">Act on all jobs that match</h2>
        <p><code>${filter || "all jobs"}</code></p>
        <fieldset class="fields" disabled=${busy}>
          <label>Action<select value=${ask.action} onChange=${change("action")}>
            ${actions.map((action) => html`<option key=${action} value=${action}>${VERBS[action][0]}</option>`)}</select></label>
          <label>Jobs per second<input type="number" min="0.001" step="any" value=${ask.rate} placeholder="no limit" onInput=${change("rate")} /></label>
          <label>At most<input type="number" min="1" step="1" value=${ask.cap} placeholder="all" onInput=${change("cap")} /></label>
        </fieldset>
        <div role="status">${found && html`<${Counted} found=${found} />`}</div>
        ${filter && !ask.cap && html`<details><summary>As a command</summary><pre tabindex="0">tenure jobs ${ask.action} --where ${quoted(filter)}${ask.rate && ` --rate ${ask.rate}/s`}</pre></details>`}
        ${found && html`<${Reason} reason=${reason} set=${setReason} />`}
        ${problem && html`<${ProblemBox} problem=${problem} />`}
        <div class="buttons">
          <button type="submit" class=${found && ask.action === "delete" ? "strong" : "main-button"} disabled=${busy || found?.count === 0} onClick=${once}>
            ${found?.count ? `${name}: ${jobs(found.count)}` : "Count the jobs"}</button>
          <button type="button" onClick=${() => dialog.current.close()}>Back</button>
        </div>
      </form>
    </dialog>`;
}

/** A button that acts on all jobs of a filter; nothing if this console or this user cannot. */
export function BulkAct({ filter, name = "Act on all that match", actions = ["redrive", "cancel", "delete"] }) {
  const [open, setOpen] = useState(false);
  const may = actions.filter((action) => mayAct(action === "delete" ? "admin" : "operate"));
  if (!may.length || !meta.value.features.includes("operations")) return null;
  return html`<button type="button" aria-haspopup="dialog" onClick=${() => setOpen(true)}>${name}</button>
    ${open && html`<${BulkDialog} key=${filter} filter=${filter} actions=${may} close=${() => setOpen(false)} />`}`;
}
