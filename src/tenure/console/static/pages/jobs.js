// Jobs that a filter selects. The address is the filter.
import { path } from "../api.js";
import { announce } from "../announce.js";
import { html, useEffect, useRef } from "../html.js";
import { JobTable } from "../jobtable.js";
import { useLive } from "../live.js";
import { Heading, Loaded, STATES } from "../parts.js";
import { address, go } from "../route.js";

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
    <${Heading}>Jobs<//>
    <${FilterForm} filter=${filter} />
    <${Loaded} live=${live}>${(page) => html`
      <${JobTable} jobs=${page.jobs} caption="Jobs, the newest first" empty=${
        page.short ? "None of the jobs looked at matches; older ones may." : filter ? "No job matches this filter." : "There are no jobs."} />
      ${page.hints.map((hint) => html`<p key=${hint} class="callout warn">${hint}</p>`)}
      <${Pages} filter=${filter} after=${after} page=${page} />`}
    <//>`;
}
