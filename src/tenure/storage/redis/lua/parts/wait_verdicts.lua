-- requires: prelude, inbox
-- Compares what a job waits for with its inbox. `evaluate` and `due_at` of core/waiting.py have the same rules, with
-- reasons.
--
-- A wait is in the record as JSON: {needs, want}, with the fields of `Need` by their names. `timeless`: the times of the
-- needs do not count any more.
local WaitVerdicts = {}

local decoded = {}

-- Decode a wait. A need without `count` wants one key; `count` is false if the box must be sealed.
local function decode(job)
  local readable, wait = pcall(cjson.decode, job.wait)
  if not readable or type(wait) ~= 'table' or type(wait.needs) ~= 'table' then
    -- Only manual changes can cause this. Python shows that the record is unreadable.
    return { needs = { { box = '', count = false } }, boxes = { '' } }
  end
  wait.boxes = {}
  for number, need in ipairs(wait.needs) do
    wait.boxes[number] = need.box
    need.mode = need.mode or 'fail'
    if need.count == nil then
      need.count = 1
    elseif need.count == cjson.null then
      need.count = false
    end
    need.until_when = not job.timeless and need['until'] or nil
  end
  return wait
end

-- Return what a job waits for; nil if it waits for nothing.
function WaitVerdicts.wait_of(job)
  if not job.wait then
    return nil
  end
  local name = (job.timeless and '-' or '+') .. job.wait
  decoded[name] = decoded[name] or decode(job)
  return decoded[name]
end

-- Compare one need with its box. `now`: nil leaves the need's time out. Return 'open', 'broken', 'skipped', or what met
-- the need: 'failed', 'completed' or 'timer'.
local function compare(need, box, now)
  local mode = need.mode
  if mode == 'fail' and box.failed > 0 then
    return 'broken'
  elseif mode == 'only' and box.failed > 0 or mode == 'unless' and box.arrived > box.failed then
    return 'skipped'
  end
  local count = need.count or box.total
  if count and box.arrived >= count then
    if mode == 'tally' and box.failed > 0 then
      return 'broken'
    end
    return box.failed > 0 and 'failed' or 'completed'
  end
  return now and need.until_when and need.until_when <= now and 'timer' or 'open'
end

-- Return the verdict on a job's wait: {is, need, outcomes, by_time, wait, boxes}. `is`: 'open', 'met', 'broken' or
-- 'skipped'. `need`: the broken one. `outcomes`: what met, or broke, each need: {need, by}. A job that waits for nothing
-- has a met wait.
function WaitVerdicts.evaluate(job)
  local wait = WaitVerdicts.wait_of(job)
  if not wait then
    return { is = 'met', outcomes = {} }
  end
  local boxes, outcomes, broken, skipped, by_time = Inbox.read(job, wait.boxes), {}, nil, false, false
  for _, need in ipairs(wait.needs) do
    local verdict = compare(need, boxes[need.box], NOW)
    if verdict == 'broken' then
      broken = broken or need
    elseif verdict == 'skipped' then
      skipped = true
    elseif verdict ~= 'open' then
      outcomes[#outcomes + 1] = { need = need, by = verdict }
      by_time = by_time or verdict == 'timer'
    end
  end
  local found = { wait = wait, boxes = boxes, outcomes = outcomes, by_time = by_time }
  if wait.want == 'any' and #outcomes > 0 then
    found.is, found.outcomes, found.by_time = 'met', { outcomes[1] }, outcomes[1].by == 'timer'
  elseif broken then
    found.is, found.need = 'broken', broken
    outcomes[#outcomes + 1] = { need = broken, by = 'failed' }
  elseif skipped then
    found.is = 'skipped'
  else
    found.is = wait.want ~= 'any' and #outcomes == #wait.needs and 'met' or 'open'
  end
  return found
end

-- Return the instant at which time alone ends an open wait; nil if it needs a token. `verdict`: from `evaluate`.
function WaitVerdicts.due_at(verdict)
  local missing, timed, first, last = 0, 0, nil, nil
  for _, need in ipairs(verdict.wait.needs) do
    if compare(need, verdict.boxes[need.box]) == 'open' then
      missing = missing + 1
      local till = need.until_when
      if till then
        timed, first, last = timed + 1, min(first or till, till), max(last or till, till)
      end
    end
  end
  if verdict.wait.want == 'any' then
    return first
  end
  return timed == missing and last or nil
end

-- Return the content of the last token that a met need counts; nil if it has none.
function WaitVerdicts.body(job, verdict, outcome)
  local need = outcome.need
  local box = verdict.boxes[need.box]
  local count = need.count or box.total
  if outcome.by == 'timer' or verdict.need == need or not count or count < 1 or count > box.arrived - box.failed then
    return nil
  end
  return Inbox.body(job, need.box, count)
end
