// The schedules with their last and next ticks.
import { Acts, mayAct } from "../acts.js";
import { path } from "../api.js";
import { html } from "../html.js";
import { useLive } from "../live.js";
import { Facts, Heading, Loaded, Name, Section, Table, Value } from "../parts.js";
import { address, jobAddress, jobsAddress, queueAddress, term } from "../route.js";
import { Time, count, span } from "../time.js";

const ruleOf = ({ cron, tz, every }) => (cron ? `${cron} ${tz}` : `every ${span(every)}`);

const COLUMNS = [
  {
    title: "Schedule",
    kind: "long wide",
    cell: (schedule) => html`
      <span class="with-badge"><${Name} href=${address("schedules", { name: schedule.name })}>${schedule.name}<//>
        ${schedule.paused && html`<span class="badge paused">paused</span>`}</span>
      <span class="name id" title=${schedule.task}>${schedule.task}</span>`,
  },
  {
    title: "Rule",
    kind: "long",
    cell: (schedule) =>
      schedule.cron
        ? html`<span class="name" title=${ruleOf(schedule)}>${schedule.cron}</span>
            <span class="name id">${schedule.tz}</span>`
        : ruleOf(schedule),
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
];

const act = (schedule, verb) => ({ path: path(["schedules", schedule.name, verb]) });

function actsOf(schedule) {
  const { name } = schedule;
  return [
    { ...act(schedule, "trigger"), once: true, name: "Run now", title: `Run ${name} now?`, text: "One job is enqueued. The ticks go on as before.", done: "A job was enqueued." },
    schedule.paused
      ? { ...act(schedule, "resume"), name: "Resume", title: `Resume ${name}?`, text: "It makes jobs again, from its next tick on.", done: "The schedule is resumed." }
      : { ...act(schedule, "pause"), name: "Pause", title: `Pause ${name}?`, text: "It makes no jobs until it is resumed.", done: "The schedule is paused." },
  ];
}

const Chosen = ({ schedule }) => html`
  <${Section} title=${schedule.name} aside=${html`<${Acts} acts=${actsOf(schedule)} /><a href=${address("schedules")}>Close</a>`}>
    <${Facts} facts=${[
      ["Task", html`<a href=${jobsAddress(term("task", schedule.task))}>${schedule.task}</a>`],
      ["Queue", html`<a href=${queueAddress(schedule.queue)}>${schedule.queue}</a>`],
      ["Jobs", html`<a href=${jobsAddress(term("schedule", schedule.name))}>List its jobs</a>`],
      ["Rule", ruleOf(schedule)],
      ["Missed ticks", schedule.missed],
      ["Overlap", schedule.overlap],
      ["Starts", schedule.start && html`<${Time} at=${schedule.start} />`],
      ["Ends", schedule.end && html`<${Time} at=${schedule.end} />`],
      ["Created", html`<${Time} at=${schedule.created} />`],
    ]} />
    <${Value} value=${schedule.arguments} />
  <//>`;

export function Schedules({ params }) {
  const wanted = params.get("name");
  const live = useLive("schedules");
  return html`
    <${Heading}>Schedules<//>
    <${Loaded} live=${live}>${({ schedules }) => {
      const chosen = schedules.find((schedule) => schedule.name === wanted);
      return html`
        <${Table} caption="Schedules with their last and next ticks" columns=${COLUMNS} rows=${schedules} id=${(schedule) => schedule.name}
          chosen=${(schedule) => schedule.name === wanted} empty="There are no schedules. A worker stores those that its app declares: @app.cron, @app.every" />
        ${chosen && html`<${Chosen} key=${chosen.name} schedule=${chosen} />`}
        ${wanted && !chosen && html`<p class="callout warn">The schedule <code>${wanted}</code> does not exist any more.</p>`}
        ${!wanted && schedules.length > 0 && html`<p class="remark">Choose a schedule to see its settings${mayAct("operate") ? ", to pause it or to run it now" : ""}.</p>`}`;
    }}<//>`;
}
