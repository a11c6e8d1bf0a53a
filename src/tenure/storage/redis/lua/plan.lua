#!lua
-- requires: schedules, changes
-- plan: change schedules in the given order. A tick moves a schedule on only if its last tick is the expected one.
--
-- Request: a list of {kind, name, ...}: `put` with a `schedule` (parts/schedules.lua), `pause` with paused, next_tick,
-- `remove`, `tick` with expected, tick, next_tick, missed, a `job` to enqueue in the same step, and its place in the
-- call.
-- Answer: {verdict[, id]} for each; `id`: the job that a tick created, or into which its call was merged.
return Changes.run(function()
  local results = {}
  for number, change in ipairs(REQUEST) do
    local name = change.name
    local known = change.kind ~= 'put' and Schedules.get(name)
    local verdict, id = 'done', nil
    if change.kind == 'put' then
      Schedules.put(name, change.schedule)
    elseif not known then
      verdict = 'gone'
    elseif change.kind == 'pause' then
      Schedules.pause(name, known, change.paused, change.next_tick)
    elseif change.kind == 'remove' then
      Schedules.remove(name)
    else
      verdict, id = Schedules.advance(name, known, change)
    end
    results[number] = { verdict, id }
  end
  Changes.unpark()
  return results
end)
