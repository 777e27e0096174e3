-- Grants a lock that is free, or that this token has already.
-- KEYS lock, fence   ARGV token, ttl ms
-- RETURNS {1, fence} granted | {0, value, pttl, fence, server us} somebody else has it
--
-- Asking again with the same token is the same question: a retry after a lost reply is granted
-- again, with the same fence. The lock is only ever written when it is absent.

-- A write first: a replica, or a server that refuses writes, must say so, not answer from what it
-- happens to hold.
local fence_ttl = math.max(86400000, 10 * tonumber(ARGV[2]))
redis.call('PEXPIRE', KEYS[2], fence_ttl)

local value = redis.call('GET', KEYS[1])
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000000 + tonumber(time[2])
local fence = tonumber(redis.call('GET', KEYS[2]) or '0')

if value == ARGV[1] and fence > 0 then
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
elseif value and value ~= ARGV[1] then
  local pttl = redis.call('PTTL', KEYS[1])
  return {0, value, pttl, string.format('%.0f', fence), string.format('%.0f', now)}
else
  redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
  -- The clock as a floor makes fences rise even where the last one was forgotten.
  fence = math.max(fence + 1, now)
  redis.call('SET', KEYS[2], string.format('%.0f', fence), 'PX', fence_ttl)
end
return {1, string.format('%.0f', fence)}
