-- Tells who has a lock. Reads only.
-- KEYS lock, fence
-- RETURNS {type, value, pttl, fence, server us}; value is '' where the type is not string

local kind = redis.call('TYPE', KEYS[1])['ok']
local value = kind == 'string' and redis.call('GET', KEYS[1]) or ''
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000000 + tonumber(time[2])
local fence = redis.call('GET', KEYS[2]) or '0'
return {kind, value, redis.call('PTTL', KEYS[1]), fence, string.format('%.0f', now)}
