// Charts as SVG. Each one says its sums in words, too. What differs in colour also differs in place, which the legend says.
import { path } from "./api.js";
import { html } from "./html.js";
import { useLive } from "./live.js";
import { Choice, Facts, Loaded, Section, Table } from "./parts.js";
import { Time, count, exact, span } from "./time.js";

/** Spans of figures, with the length of their steps. */
const SPANS = { "1h": ["hour", "1m"], "6h": ["6 hours", "5m"], "1d": ["day", "20m"], "30d": ["30 days", "12h"] };

const HIGH = 100;
const LEAST = 1.5;
const WIDE = 10;

export const minute = (at) => `${exact(at).slice(0, 16)} UTC`;

/** Return how many ended in all. */
export const ended = (ends) => (ends ? ends.completed + ends.failed + ends.retried + ends.cancelled + ends.expired : 0);

const good = (ends) => ends.completed + ends.cancelled + ends.expired;
const bad = (ends) => ends.failed + ends.retried;

const OUTCOMES = ["completed", "cancelled", "expired", "retried", "failed", "stalled"];

/** Return the outcomes that occurred, with their numbers. */
const inWords = (ends) => OUTCOMES.filter((name) => ends?.[name]).map((name) => `${count(ends[name])} ${name}`).join(", ") || "nothing ended";

const Bar = ({ kind, at, from, to }) => to - from > 0 && html`<rect class=${kind} x=${at + 1} width=${WIDE - 2} y=${from} height=${to - from} />`;

/** One step: what went well stands on the line, failed runs hang from it, and stalls have a mark at the bottom. */
function Column({ point: { at, figures }, index, line, scale }) {
  if (!figures) return null;
  const x = index * WIDE;
  const tall = (number) => (number ? Math.max(LEAST, number * scale) : 0);
  const [done, other, failed, retried] = [figures.completed, figures.cancelled + figures.expired, figures.failed, figures.retried].map(tall);
  return html`
    <g>
      <title>${`${minute(at)}: ${inWords(figures)}`}</title>
      <rect class="hit" x=${x} width=${WIDE} y="0" height=${HIGH + 8} />
      <${Bar} kind="completed" at=${x} from=${line - done} to=${line} />
      <${Bar} kind="other" at=${x} from=${line - done - other} to=${line - done} />
      <${Bar} kind="failed" at=${x} from=${line} to=${line + failed} />
      <${Bar} kind="retried" at=${x} from=${line + failed} to=${line + failed + retried} />
      ${figures.stalled > 0 && html`<${Bar} kind="stalled" at=${x} from=${HIGH + 3} to=${HIGH + 7} />`}
    </g>`;
}

const COLUMNS = [
  { title: "From", kind: "when", cell: ({ at }) => html`<${Time} at=${at} />` },
  ...OUTCOMES.map((name) => ({ title: name, kind: "number", cell: ({ figures }) => count(figures[name]) })),
  { title: "95 % waited", kind: "number", cell: ({ figures }) => span(figures.waited?.p95) },
  { title: "95 % ran", kind: "number", cell: ({ figures }) => span(figures.ran?.p95) },
];

const LEGEND = [["completed", "completed"], ["other", "cancelled or expired, at the top"], ["failed", "failed, just below the line"], ["retried", "failed and retried, below the failed"], ["stalled", "stalled, mark at the bottom"]];

/** What ended in each step of an answer of /figures. */
export function EndsChart({ data }) {
  const { points, total, step } = data;
  const counted = points.filter(({ figures }) => figures);
  const up = Math.max(1, ...counted.map(({ figures }) => good(figures)));
  const down = Math.max(0, ...counted.map(({ figures }) => bad(figures)));
  const scale = (HIGH - (down ? 4 : 0)) / (up + down);
  const line = up * scale + (down ? 2 : 0);
  const shown = (name) => (name === "other" ? total.cancelled + total.expired : total[name]);
  if (!total) return html`<p class="empty">No run has ended within this time.</p>`;
  const text = `${inWords(total)}. Most in ${span(step)}: ${count(Math.max(...counted.map(({ figures }) => ended(figures))))}.`;
  return html`
    <figure class="chart">
      <figcaption><ul class="legend">
        ${LEGEND.filter(([name]) => shown(name)).map(([name, words]) => html`<li key=${name} class=${name}>${count(shown(name))} ${words}</li>`)}
      </ul></figcaption>
      <div class="plot">
        <span class="most" aria-hidden="true">${count(up)}</span>
        <svg role="img" aria-label=${text} viewBox=${`0 0 ${points.length * WIDE} ${HIGH + 8}`} preserveAspectRatio="none">
          <rect class="line" x="0" width=${points.length * WIDE} y=${line - 0.25} height="0.5" />
          ${points.map((point, index) => html`<${Column} key=${point.at} point=${point} index=${index} line=${line} scale=${scale} />`)}
        </svg>
      </div>
      <p class="axis" aria-hidden="true"><span>${minute(points[0].at)}</span><span>each bar: ${span(step)}</span><span>now</span></p>
      <details><summary>Show the numbers</summary>
        <${Table} caption="What ended in each step, the newest first" columns=${COLUMNS} rows=${counted.toReversed()} id=${({ at }) => at} />
      </details>
    </figure>`;
}

const BUCKET = [
  { title: "Duration", kind: "number", cell: ({ bar }) => bar },
  { title: "Number", kind: "number", cell: ({ number }) => count(number) },
];

