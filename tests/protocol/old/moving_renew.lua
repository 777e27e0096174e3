-- RENEW of one key: sets the lock's expiry to a full ttl from now, if it is still ours.
--
-- KEYS lock     ARGV token, ttl_ms, how (as RENEW)
-- RETURNS {1, '0'}                   it is ours for ttl_ms from now
--         {1, pttl}                  it is ours, and expires later than that: unchanged
--         {0, value, pttl, '0', us}  it is not: value, '' if it is free; all strings, '0' for the fence
--
-- Work: a constant number of commands.
--
-- Keeps: never creates the lock. A replica does not answer: the cluster redirects.

local K, ttl = KEYS[1], tonumber(ARGV[2])
local function digits(n) return string.format('%.0f', n) end
local value, left = redis.call('GET', K), redis.call('PTTL', K)
if value == ARGV[1] then
  if ARGV[3] == 'prolong' and left > ttl then return { 1, digits(left) } end
  redis.call('PEXPIRE', K, digits(ttl))
  return { 1, '0' }
end
local time = redis.call('TIME')
return { 0, value or '', digits(left), '0', digits(tonumber(time[1]) * 1000000 + tonumber(time[2])) }
