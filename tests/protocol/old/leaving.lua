-- Removes a caller from the queue, whatever the lock holds. Follows queue.lua and superseding.lua, precedes release.lua
-- and sharing_release.lua.
--
-- Work: a constant number of commands.
--
-- Keeps: a queue or waiters key of another type does not prevent a release; `sound` is false then, and nobody is served.

local sound = true
no_longer_waits()
local value = redis.pcall('GET', K)
local heads = redis.pcall('ZRANGE', Q, 0, 1)
local fields = { token }
if value == token then fields[2] = 'reserved' end
local record = redis.pcall('HDEL', W, unpack(fields))
for _, reply in ipairs({ heads, record }) do
  local why = type(reply) == 'table' and reply.err
  if why and not string.find(why, 'WRONGTYPE', 1, true) then return reply end
  sound = sound and not why
end
local first = sound and heads[1]
if first and redis.call('ZREM', Q, token) == 1 then heads = nil end
-- The lock's key is of another type.
if type(value) == 'table' then return value end
if sound and value ~= token and redis.call('HGET', W, 'reserved') ~= value then redis.call('HDEL', W, 'reserved') end