/** A histogram of durations; the scale doubles from bar to bar. `spread`: estimates from the same durations. */
export function Histogram({ title, buckets, spread }) {
  if (!spread) return null;
  const first = Math.max(0, buckets.findIndex((number) => number) - 1);
  const last = Math.min(buckets.length - 1, buckets.findLastIndex((number) => number) + 1);
  const most = Math.max(...buckets);
  const below = (place) => span(2 ** place / 1000);
  // The last bucket has no upper bound.
  const open = buckets.length - 1;
  const over = `over ${below(open - 1)}`;
  const bar = (place) => (place === open ? over : `below ${below(place)}`);
  const about = (seconds) => (seconds < 2 ** (open - 1) / 1000 ? `≈ ${span(seconds)}` : over);
  const rows = buckets.map((number, place) => ({ number, bar: bar(place), place })).slice(first, last + 1);
  const text = `${count(spread.count)} durations: 50 % ${about(spread.p50)}, 95 % ${about(spread.p95)}, 99 % ${about(spread.p99)}`;
  return html`
    <figure class="chart">
      <figcaption><h3>${title}</h3>
        <${Facts} facts=${[["50 %", about(spread.p50)], ["95 %", about(spread.p95)], ["99 %", about(spread.p99)]]} /></figcaption>
      <div class="plot low">
        <svg role="img" aria-label=${text} viewBox=${`0 0 ${rows.length * WIDE} ${HIGH}`} preserveAspectRatio="none">
          ${rows.map(({ number, bar: length }, index) => html`<g key=${index}>
            <title>${`${length}: ${count(number)}`}</title>
            <rect class="hit" x=${index * WIDE} width=${WIDE} y="0" height=${HIGH} />
            <${Bar} kind="ran" at=${index * WIDE} from=${HIGH - (number ? Math.max(LEAST, (HIGH * number) / most) : 0)} to=${HIGH} />
          </g>`)}
          <rect class="line" x="0" width=${rows.length * WIDE} y=${HIGH - 0.5} height="0.5" />
        </svg>
      </div>
      <p class="axis" aria-hidden="true"><span>${first ? below(first - 1) : "0"}</span><span>each bar: twice as long</span><span>${last === open ? over : below(last)}</span></p>
      <details><summary>Show the numbers</summary>
        <${Table} caption=${`${title}: the number of durations in each bar`} columns=${BUCKET} rows=${rows} id=${({ place }) => place} />
      </details>
    </figure>`;
}

/** The figures of a queue or a task over a time that the address keeps. `about`: the parameters of /figures. */
export function FiguresSections({ page, params, about }) {
  const within = params.get("within") in SPANS ? params.get("within") : "1h";
  const live = useLive(path(["figures"], { ...about, since: within, step: SPANS[within][1] }), { every: 15_000 });
  return html`
    <${Section} title="What ended" aside=${html`<div class="choices"><${Choice} page=${page} label="In the last" name="within" value=${within}
      choices=${Object.entries(SPANS).map(([value, [text]]) => [value, text])} params=${params} /></div>`}>
      <${Loaded} live=${live}>${(data) => html`
        <${EndsChart} data=${data} />
        <div class="pair">
          <${Histogram} title="How long jobs waited" buckets=${data.waited} spread=${data.total?.waited} />
          <${Histogram} title="How long runs took" buckets=${data.ran} spread=${data.total?.ran} />
        </div>`}
      <//>
    <//>`;
}

/** Seconds that jobs waited, and the level of the bar that shows them. */
const LEVELS = [1, 10, 60, 600];
const level = (waited) => (waited === null ? 0 : LEVELS.findLastIndex((most) => waited >= most) + 2);

/** A bar a minute: the higher, the longer jobs waited. Below: marks of minutes in which runs failed or stalled. */
export function Heat({ figures, since, step, all }) {
  if (!figures) return html`<span class="none">${all ? "nothing ended" : "–"}</span>`;
  const { points, total } = figures;
  const text = `${inWords(total)}${total.waited ? `; 95 % waited up to about ${span(total.waited.p95)}` : ""}`;
  return html`
    <svg class="heat" role="img" aria-label=${text} viewBox=${`0 0 ${points.length * WIDE} 32`} preserveAspectRatio="none">
      ${points.map((point, index) => {
        if (!point) return null;
        const at = minute(new Date(Date.parse(since) + index * step * 1000));
        const high = 4 + 4 * level(point.waited);
        return html`<g key=${index}>
          <title>${`${at}: ${count(point.ended)} ended, ${count(point.failed)} failed, ${count(point.stalled)} stalled; 95 % waited up to about ${span(point.waited)}`}</title>
          <rect class=${`level-${level(point.waited)}`} x=${index * WIDE + 1} width=${WIDE - 2} y=${25 - high} height=${high} />
          ${point.failed + point.stalled > 0 && html`<rect class="failed" x=${index * WIDE + 1} width=${WIDE - 2} y="27" height="5" />`}
        </g>`;
      })}
      <rect class="line" x="0" width=${points.length * WIDE} y="25" height="1" />
    </svg>`;
}

/** How often something happened in each hour, up to now. */
export function Hours({ values, text }) {
  const most = Math.max(1, ...values);
  return html`
    <svg class="hours" role="img" aria-label=${text} viewBox=${`0 0 ${values.length * WIDE} ${HIGH}`} preserveAspectRatio="none">
      ${values.map((number, index) => html`<g key=${index}>
        <title>${`${values.length - index} h ago: ${count(number)}`}</title>
        <rect class="hit" x=${index * WIDE} width=${WIDE} y="0" height=${HIGH} />
        <${Bar} kind="failed" at=${index * WIDE} from=${HIGH - (number ? Math.max(4, (HIGH * number) / most) : 0)} to=${HIGH} />
      </g>`)}
      <rect class="line" x="0" width=${values.length * WIDE} y=${HIGH - 0.5} height="0.5" />
    </svg>`;
}
