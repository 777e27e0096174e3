-- Puts the expiry of a lock a full ttl from now, if this token has it.
-- KEYS lock, fence   ARGV token, ttl ms
-- RETURNS {1} | {0, value, pttl, fence, server us} not this token's; value is '' if nobody has it
--
-- PEXPIRE, never SET: it works on a server that is out of memory, and it cannot bring back a lock
-- that was taken away.

-- Also the write that a replica refuses. A fence lives on while its lock is held.
redis.call('PEXPIRE', KEYS[2], math.max(86400000, 10 * tonumber(ARGV[2])))

local value = redis.call('GET', KEYS[1])
if value == ARGV[1] then
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
  return {1}
end
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000000 + tonumber(time[2])
local fence = redis.call('GET', KEYS[2]) or '0'
return {0, value or '', redis.call('PTTL', KEYS[1]), fence, string.format('%.0f', now)}
