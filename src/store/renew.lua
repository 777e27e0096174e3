-- RENEW: the lock's expiry a full ttl from now, if it is still ours.
--
-- KEYS lock, queue, waiters, fence     ARGV token, ttl_ms, how
--   how  set      whatever the expiry was
--        prolong  but never nearer than it is: somebody else renews the lock, and counts on it
-- RETURNS {1, '0'}                          it is ours for ttl_ms from now
--         {1, pttl}                         it is ours, and ends later than that: left as it was
--         {0, value, pttl, fence, now_us}   it is not: value, '' if it is free; all strings
--
-- Keeps: never creates the lock, so it can't resurrect one and works on a full server. The fence
-- outlives its lock. A replica can't answer: its PEXPIRE is refused before anything is said, because
-- "not yours" stops a command, and must not come from a server that merely lags behind. The first in line
-- is told of an expiry that moves nearer: its timer is set by the one before.

local ttl = tonumber(ARGV[2])

redis.call('PEXPIRE', F, digits(math.max(FENCE_MS, 10 * ttl, redis.call('PTTL', F))))
local value = redis.call('GET', K)
if value == token then
  local left = redis.call('PTTL', K)
  if ARGV[3] == 'prolong' and left > ttl then return { 1, digits(left) } end
  redis.call('PEXPIRE', K, digits(ttl))
  -- Who may not touch the queue, or finds something else there, has renewed all the same.
  if left > ttl or left < 0 then pcall(front, 'n') end
  return { 1, '0' }
end
return { 0, value or '', digits(redis.call('PTTL', K)), last_fence() or '0', digits(us) }
