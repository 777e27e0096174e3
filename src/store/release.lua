-- Deletes a lock, if this token has it.
-- KEYS lock, fence   ARGV token
-- RETURNS {1} | {0, value, pttl, fence, server us} not this token's; value is '' if nobody has it

-- The write that a replica refuses.
redis.call('PEXPIRE', KEYS[2], math.max(86400000, redis.call('PTTL', KEYS[2])))

local value = redis.call('GET', KEYS[1])
if value == ARGV[1] then
  redis.call('DEL', KEYS[1])
  return {1}
end
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000000 + tonumber(time[2])
local fence = redis.call('GET', KEYS[2]) or '0'
return {0, value or '', redis.call('PTTL', KEYS[1]), fence, string.format('%.0f', now)}
