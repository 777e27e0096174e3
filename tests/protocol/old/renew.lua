-- RENEW: sets the lock's expiry to a full ttl from now, if it is still ours.
--
-- KEYS lock, fence     ARGV token, ttl_ms, how
--   how  set      regardless of the expiry
--        prolong  but never nearer than it is: another process renews the lock, and relies on it
-- RETURNS {1, '0'}                          it is ours for ttl_ms from now
--         {1, '-1'}                         the same, and the expiry has moved nearer: NUDGE must follow
--         {1, pttl}                         it is ours, and expires later than that: unchanged
--         {0, value, pttl, fence, now_us}   it is not: value, '' if it is free; all strings
--
-- Work: a constant number of commands.
--
-- Keeps: never creates the lock, so it can't resurrect one and works on a full server. The fence outlives its lock. A
-- replica can't answer: it refuses PEXPIRE before the script returns anything, because "not yours" stops a command, and
-- must not come from a server that merely lags behind. Takes no key that may be missing: a slot that is moving to
-- another server refuses those.

local K, F = KEYS[1], KEYS[2]
local ttl = tonumber(ARGV[2])
local function digits(n) return string.format('%.0f', n) end

redis.call('PEXPIRE', F, digits(math.max(86400000, 10 * ttl, redis.call('PTTL', F))))
local value = redis.call('GET', K)
if value == ARGV[1] then
  local left = redis.call('PTTL', K)
  if ARGV[3] == 'prolong' and left > ttl then return { 1, digits(left) } end
  redis.call('PEXPIRE', K, digits(ttl))
  return { 1, (left > ttl or left < 0) and '-1' or '0' }
end
local time = redis.call('TIME')
local fence = redis.pcall('GET', F)
return { 0, value or '', digits(redis.call('PTTL', K)), type(fence) == 'string' and fence or '0',
  digits(tonumber(time[1]) * 1000000 + tonumber(time[2])) }
