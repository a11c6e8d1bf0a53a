// The schedules with their last and next ticks.
import { html } from "../html.js";
import { useLive } from "../live.js";
import { Heading, Loaded, Name, Table } from "../parts.js";
import { jobAddress, jobsAddress, queueAddress, term } from "../route.js";
import { Time, count, span } from "../time.js";

const COLUMNS = [
  {
    title: "Schedule",
    kind: "long wide",
    cell: (schedule) => html`
      <span class="with-badge"><${Name} href=${jobsAddress(term("schedule", schedule.name))}>${schedule.name}<//>
        ${schedule.paused && html`<span class="badge paused">paused</span>`}</span>
      <span class="name id" title=${schedule.task}>${schedule.task}</span>`,
  },
  {
    title: "Rule",
    kind: "long",
    cell: (schedule) =>
      schedule.cron
        ? html`<span class="name" title=${`${schedule.cron} ${schedule.tz}`}>${schedule.cron}</span>
            <span class="name id">${schedule.tz}</span>`
        : `every ${span(schedule.every)}`,
  },
  { title: "Next tick", kind: "when", cell: (schedule) => html`<${Time} at=${schedule.next_tick} none=${schedule.paused ? "paused" : "none"} />` },
  {
    title: "Last tick",
    kind: "when optional",
    cell: (schedule) =>
      schedule.last_id
        ? html`<a href=${jobAddress({ queue: schedule.queue, id: schedule.last_id })}><${Time} at=${schedule.last_tick} /></a>`
        : html`<span class="none">never</span>`,
  },
  { title: "Queue", kind: "long optional", cell: (schedule) => html`<${Name} href=${queueAddress(schedule.queue)}>${schedule.queue}<//>` },
  { title: "Ticks", kind: "number optional", cell: (schedule) => count(schedule.runs) + (schedule.limit ? ` of ${count(schedule.limit)}` : "") },
  { title: "Missed", kind: "optional", cell: (schedule) => schedule.missed },
  { title: "Overlap", kind: "optional", cell: (schedule) => schedule.overlap },
];

export function Schedules() {
  const live = useLive("schedules");
  return html`
    <${Heading}>Schedules<//>
    <${Loaded} live=${live}>${({ schedules }) => html`
      <${Table} caption="Schedules with their last and next ticks" columns=${COLUMNS} rows=${schedules} id=${(schedule) => schedule.name}
        empty="There are no schedules. A worker stores those that its app declares: @app.cron, @app.every" />`}
    <//>`;
}
