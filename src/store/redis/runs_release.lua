-- RELEASE of a run that is recorded, and RECORD, which releases nothing. Follows runs.lua and the text of a RELEASE, or
-- of what takes its place, whose body is `ask()` here.
--
-- KEYS as RELEASE, runs; RECORD: lock, holder, shares, runs; RECORD of a lock that is moving: runs alone
-- ARGV as RELEASE, who, kept_ms, most, waited_ms, held_us, fence, outcome|status|signal ('' = nothing ran)
-- RETURNS {the answer of RELEASE, error}   error  why the end is not recorded, '' if it is
--
-- Keeps: the lock is released whatever becomes of the record. The record follows the first write: a full server refuses
-- only that of a script. A run has one record, the first, unless it only seemed to have vanished by then.

local answer = ask()
-- The lock's key may be of another type now: then the lock is lost.
local lost = answer[1] == 0 or (answer.err and string.find(answer.err, 'WRONGTYPE', 1, true))
if answer.err and not lost then return answer end

local who, kept, most = ARGV[#ARGV - 6], tonumber(ARGV[#ARGV - 5]), tonumber(ARGV[#ARGV - 4])
local waited, held, fence, how = ARGV[#ARGV - 3], tonumber(ARGV[#ARGV - 2]), ARGV[#ARGV - 1], ARGV[#ARGV]

local function record()
  local note = redis.call('HGET', R, 'run:' .. who)
  local lines, own = ended(who)
  local before, _, was = parts(own or '')
  local done = redis.call('HGET', R, 'done') or ''
  local _, _, _, _, whose = parts(done)
  if how == '' or whose == who or (own and was ~= 'vanished') then
    redis.call('HDEL', R, 'run:' .. who)
    return
  end
  if own then note = string.sub(before, 1, -2) end
  -- The server may have lost the note.
  note = note or table.concat({ digits(us - held), waited, fence }, '|')
  local outcome, rest = string.match(how, '^([%l_]*)|(.*)$')
  if lost then outcome = 'lost' end
  local line = table.concat({ note, digits(us), outcome, rest, who }, '|')
  table.insert(lines, 1, line)
  -- Removes nothing. The note stays until the line is written: a node that is handing over the slot creates no keys any
  -- more.
  redis.call('HDEL', R, '')
  write(lines, most)
  redis.call('HDEL', R, 'run:' .. who)
  if outcome == 'done' then
    local last = begun(done)
    if not last or last > us or last <= begun(line) then redis.call('HSET', R, 'done', line) end
  end
  keep(kept)
end

local recorded, why = pcall(record)
if answer.err then return answer end
return { answer, recorded and '' or type(why) == 'table' and why.err or tostring(why) }
