-- requires: cell
-- Numbered claims: which number of an owner's lane was seen last, and what was given out that is not acknowledged yet.
-- core/lane.py says why.
--
-- claims:<owner>\0<lane>  STRING  "<highest>:" and, as msgpack, groups of runs: {number, fence, ref, ref, ...}. With "!" in
--                                 the place of ":" there was no time to hand back all that is LOST. It expires by itself
--                                 some time after the lane was last heard of
--
-- A lane is {id, number, since, answered}: the calls below `since` are over, those up to `answered` have been answered.
-- `number`: of this call; a beat has none.
local Claims = {}

local KEPT = '600000'
local LOST = 0

local highest, groups, lost = 0, {}, {}

local function name_of(owner, lane)
  return key('claims', pair(owner.id, lane.id))
end

-- Look up what is known of a lane; return whether the number of this call was seen before.
function Claims.look(owner, lane)
  highest, groups, lost = 0, {}, {}
  local body = call('GET', name_of(owner, lane))
  local begins = body and string.find(body, '[:!]')
  if begins then
    highest = tonumber(string.sub(body, 1, begins - 1))
    if lane.number and lane.number <= highest then
      return true
    end
    -- Mostly all of it is acknowledged.
    if #body > begins and (highest > lane.answered or string.sub(body, begins, begins) == '!') then
      for _, group in ipairs(cmsgpack.unpack(string.sub(body, begins + 1))) do
        local number = group[1]
        if number == LOST or lane.answered < number and number < lane.since then
          lost[#lost + 1] = group
        elseif number > lane.answered then
          groups[#groups + 1] = group
        end
      end
    end
  end
  return false
end

-- Whether anything is to be handed back.
function Claims.is_lost()
  return #lost > 0
end

-- Hand back, by `settle`, what calls have given out that are over and were not answered, as far as there is time.
function Claims.hand_back(settle, has_time)
  local left = {}
  for _, group in ipairs(lost) do
    local rest = { LOST, group[2] }
    for number = 3, #group do
      if #left == 0 and #rest == 2 and has_time() then
        settle(group[number], group[2])
      else
        rest[#rest + 1] = group[number]
      end
    end
    if #rest > 2 then
      left[#left + 1] = rest
    end
  end
  lost = left
end

-- Note what this call has given out: a list of refs, records and payloads. `fences`: of each of these jobs that is not
-- `fence`. What is noted again takes the place of what was noted before.
function Claims.note(owner, lane, leases, fence, fences)
  local kept, group, separator = {}, nil, ':'
  for _, one in ipairs(groups) do
    kept[#kept + 1] = one
  end
  for number = 1, #leases / 3 do
    local its = fences[number] or fence
    if not group or group[2] ~= its then
      group = { lane.number, its }
      kept[#kept + 1] = group
    end
    group[#group + 1] = leases[3 * number - 2]
  end
  for _, group in ipairs(lost) do
    group[1], separator = LOST, '!'
    kept[#kept + 1] = group
  end
  local seen = whole(max(highest, lane.number or lane.since - 1))
  call(
    'SET',
    name_of(owner, lane),
    seen .. separator .. (#kept > 0 and cmsgpack.pack(kept) or ''),
    'PX',
    KEPT
  )
end
