-- requires: prelude
-- The jobs that are to be notified of a job's end. A record has the first of them in `dependents`, {ref, box, key, ref,
-- box, key, ...}, and in `more` how many others there are.
--
-- dependents:<ref>  ZSET  these others, by their number from 0 on: ref, box and key, joined by NUL
local Dependents = {}

-- constants: DEPENDENTS_LIMIT

-- Add dependents to a job, each once. Return the changes of its record; nil if it has all of them.
function Dependents.added(job, others)
  local first, more, known, is_new = {}, job.more or 0, {}, false
  for at, text in ipairs(job.dependents or {}) do
    first[at] = text
    if at % 3 == 0 then
      known[pair(first[at - 2], pair(first[at - 1], text))] = true
    end
  end
  for at = 1, #others, 3 do
    local name = pair(others[at], pair(others[at + 1], others[at + 2]))
    local added = 0
    if not known[name] and #first < 3 * DEPENDENTS_LIMIT then
      first[#first + 1], first[#first + 2], first[#first + 3] = others[at], others[at + 1], others[at + 2]
      added = 1
    elseif not known[name] then
      added = call('ZADD', key('dependents', job.ref), 'NX', more, name)
      more = more + added
    end
    known[name], is_new = true, is_new or added > 0
  end
  return is_new and { dependents = first, more = more > 0 and more or nil } or nil
end

-- Append the dependents with these names to a list, {ref, box, key, ...}.
function Dependents.append(list, names)
  for _, name in ipairs(names) do
    local queue_end = string.find(name, '\0', 1, true)
    local ref_end = string.find(name, '\0', queue_end + 1, true)
    list[#list + 1] = string.sub(name, 1, ref_end - 1)
    list[#list + 1], list[#list + 2] = parts_of(string.sub(name, ref_end + 1))
  end
end
