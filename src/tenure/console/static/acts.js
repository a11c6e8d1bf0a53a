// Buttons that change something: each asks for confirmation, sends one request, and says what came of it.
import { announce } from "./announce.js";
import { meta, randomKey, send } from "./api.js";
import { html, useEffect, useRef, useState } from "./html.js";
import { ProblemBox } from "./parts.js";
import { frame } from "./stream.js";

const ROLES = ["read", "operate", "admin"];

/** Return true if this console changes things, and its user has this role. */
export function mayAct(role) {
  const { read_only: readOnly, user } = meta.value ?? {};
  return readOnly === false && ROLES.indexOf(user.role) >= ROLES.indexOf(role);
}

/**
 * Buttons next to one another. An act: {name, title, text, path, method, body, role, done, strong, once}; null is left
 * out. `strong`: it cannot be undone. `once`: a repeated request has the same Idempotency-Key.
 */
export function Acts({ acts }) {
  const [chosen, setChosen] = useState(null);
  const allowed = acts.filter((act) => act !== null && mayAct(act.role ?? "operate"));
  if (!allowed.length) return null;
  return html`
    <div class="acts">
      ${allowed.map((act) => html`
        <button key=${act.name} type="button" class=${act.strong ? "strong" : ""} aria-haspopup="dialog" onClick=${() => setChosen(act)}>${act.name}</button>`)}
      ${chosen && html`<${Confirmation} key=${chosen.name} act=${chosen} close=${() => setChosen(null)} />`}
    </div>`;
}

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
      await send(act.path, { method: act.method, body: { ...act.body, ...(reason ? { reason } : {}) }, key: key.current });
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
        <label><span>Reason, for the audit log <span class="none">(optional)</span></span>
          <input type="text" maxlength="500" autocomplete="off" value=${reason} onInput=${(event) => setReason(event.target.value)} />
        </label>
        ${problem && html`<${ProblemBox} problem=${problem} />`}
        <div class="buttons">
          <button type="submit" class=${act.strong ? "strong" : "main-button"} disabled=${busy}>${act.name}</button>
          <button type="button" onClick=${() => dialog.current.close()}>Back</button>
        </div>
      </form>
    </dialog>`;
}
