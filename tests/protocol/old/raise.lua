-- RAISE: raises the fence to at least that of a majority's grant, if the vote for the grant is still valid.
-- Follows fence.lua.
--
-- KEYS lock, fence     ARGV token, fence, ttl_ms
-- RETURNS {1}          the lock holds our token, and the fence is at least what was asked for
--         {0}          it does not
--
-- Work: a constant number of commands.
--
-- Keeps: a fence never falls, and lasts as long as after a grant. The next grant of the lock here gets a higher one,
-- since our vote ends only after this.

local F = KEYS[2]
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return { 0 } end
if (fence_in(redis.call('GET', F)) or 0) < tonumber(ARGV[2]) then
  local ms = math.max(86400000, 10 * tonumber(ARGV[3]), redis.call('PTTL', F))
  redis.call('SET', F, ARGV[2], 'PX', string.format('%.0f', ms))
end
return { 1 }
