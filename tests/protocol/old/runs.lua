-- The recorded runs of one lock. Precedes runs_acquire.lua, runs_release.lua and runs_history.lua, and does nothing by
-- itself.
--
-- The last of KEYS, runs   hash
--   run:WHO  granted_us|waited_ms|fence    a run that has not ended; it has vanished if WHO does not hold the lock
--   line:N   one line for a run that has ended; the last to end has the highest number:
--            granted_us|waited_ms|fence|ended_us|outcome|status|signal|WHO
--            ended_us, status and signal are empty if they are not known
--   of:WHO   the number of its line
--   kept     the lowest number in use, the next one, and how many lines there are: first|next|count
--   done     the line of the run that began last of those that succeeded
--   since    no run noted here was granted the lock before this time, in us
-- WHO is the token with which the lock is held or, beside old SETNX clients, the record of the holder.
--
-- Work: a line that is added or removed takes a constant number of commands, however many there are. More than one is
-- removed only if fewer are to be kept than before, which are 1000 at most.
--
-- Keeps: times are by the server's clock. Nothing in the key decides who holds the lock.

local R = KEYS[#KEYS]
local KEYS = { unpack(KEYS, 1, #KEYS - 1) }

local clock = redis.call('TIME')
local us = tonumber(clock[1]) * 1000000 + tonumber(clock[2])
local function digits(n) return string.format('%.0f', n) end

-- Returns the error for a key of another type.
local function damage(reply)
  if type(reply) ~= 'table' or not reply.err then return nil end
  if not string.find(reply.err, 'WRONGTYPE', 1, true) then return reply end
  return redis.error_reply('DAMAGED ' .. R .. ' is a key of another type')
end

local function keep(ms)
  if redis.call('PTTL', R) < ms then redis.call('PEXPIRE', R, digits(ms)) end
end

-- Returns the parts of a line: up to the end, the end's time, the outcome, the rest, and WHO.
local function parts(line) return string.match(line, '^(%d*|%d*|%d*|)(%d*)|([%l_]*)|(%d*|%d*)|(.*)$') end

-- Returns when a run began.
local function begun(line) return tonumber(string.match(line or '', '^(%d+)|')) end

-- Returns the lowest number in use, the next one, and how many lines there are.
local function numbers()
  local first, after, count = string.match(redis.call('HGET', R, 'kept') or '', '^(%d+)|(%d+)|(%d+)$')
  return tonumber(first or 1), tonumber(after or 1), tonumber(count or 0)
end

-- Adds the lines of runs that have ended, each with its WHO, and keeps the last ones, at most `most`. The line of a run
-- that has one already moves behind the others.
local function add(ended, most)
  local first, after, count = numbers()
  for _, run in ipairs(ended) do
    local line, who = run[1], run[2]
    local before = redis.call('HGET', R, 'of:' .. who)
    redis.call('HSET', R, 'line:' .. digits(after), line, 'of:' .. who, digits(after))
    if before then redis.call('HDEL', R, 'line:' .. before) else count = count + 1 end
    after = after + 1
  end
  while count > most and first < after do
    local line = redis.call('HGET', R, 'line:' .. digits(first))
    if line then
      local _, _, _, _, who = parts(line)
      redis.call('HDEL', R, 'line:' .. digits(first), 'of:' .. (who or ''))
      count = count - 1
    end
    first = first + 1
  end
  redis.call('HSET', R, 'kept', table.concat({ digits(first), digits(after), digits(count) }, '|'))
end
