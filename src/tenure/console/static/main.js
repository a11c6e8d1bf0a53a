// Starts the pages: the frame around them, the current page, and the sign-in form.
import { get, keepToken, meta, refused, signedIn } from "./api.js";
import { html, render, useEffect, useRef, useState } from "./html.js";
import { address, followLinks, route } from "./route.js";
import { SignIn } from "./signin.js";
import { follow } from "./stream.js";
import { Palette, PaletteButton, followKeys } from "./palette.js";
import { Heading } from "./parts.js";
import { Now } from "./pages/now.js";
import { Queue, Task, Tasks } from "./pages/queue.js";
import { Failures, Fault, Jobs } from "./pages/jobs.js";
import { Job } from "./pages/job.js";
import { Leases, Workers } from "./pages/workers.js";
import { Schedules } from "./pages/schedules.js";
import { Events } from "./pages/events.js";
import { OperationsPage } from "./pages/operations.js";

const PAGES = {
  "": ["Now", Now],
  jobs: ["Jobs", Jobs],
  failures: ["Failures", Failures],
  leases: ["Leases", Leases],
  workers: ["Workers", Workers],
  schedules: ["Schedules", Schedules],
  tasks: ["Tasks", Tasks],
  events: ["Events", Events],
  operations: ["Operations", OperationsPage],
  queue: ["Queue", Queue],
  task: ["Task", Task],
  fault: ["Fault", Fault],
  job: ["Job", Job],
};
const MENU = ["", "jobs", "failures", "leases", "workers", "schedules", "tasks", "events", "operations"];

/** Pages about one thing: the page above them, and the parameters that name the thing. */
const ABOUT = { queue: ["", "name"], task: ["tasks", "name"], fault: ["failures", "fault"], job: ["jobs", "id", "queue"] };

const THEME = "tenure.theme";

const ENTRIES = MENU.map((name) => ({ name: PAGES[name][0], to: address(name) }));

function Menu({ current }) {
  return html`
    <nav aria-label="Pages">
      <ul>
        ${MENU.map((name) => html`
          <li key=${name}>
            <a href=${address(name)} aria-current=${current === name ? "page" : ABOUT[current]?.[0] === name ? "true" : null}>
              ${PAGES[name][0]}
            </a>
          </li>`)}
      </ul>
    </nav>`;
}

/** Chooses the colours: those of the system, light or dark. theme.js reads the choice before the page is drawn. */
function ThemeSwitch() {
  const [theme, setTheme] = useState(document.documentElement.dataset.theme ?? "system");
  const choose = (event) => {
    const chosen = event.target.value;
    setTheme(chosen);
    if (chosen === "system") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = chosen;
    try {
      if (chosen === "system") localStorage.removeItem(THEME);
      else localStorage.setItem(THEME, chosen);
    } catch {
      // Storage is blocked: the choice holds until the page is left.
    }
  };
  return html`
    <label class="theme"><span>Theme</span>
      <select value=${theme} onChange=${choose}>
        ${["system", "light", "dark"].map((name) => html`<option key=${name} value=${name}>${name}</option>`)}
      </select>
    </label>`;
}

function Foot() {
  const user = meta.value?.user;
  return html`
    <div class="foot">
      <${ThemeSwitch} />
      ${user && html`<p class="user" title=${`${user.name}, role ${user.role}`}>${user.name} <span>(${user.role})</span></p>`}
      ${signedIn.value && html`
        <button type="button" onClick=${signOut}>Sign out</button>`}
      <p class="version">Tenure ${meta.value?.version ?? ""}</p>
    </div>`;
}

function signOut() {
  keepToken(null);
  meta.value = null;
  // Ask again without the token: the answer says whether one is needed.
  ask();
}

function ask() {
  get("meta").then(
    (answer) => (meta.value = answer),
    () => (meta.value = null),
  );
}

const Missing = () => html`
  <${Heading}>This page does not exist<//>
  <p>The address names none of the pages. <a href=${address("")}>Go to the first page</a>.</p>`;

function App() {
  const { name, params } = route.value;
  const [title, Page] = PAGES[name] ?? ["Not found", Missing];
  // Another job is another page; another filter is not.
  const about = (ABOUT[name] ?? []).slice(1).map((key) => params.get(key) ?? "");
  const identity = [name, ...about].join(" ");
  const shown = about[0] || title;

  useEffect(() => {
    if (!refused.value) ask();
  }, [refused.value]);
  useEffect(() => {
    if (refused.value) return;
    let stop = null;
    const seen = () => {
      if (document.hidden) stop?.abort();
      else if (!stop || stop.signal.aborted) follow((stop = new AbortController()).signal);
    };
    seen();
    document.addEventListener("visibilitychange", seen);
    return () => {
      stop?.abort();
      document.removeEventListener("visibilitychange", seen);
    };
  }, [refused.value, signedIn.value]);
  useEffect(() => {
    document.title = `${shown} · Tenure`;
  }, [shown]);
  const first = useRef(true);
  useEffect(() => {
    // The focus goes to the heading of a new page, so that a screen reader reads it and Tab goes on from there.
    if (!first.current) document.querySelector("h1")?.focus({ preventScroll: true });
    first.current = false;
  }, [identity]);

  return html`
    <a class="skip" href="#main">Skip to the content</a>
    <div class="frame">
      <aside class="side">
        <a class="brand" href=${address("")}><span class="mark" aria-hidden="true">T</span>Tenure</a>
        ${!refused.value && html`<${PaletteButton} />`}
        <${Menu} current=${name} />
        <${Foot} />
      </aside>
      <main id="main">
        ${refused.value ? html`<${SignIn} onSigned=${(answer) => (meta.value = answer)} />` : html`<${Page} key=${identity} params=${params} />`}
      </main>
    </div>
    ${!refused.value && html`<${Palette} pages=${ENTRIES} />`}`;
}

// The browser resolves the address of the icon again on each page, so it must not be relative any more.
const icon = document.querySelector("link[rel=icon]");
icon.href = icon.href;

followLinks();
followKeys();
document.getElementById("app").textContent = "";
render(html`<${App} />`, document.getElementById("app"));
