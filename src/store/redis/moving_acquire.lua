-- ACQUIRE of one key: the lock, as SET NX has it, and whoever waits.
--
-- KEYS lock     ARGV token, ttl_ms
-- RETURNS {1, had}                   ours: had is 1 if it was already, 0 if it was free
--         {0, value, pttl, '0', us}  somebody else has it; all strings, the fourth for a fence
--
-- Keeps: the fence as it was. A grant is good only once RAISE of one key has raised it.

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
