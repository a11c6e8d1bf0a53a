#!lua flags=allow-oom
-- requires: transaction
-- record_act: write an operator's act into the audit log, which one partition of the namespace keeps.
--
-- acts  ZSET  the ids of the acts by their numbers, which rise in the order in which they were asked for
-- act   HASH  id: the record, as msgpack
--
-- Request: {act, age, count}. `act`: the fields of OperatorAct that are set; `age`, `count`: how long records are kept.
-- Answer: the record.
local LOG, RECORDS = key('acts'), key('act')

-- Delete some of the oldest records that are too old or too many.
local function trim()
  local surplus = REQUEST.count and call('ZCARD', LOG) - REQUEST.count or 0
  for place = 1, TRIM_BATCH do
    local id = first_of(LOG, 1)[1]
    local body = id and call('HGET', RECORDS, id)
    if not id or (body and place > surplus and cmsgpack.unpack(body).asked > NOW - REQUEST.age) then
      return
    end
    call('ZREM', LOG, id)
    call('HDEL', RECORDS, id)
  end
end

local act = REQUEST.act
local body = call('HGET', RECORDS, act.id)
if not body then
  act.asked = act.asked or NOW
  act.done = act.verdict and NOW
  body = cmsgpack.pack(act)
  local last = call('ZREVRANGE', LOG, 0, 0, 'WITHSCORES')[2]
  call('ZADD', LOG, whole((tonumber(last) or 0) + 1), act.id)
  call('HSET', RECORDS, act.id, body)
  trim()
  return body
end
local kept = cmsgpack.unpack(body)
if not act.verdict or kept.done then
  Transaction.note_repeated()
  return body
end
kept.done, kept.verdict, kept.count = NOW, act.verdict, act.count
body = cmsgpack.pack(kept)
call('HSET', RECORDS, act.id, body)
return body
