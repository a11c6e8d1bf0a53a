-- requires: prelude
-- Numbered claims: the highest number that was seen of each lane of an owner, and the claimed runs that the owner has
-- not acknowledged yet. core/lane.py has the reasons.
--
-- claims:<owner>\0<lane>  STRING  "<highest>:" and, as msgpack, groups of runs: {number, fence, ref, ref, ...}. "!"
--                                 instead of ":" means that there was no time to hand back all LOST runs. The key
--                                 expires some time after the lane's last call
--
-- A lane is {id, number, since, answered}: calls below `since` are over; calls up to `answered` have been answered.
-- `number`: of this call; a beat has none.
local Claims = {}

local KEPT = '600000'
local LOST = 0

local highest, groups, lost = 0, {}, {}

local function name_of(owner, lane)
  return key('claims', pair(owner.id, lane.id))
end

-- Read the state of a lane; return true if the number of this call was seen before.
function Claims.read(owner, lane)
  highest, groups, lost = 0, {}, {}
  local body = call('GET', name_of(owner, lane))
  local begins = body and string.find(body, '[:!]')
  if begins then
    highest = tonumber(string.sub(body, 1, begins - 1))
    if lane.number and lane.number <= highest then
      return true
    end
    -- Usually all runs are acknowledged, and need not be decoded.
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

-- Return true if there are runs to hand back.
function Claims.is_lost()
  return #lost > 0
end

-- Hand back, by `settle`, the runs of calls that are over and whose answers were lost, as far as there is time.
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

-- Note the runs that this call has claimed: a list of refs, records and payloads. `fences`: the fences of those jobs
-- whose fence is not `fence`. A second call replaces what the first has noted.
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
