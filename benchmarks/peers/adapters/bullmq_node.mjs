// BullMQ on Node, the outside mark; obeys the orders that order.py describes, and counts in the tally of tally.py.

import { closeSync, openSync, readFileSync, writeSync } from "node:fs";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { setTimeout as sleep } from "node:timers/promises";

import { Job, Queue, Worker } from "bullmq";

const READERS = 50;
const READ_FOR = 3;
const TICK = 1;
const NOTE = 16;
const FINISHED = 1n << 62n;
const NAME = "peers";

const ABOUT = {
  title: "BullMQ on Node",
  settings: {
    concurrency: "as ordered",
    removeOnComplete: "true, as is usual in production; where results are read back all are kept (default)",
    lockDuration: "30 s (default), renewed at half of it",
    stalledInterval: "30 s (default)",
    attempts: "1 (default)",
  },
  rate: 30_000,
  acknowledges: "after",
  bulk: true,
  results: true,
  at_once: 0,
  tight: { lockDuration: "1 s", stalledInterval: "1 s" },
  recovery: "lockDuration 30 s and then the next look of stalledInterval 30 s: up to a minute",
  notes: [
    "Another language and another runtime: an outside mark, no peer.",
    "A completed job is removed at once, its result with it; ours keeps both for an hour.",
  ],
  packages: ["bullmq", "ioredis"],
  role: "peer",
};

// Notes of one turn of the loop are written in one call: what a kill may take away is the turn it comes in.
class Tally {
  constructor(folder) {
    this.file = openSync(join(folder, `${process.pid}.tally`), "w");
    this.buffer = Buffer.alloc(NOTE * 4_096);
    this.filled = 0;
    this.due = false;
  }

  started(number) {
    this.note(BigInt(number));
  }

  finished(number) {
    this.note(BigInt(number) + FINISHED);
  }

  note(word) {
    if (this.filled === this.buffer.length) this.write();
    this.buffer.writeBigUInt64LE(word, this.filled);
    this.buffer.writeBigUInt64LE(process.hrtime.bigint(), this.filled + 8);
    this.filled += NOTE;
    if (!this.due) {
      this.due = true;
      setImmediate(() => this.write());
    }
  }

  write() {
    this.due = false;
    writeSync(this.file, this.buffer, 0, this.filled);
    this.filled = 0;
  }

  close() {
    if (this.filled) this.write();
    closeSync(this.file);
  }
}

const order = JSON.parse(process.argv[2]);
const lines = createInterface({ input: process.stdin })[Symbol.asyncIterator]();
const heard = async () => ((await lines.next()).value ?? "").trim();
const say = (word, what = {}) => process.stdout.write(JSON.stringify({ say: word, ...what }) + "\n");
const passed = (began) => Number(process.hrtime.bigint() - began) / 1e9;

function row(number) {
  if (order.task === "echo") return [number, "x".repeat(order.size)];
  return order.task === "hold" ? [number, order.hold] : [number];
}

function* numbers() {
  const began = process.hrtime.bigint();
  for (let number = order.first; number < order.first + order.jobs; number += 1) {
    yield number;
    if (order.seconds && passed(began) >= order.seconds) return;
  }
}

function connection() {
  const { hostname, port, pathname } = new URL(order.url);
  // As its documentation asks of workers.
  return { host: hostname, port: Number(port), db: Number(pathname.slice(1) || 0), maxRetriesPerRequest: null };
}

function describe() {
  const version = (name) => JSON.parse(readFileSync(join(import.meta.dirname, "node_modules", name, "package.json"))).version;
  const versions = Object.fromEntries(ABOUT.packages.map((name) => [name, version(name)]));
  say("described", { ...ABOUT, interpreter: `Node ${process.versions.node}`, versions });
}

async function work() {
  const tally = new Tally(order.tally);
  const handlers = {
    noop: async ([number]) => tally.started(number),
    echo: async ([number, text]) => {
      tally.started(number);
      return text;
    },
    hold: async ([number, seconds]) => {
      tally.started(number);
      await sleep(1_000 * seconds);
      tally.finished(number);
    },
  };
  const worker = new Worker(NAME, async (job) => handlers[job.name](job.data), {
    connection: connection(),
    concurrency: order.concurrency,
    autorun: false,
    ...(order.results ? {} : { removeOnComplete: { count: 0 } }),
    ...(order.tight ? { lockDuration: 1_000, stalledInterval: 1_000 } : {}),
  });
  worker.on("error", (error) => console.error(error));
  await worker.waitUntilReady();
  say("ready");
  await heard();
  await worker.run();
}

async function produce() {
  const queue = new Queue(NAME, { connection: connection() });
  await queue.waitUntilReady();
  const made = [];
  say("ready");
  await heard();
  const began = process.hrtime.bigint();
  const cpu = process.cpuUsage();
  await (order.do === "pace" ? pace(queue, made) : enqueue(queue, made));
  const seconds = passed(began);
  const { user, system } = process.cpuUsage(cpu);
  say("enqueued", { jobs: made.length, seconds, cpu: (user + system) / 1e6 });
  const [word, first, last] = (await heard()).split(" ");
  if (word === "read") await read(queue, made.filter(([number]) => Number(first) <= number && number <= Number(last)));
  await queue.close();
  process.exit(0);
}

async function enqueue(queue, made) {
  const due = numbers();
  const caller = async () => {
    for (const number of due) made.push([number, (await queue.add(order.task, row(number))).id]);
  };
  const sender = async () => {
    for (let batch = take(due); batch.length; batch = take(due)) {
      const jobs = await queue.addBulk(batch.map((number) => ({ name: order.task, data: row(number) })));
      jobs.forEach((job, place) => made.push([batch[place], job.id]));
    }
  };
  if (order.callers === 1) await (order.batch > 1 ? sender() : caller());
  else await Promise.all(Array.from({ length: order.callers }, caller));
}

function take(due) {
  const batch = [];
  while (batch.length < order.batch) {
    const { value, done } = due.next();
    if (done) break;
    batch.push(value);
  }
  return batch;
}

async function pace(queue, made) {
  const tally = new Tally(order.tally);
  const send = async (number) => {
    tally.started(number);
    made.push([number, (await queue.add(order.task, row(number))).id]);
  };
  if (!order.rate) {
    for (const number of numbers()) {
      await sleep(5 + 10 * Math.random());
      await send(number);
    }
  } else {
    const sending = [];
    const began = process.hrtime.bigint();
    for (let sent = 0; passed(began) < order.seconds && sent < order.jobs; ) {
      const due = Math.min(Math.floor(passed(began) * order.rate), order.jobs);
      for (; sent < due; sent += 1) sending.push(send(order.first + sent));
      await sleep(TICK);
    }
    await Promise.all(sending);
  }
  tally.close();
}

async function result(queue, id) {
  for (let asked = 0; asked < 200; asked += 1) {
    const job = await Job.fromId(queue, id);
    if (job?.returnvalue != null) return job.returnvalue;
    await sleep(50);
  }
}

async function read(queue, made) {
  const handles = made.values();
  const began = process.hrtime.bigint();
  let jobs = 0;
  let wrong = 0;
  const reader = async () => {
    for (const [number, id] of handles) {
      jobs += 1;
      wrong += (await result(queue, id)) === row(number)[1] ? 0 : 1;
      if (passed(began) > READ_FOR) return;
    }
  };
  await Promise.all(Array.from({ length: READERS }, reader));
  say("read", { jobs, wrong, seconds: passed(began) });
}

if (order.do === "describe") describe();
else await (order.do === "work" ? work() : produce());
