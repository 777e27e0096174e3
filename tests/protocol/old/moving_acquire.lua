-- ACQUIRE of one key: grants the lock as SET NX does, regardless of waiters.
--
-- KEYS lock     ARGV token, ttl_ms
-- RETURNS {1, had}                   ours: had is 1 if it was ours already, 0 if it was free
--         {0, value, pttl, '0', us}  another token has it; all strings, '0' for the fence
--
-- Work: a constant number of commands.
--
-- Keeps: the fence unchanged. A grant counts only once RAISE of one key has raised it.

local K, token, ttl = KEYS[1], ARGV[1], ARGV[2]
local value = redis.call('GET', K)
if value == token then
  redis.call('PEXPIRE', K, ttl)
  return { 1, 1 }
elseif not value then
  redis.call('SET', K, token, 'PX', ttl)
  return { 1, 0 }
end
local time = redis.call('TIME')
local function digits(n) return string.format('%.0f', n) end
return { 0, value, digits(redis.call('PTTL', K)), '0', digits(tonumber(time[1]) * 1000000 + tonumber(time[2])) }
