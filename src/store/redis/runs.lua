-- The recorded runs of one lock. Precedes runs_acquire.lua, runs_release.lua and runs_history.lua, and does nothing by
-- itself.
--
-- The last of KEYS, runs   hash
--   run:WHO  granted_us|waited_ms|fence    a run that has not ended; it has vanished if WHO does not hold the lock
--   ended    one line for each run that has ended, the last first:
--            granted_us|waited_ms|fence|ended_us|outcome|status|signal|WHO
--            ended_us, status and signal are empty if they are not known
--   done     the same of the run that began last of those that succeeded
-- WHO is the token with which the lock is held or, beside old SETNX clients, the record of the holder.
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

-- Returns the lines of the runs that have ended, without that of `who`, and that one.
local function ended(who)
  local lines, own = {}, nil
  for line in string.gmatch(redis.call('HGET', R, 'ended') or '', '[^\n]+') do
    local _, _, _, _, whose = parts(line)
    if whose == who then own = line else lines[#lines + 1] = line end
  end
  return lines, own
end

-- Writes the first lines, at most `most`.
local function write(lines, most) redis.call('HSET', R, 'ended', table.concat(lines, '\n', 1, math.min(#lines, most))) end
