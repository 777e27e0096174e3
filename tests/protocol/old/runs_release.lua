-- RELEASE of a run that is recorded, and RECORD, which releases nothing. Follows runs.lua and the text of a RELEASE, or
-- of what takes its place, whose body is `ask()` here.
--
-- KEYS as RELEASE, runs; RECORD: lock, holder, shares, runs; RECORD of a lock that is moving: runs alone
-- ARGV as RELEASE, who, kept_ms, most, waited_ms, granted_us, fence, outcome|status|signal ('' = nothing ran)
--   granted_us  as ACQUIRE returned it
-- RETURNS {the answer of RELEASE, lost, error}
--   lost   1 if the record says that the run had lost the lock: then no request of its own has released it; else 0
--   error  why the end is not recorded, '' if it is
--
-- Work: as RELEASE, and that of one line.
--
-- Keeps: the lock is released whatever becomes of the record. The record follows the first write: a full server refuses
-- only that of a script. A run has one record, the first, unless it only seemed to have vanished by then: a request that is
-- repeated, or arrives late, adds nothing, though the line has been removed since.

local answer = ask()
-- The lock's key may be of another type now: then the lock is lost.
local lost = answer[1] == 0 or (answer.err and string.find(answer.err, 'WRONGTYPE', 1, true))
if answer.err and not lost then return answer end

local who, kept, most = ARGV[#ARGV - 6], tonumber(ARGV[#ARGV - 5]), tonumber(ARGV[#ARGV - 4])
local waited, granted, fence, how = ARGV[#ARGV - 3], ARGV[#ARGV - 2], ARGV[#ARGV - 1], ARGV[#ARGV]
local says_lost = 0

local function record()
  local note = redis.call('HGET', R, 'run:' .. who)
  local number = redis.call('HGET', R, 'of:' .. who)
  local own = number and redis.call('HGET', R, 'line:' .. number)
  -- It was noted here, and such a note goes only with the line, which has been removed since.
  local since = tonumber(redis.call('HGET', R, 'since'))
  local was_listed = not note and not own and since and (tonumber(granted) or 0) >= since
  local before, _, was = parts(own or '')
  local done = redis.call('HGET', R, 'done') or ''
  local _, _, _, _, whose = parts(done)
  if how == '' or whose == who or (own and was ~= 'vanished') or was_listed then
    redis.call('HDEL', R, 'run:' .. who)
    if was == 'lost' then says_lost = 1 end
    return
  end
  if own then note = string.sub(before, 1, -2) end
  -- The server may have lost the note.
  note = note or table.concat({ granted ~= '' and granted or digits(us), waited, fence }, '|')
  local outcome, rest = string.match(how, '^([%l_]*)|(.*)$')
  if lost then outcome = 'lost' end
  local line = table.concat({ note, digits(us), outcome, rest, who }, '|')
  -- Removes nothing. The note stays until the line is written: a node that is handing over the slot creates no keys any
  -- more.
  redis.call('HDEL', R, '')
  add({ { line, who } }, most)
  redis.call('HDEL', R, 'run:' .. who)
  if outcome == 'done' then
    local last = begun(done)
    if not last or last > us or last <= begun(line) then redis.call('HSET', R, 'done', line) end
  end
  keep(kept)
  if outcome == 'lost' then says_lost = 1 end
end

local recorded, why = pcall(record)
if answer.err then return answer end
return { answer, says_lost, recorded and '' or type(why) == 'table' and why.err or tostring(why) }
