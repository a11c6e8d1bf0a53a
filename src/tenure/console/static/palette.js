// The palette: goes to pages, queues, tasks and jobs, and offers commands of the command line as text to copy.
import { get, path, refused } from "./api.js";
import { html, signal, useEffect, useMemo, useRef, useState } from "./html.js";
import { address, go, jobAddress, jobsAddress, queueAddress, quoted, route, taskAddress, term } from "./route.js";

const SHOWN = 40;
const LOOK_AFTER = 200;
const KEY = "tenure.slash";
const MAC = /^(Mac|iP)/.test(navigator.platform);

const shown = signal(false);

/** True if the key "/" does something. WCAG 2.1.4 wants a way to turn off keys that stand alone. */
const slash = signal(read());

function read() {
  try {
    return localStorage.getItem(KEY) !== "off";
  } catch {
    return true;
  }
}

function turnSlash() {
  slash.value = !slash.value;
  try {
    localStorage.setItem(KEY, slash.value ? "on" : "off");
  } catch {
    // Storage is blocked: the choice holds until the page is left.
  }
  return `The key / is ${slash.value ? "on" : "off"}.`;
}

/** Open the palette with Ctrl-K or Cmd-K; go to the filter of the page with "/", or to the palette if it has none. */
export function followKeys() {
  document.addEventListener("keydown", (event) => {
    if (refused.value || event.defaultPrevented || event.isComposing || event.altKey) return;
    if ((event.ctrlKey || event.metaKey) && !event.shiftKey && event.key.toLowerCase() === "k") {
      event.preventDefault();
      shown.value = !shown.value;
    } else if (event.key === "/" && slash.value && !event.ctrlKey && !event.metaKey && !event.target.closest("input, select, textarea")) {
      event.preventDefault();
      const field = document.getElementById("filter");
      if (field) field.select();
      else shown.value = true;
    }
  });
}

/** The button that opens the palette. */
export const PaletteButton = () => html`
  <button type="button" class="opener" aria-haspopup="dialog" aria-keyshortcuts="Control+K Meta+K" onClick=${() => (shown.value = true)}>
    Search <kbd>${MAC ? "⌘" : "Ctrl"} K</kbd></button>`;

/** An id that the client made, so no job of another queue has it. */
const UNIQUE = /^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$/;

const argument = (text) => (text.startsWith("-") ? "-- " : "") + quoted(text);

/** Return the commands about what a page shows. */
function commandsOf({ name, params }) {
  const given = (key) => params.get(key) ?? "";
  const all = (group, verbs, about) => verbs.map((verb) => `tenure ${group} ${verb} ${about}`);
  if (name === "job") return jobCommands({ queue: given("queue"), id: given("id") });
  if (name === "queue") return all("queues", ["stats", "pause", "resume"], argument(given("name")));
  if (name === "task") return ["pause", "resume"].map((verb) => `tenure queues ${verb} --task ${quoted(given("name"))}`);
  if (name === "fault") return ["list", "redrive", "purge"].map((verb) => `tenure dead ${verb} --fault ${quoted(given("fault"))}`);
  if (name === "leases") return ["tenure workers stack", "tenure events --kind stalled"];
  if (name === "operations") return ["tenure audit"];
  if (name === "tasks") return ["tenure tasks"];
  if (name === "jobs") return [`tenure jobs list${given("filter") && ` --where ${quoted(given("filter"))}`}`];
  if (name === "failures") return ["tenure dead groups", "tenure dead list"];
  if (name === "workers" && given("worker")) return all("workers", ["stack", "quiet", "resume", "stop"], argument(given("worker")));
  if (name === "workers") return ["tenure workers list", "tenure workers stack"];
  if (name === "schedules") return ["tenure schedules list"];
  if (name === "events") return ["tenure events"];
  return [];
}

const jobCommands = ({ queue, id }) =>
  ["why", "show", "cancel", "redrive", "delete"].map((verb) => `tenure jobs ${verb} ${UNIQUE.test(id) ? "" : `--queue ${quoted(queue)} `}${argument(id)}`);

const command = (text) => ({ name: text, command: text });

/** Return the entries that have all words of a text, in their groups. */
function matching(groups, text) {
  const words = text.toLowerCase().split(/\s+/).filter(Boolean);
  let left = SHOWN;
  return groups
    .map(({ title, entries, always }) => {
      const fit = always ? entries : entries.filter(({ name }) => words.every((word) => name.toLowerCase().includes(word)));
      const first = fit.slice(0, left);
      left -= first.length;
      return { title, entries: first };
    })
    .filter(({ entries }) => entries.length);
}

/** Return what an API resource answers with; null until then, and if it fails. */
function useAnswer(resource, pause = 0) {
  const [answer, setAnswer] = useState({ resource: null, data: null });
  useEffect(() => {
    if (resource === null) return;
    const stop = new AbortController();
    const timer = setTimeout(() => {
      get(resource, { signal: stop.signal }).then((data) => setAnswer({ resource, data }), () => {});
    }, pause);
    return () => {
      clearTimeout(timer);
      stop.abort();
    };
  }, [resource]);
  return answer.resource === resource ? answer.data : null;
}

