-- FENCE of one key: sets a fence for the holder of the lock, higher than all before it. Follows fence.lua.
--
-- KEYS fence     ARGV ttl_ms
-- RETURNS {fence}, a string
--
-- Work: a constant number of commands.
--
-- Keeps: a fence never falls. It outlives the lock.

local F, time = KEYS[1], redis.call('TIME')
local before = fence_in(redis.pcall('GET', F)) or 0
local fence = string.format('%.0f', math.max(before + 1, tonumber(time[1]) * 1000000 + tonumber(time[2])))
redis.call('SET', F, fence, 'PX', string.format('%.0f', math.max(86400000, 10 * tonumber(ARGV[1]))))
return { fence }
