-- RENEW of a share: sets its end to a full ttl from now, if it is still ours. Follows companions.lua.
--
-- KEYS lock, fence, shares, terms     ARGV token, ttl_ms, how
-- RETURNS as RENEW, of the share; {1, '-1'} if its end has moved nearer: NUDGE must follow
--
-- Work: a constant number of commands.
--
-- Keeps: as RENEW. The lock's key expires with the last share, later than before or sooner.

local K, F, H, T = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local ttl = tonumber(ARGV[2])
local time = redis.call('TIME')
local us = tonumber(time[1]) * 1000000 + tonumber(time[2])
local now = math.floor(us / 1000)
local function digits(n) return string.format('%.0f', n) end

redis.call('PEXPIRE', F, digits(math.max(86400000, 10 * ttl, redis.call('PTTL', F))))
local value = redis.call('GET', K)
local score = redis.pcall('ZSCORE', H, ARGV[1])
local damaged = damage(score, H)
if damaged then return damaged end
local ends = value and string.sub(value, 1, 11) == 'nx1:shared:' and tonumber(score or 0)
if ends and ends > now then
  local left = ends - now
  local stays = ARGV[3] == 'prolong' and left > ttl
  if not stays then redis.call('ZADD', H, digits(now + ttl), ARGV[1]) end
  -- The latest end of all shares, whatever another client may have done to the key's expiry.
  local ms = tonumber(redis.call('ZRANGE', H, -1, -1, 'WITHSCORES')[2]) - now
  redis.call('PEXPIRE', K, digits(ms))
  outlast(ms, H, T)
  return { 1, stays and digits(left) or left > ttl and '-1' or '0' }
end
local fence = redis.pcall('GET', F)
return { 0, value or '', digits(redis.call('PTTL', K)), type(fence) == 'string' and fence or '0', digits(us) }
