#!lua
-- requires: timetable, work
-- plan: change schedules, in the order given, and move one on by a tick if its last one is the expected one.
--
-- Request: a list of {kind, name, ...}: `put` with a `schedule` (parts/timetable.lua), `pause` with paused, next_tick,
-- `remove`, `tick` with expected, tick, next_tick, missed, a `job` to enqueue in the same step, and its place in the
-- call.
-- Answer: for each {verdict[, id]}: the job that a tick made, or that took its call in.
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
