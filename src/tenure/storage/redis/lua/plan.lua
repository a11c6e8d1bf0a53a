#!lua
-- requires: timetable, work
-- plan: change schedules in the given order. A tick moves a schedule on only if its last tick is the expected one.
--
-- Request: a list of {kind, name, ...}: `put` with a `schedule` (parts/timetable.lua), `pause` with paused, next_tick,
-- `remove`, `tick` with expected, tick, next_tick, missed, a `job` to enqueue in the same step, and its place in the
-- call.
-- Answer: {verdict[, id]} for each; `id`: the job that a tick created, or into which its call was merged.
return Work.carry_out(function()
  local planned = {}
  for number, asked in ipairs(ASKED) do
    local name = asked.name
    local known = asked.kind ~= 'put' and Timetable.of(name)
    local verdict, id = 'done', nil
    if asked.kind == 'put' then
      Timetable.put(name, asked.schedule)
    elseif not known then
      verdict = 'gone'
    elseif asked.kind == 'pause' then
      Timetable.pause(name, known, asked.paused, asked.next_tick)
    elseif asked.kind == 'remove' then
      Timetable.remove(name)
    else
      verdict, id = Timetable.move_on(name, known, asked)
    end
    planned[number] = { verdict, id }
  end
  Work.let_in()
  return planned
end)
