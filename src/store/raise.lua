-- RAISE: the fence no lower than what a majority's grant was given.
--
-- KEYS lock, fence     ARGV fence, ttl_ms
-- RETURNS {seen}       the fence as it was before, '0' if there was none; a string
--
-- Keeps: a fence never falls, and lasts as long as after a grant.

local F = KEYS[2]
local seen = redis.call('GET', F) or '0'
if (tonumber(seen) or 0) < tonumber(ARGV[1]) then
  local ms = math.max(86400000, 10 * tonumber(ARGV[2]), redis.call('PTTL', F))
  redis.call('SET', F, ARGV[1], 'PX', string.format('%.0f', ms))
end
return { seen }
