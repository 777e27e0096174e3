-- ACQUIRE of a run that is recorded. Follows runs.lua and the text of an ACQUIRE, whose body is `ask()` here.
--
-- KEYS as ACQUIRE, runs
-- ARGV as ACQUIRE, who, kept_ms, most, waited_ms, unless_us ('' = whatever was done)
-- RETURNS {the answer of ACQUIRE, granted_us}   granted_us  when the run was granted the lock, '' if it was not
--   in place of that answer {3, line, others, value, pttl, fence, now_us}: the last run that succeeded, which began less
--   than unless_us ago: nothing is granted.  others  how many others wait
--
-- Work: as ACQUIRE, and a constant number of commands. After runs that vanished: one command for each note of a run, of
-- which there are as many as holders and vanished runs, and 6 for each of at most BATCH that have vanished.
--
-- Keeps: a caller that has the lock keeps it, whatever has been done: its run may be under way.

local who, kept, most = ARGV[#ARGV - 4], tonumber(ARGV[#ARGV - 3]), tonumber(ARGV[#ARGV - 2])
local waited, unless = ARGV[#ARGV - 1], tonumber(ARGV[#ARGV])
-- At most so many runs that have vanished are listed in one script.
local BATCH = 100

local note = redis.pcall('HGET', R, 'run:' .. who)
local damaged = damage(note)
if damaged then return damaged end
if not note and unless then
  local done = redis.call('HGET', R, 'done')
  local at = parts(done or '') and begun(done)
  -- The clock has been set back since: counts as if it had just ended, or nothing would be granted until the clock has
  -- caught up.
  if at and at > us then
    local _, ends, outcome, rest, whose = parts(done)
    local held = math.max(0, (tonumber(ends) or at) - at)
    local between = string.match(done, '^%d+(|[^|]*|[^|]*|)')
    at, done = us - held, digits(us - held) .. between .. table.concat({ digits(us), outcome, rest, whose }, '|')
    redis.pcall('HSET', R, 'done', done)
  end
  if at and us - at < unless then
    -- A replica must not answer for its master: it refuses this write, which removes nothing.
    redis.call('HDEL', R, '')
    local value, fence = redis.call('GET', KEYS[1]), redis.pcall('GET', KEYS[4])
    local others = redis.call('ZCARD', KEYS[2]) - (redis.call('ZSCORE', KEYS[2], ARGV[1]) and 1 or 0)
    return { { 3, done, others, value or '', digits(redis.call('PTTL', KEYS[1])),
      type(fence) == 'string' and fence or '0', digits(us) }, '' }
  end
end

local answer = ask()
if answer.err then return answer end
if answer[1] ~= 1 then return { answer, '' } end
if note then return { answer, string.match(note, '^%d*') } end

-- Moves the runs that have vanished to those that have ended, if the server permits the caller to see them. The notes
-- stay until the lines are written: a node that is handing over the slot creates no keys any more.
local function sweep(shares)
  local all, lines, gone = redis.pcall('HGETALL', R), {}, {}
  for i = 1, #all, 2 do
    local whose = string.match(all[i], '^run:(.*)$')
    local ends = whose and shares and tonumber(redis.call('ZSCORE', shares, whose))
    if whose and not (ends and ends > us / 1000) then
      -- If it has ended, it has asked once more since.
      if not redis.call('HGET', R, 'of:' .. whose) then
        lines[#lines + 1] = { all[i + 1] .. '||vanished|||' .. whose, whose }
      end
      gone[#gone + 1] = all[i]
      if #gone == BATCH then break end
    end
  end
  if not gone[1] then return end
  add(lines, most)
  for _, field in ipairs(gone) do redis.call('HDEL', R, field) end
end

-- Looks for them only if more runs are noted than there are holders.
local shares = string.sub(redis.call('GET', KEYS[1]), 1, 11) == 'nx1:shared:' and KEYS[5]
local fields = redis.pcall('HLEN', R)
if type(fields) == 'number' then
  local _, _, count = numbers()
  fields = fields - 2 * count
  for _, other in ipairs({ 'kept', 'done', 'since' }) do
    if redis.call('HGET', R, other) then fields = fields - 1 end
  end
  if fields >= (shares and redis.call('ZCARD', shares) or 1) then sweep(shares) end
end
local since = math.min(us, tonumber(redis.call('HGET', R, 'since') or us))
redis.call('HSET', R, 'run:' .. who, digits(us) .. '|' .. waited .. '|' .. (answer[2] or ''), 'since', digits(since))
keep(kept)
return { answer, digits(us) }