function useGroups(pages, text) {
  const queues = useAnswer("queues");
  const tasks = useAnswer("tasks");
  const word = text.trim();
  const found = useAnswer(/^\S{4,}$/.test(word) ? path(["jobs"], { filter: term("id", word), limit: 5 }) : null, LOOK_AFTER);
  return useMemo(() => {
    const jobs = found?.jobs ?? [];
    const entry = (name, to) => ({ name, to });
    return matching([
      { title: "Jobs", always: true, entries: jobs.map((job) => ({ name: `${job.task} ${job.id}`, note: `${job.state} in ${job.queue}`, to: jobAddress(job) })) },
      { title: "Jobs", always: true, entries: /\w:\S/.test(word) ? [entry(`Jobs with ${word}`, jobsAddress(word))] : [] },
      { title: "Pages", entries: pages },
      { title: "Commands about that job, to copy", always: true, entries: jobs.length === 1 ? jobCommands(jobs[0]).map(command) : [] },
      { title: "Commands about this page, to copy", entries: commandsOf(route.value).map(command) },
      { title: "Queues", entries: (queues?.queues ?? []).map(({ queue, paused }) => ({ ...entry(queue, queueAddress(queue)), note: paused ? "paused" : "" })) },
      { title: "Tasks", entries: (tasks?.tasks ?? []).map(({ name }) => entry(name, taskAddress(name))) },
      { title: "Commands to copy", entries: ["tenure info", "tenure top", "tenure doctor", "tenure queues list"].map(command) },
      { title: "Settings", entries: [{ name: `Turn the key / ${slash.value ? "off" : "on"}`, act: turnSlash }] },
    ], word);
  }, [queues, tasks, found, word, slash.value]);
}

/** Copy a text. Without HTTPS a page may not write to the clipboard, so the text is selected in the field. */
async function copy(text, field) {
  try {
    await navigator.clipboard.writeText(text);
    return `Copied: ${text}`;
  } catch {
    field.value = text;
    field.select();
    return document.execCommand("copy") ? `Copied: ${text}` : `Press ${MAC ? "⌘" : "Ctrl"}+C to copy the text in the field.`;
  }
}

function Content({ pages, close }) {
  const field = useRef(null);
  const [text, setText] = useState("");
  const [place, setPlace] = useState(0);
  const [said, setSaid] = useState("");
  const groups = useGroups(pages, text);
  const entries = groups.flatMap((group) => group.entries);
  const at = Math.min(place, entries.length - 1);
  useEffect(() => document.getElementById(`entry-${at}`)?.scrollIntoView({ block: "nearest" }), [at]);

  const act = async (entry) => {
    if (entry.to) {
      close();
      go(entry.to);
    } else setSaid(entry.act ? entry.act() : await copy(entry.command, field.current));
  };
  const onKeyDown = (event) => {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (event.isComposing) return;
    if (step && entries.length) setPlace((at + step + entries.length) % entries.length);
    else if (event.key === "Enter" && entries[at]) act(entries[at]);
    else if (!step) return;
    event.preventDefault();
  };
  const onInput = (event) => {
    setText(event.target.value);
    setPlace(0);
    setSaid("");
  };
  let number = -1;
  return html`
    <div class="palette-head">
      <input ref=${field} type="text" role="combobox" aria-label="Go to a page, queue, task or job, or find a command" aria-autocomplete="list"
        aria-expanded=${entries.length > 0 ? "true" : "false"} aria-controls="entries" aria-activedescendant=${entries.length ? `entry-${at}` : null}
        placeholder="Page, queue, task, job id, filter or command" autocomplete="off" autocapitalize="off" spellcheck="false"
        onInput=${onInput} onKeyDown=${onKeyDown} />
      <button type="button" onClick=${close}>Close</button>
    </div>
    <div id="entries" class="entries" role="listbox" aria-label="Results" hidden=${!entries.length}>
      ${groups.map((group, index) => html`
        <div key=${`${index} ${group.title}`} role="group" aria-label=${group.title}>
          <p class="entries-title" aria-hidden="true">${group.title}</p>
          ${group.entries.map((entry) => {
            number += 1;
            return html`<${Entry} key=${entry.name} entry=${entry} number=${number} chosen=${number === at} act=${act} />`;
          })}
        </div>`)}
    </div>
    <p class="palette-foot" role="status">${said || (entries.length ? `${entries.length} ${entries.length === 1 ? "result" : "results"}` : "Nothing has this name.")}</p>`;
}

// A press must leave the focus in the field.
const Entry = ({ entry, number, chosen, act }) => html`
  <div id=${`entry-${number}`} class="entry" role="option" aria-selected=${chosen ? "true" : "false"}
    onMouseDown=${(event) => event.preventDefault()} onClick=${() => act(entry)}>
    <span class=${entry.command ? "id" : ""}>${entry.name}</span>${entry.note && html` <span class="none">${entry.note}</span>`}
  </div>`;

/** The palette; `pages`: its entries for them. The browser gives the focus back to where it was. */
export function Palette({ pages }) {
  const dialog = useRef(null);
  const close = () => dialog.current.close();
  useEffect(() => {
    if (shown.value) dialog.current.showModal();
    else if (dialog.current.open) close();
  }, [shown.value]);
  return html`
    <dialog ref=${dialog} class="palette" aria-label="Search" onClose=${() => (shown.value = false)}
      onClick=${(event) => event.target === dialog.current && close()}>
      ${shown.value && html`<${Content} pages=${pages} close=${close} />`}
    </dialog>`;
}
