-- The keys beside a lock's own: their damage and, of a shared lock, how long its shares and terms live. Precedes
-- superseding.lua, sharing.lua, sharing_renew.lua and sharing_inspect.lua, and does nothing by itself.

-- Returns the error for a key of another type, with the key: the lock's own is sound. Returns any other error as it is.
local function damage(reply, key)
  if type(reply) ~= 'table' or not reply.err then return nil end
  if not string.find(reply.err, 'WRONGTYPE', 1, true) then return reply end
  return redis.error_reply('DAMAGED ' .. key .. ' is a key of another type')
end

-- Lets the keys live a little longer than the lock's own, which lives for `ms`; leaves the terms alone if they are not
-- given. Not with every change, and not much longer than needed.
local function outlast(ms, shares, terms)
  local left = redis.call('PTTL', shares)
  if left >= ms + 1000 and left <= ms + 20000 then return end
  local longer = string.format('%.0f', ms + 10000)
  redis.call('PEXPIRE', shares, longer)
  if terms then redis.call('PEXPIRE', terms, longer) end
end
