-- ACQUIRE: grants the lock to the token if it may have it. May be repeated at any time. Follows queue.lua,
-- companions.lua, superseding.lua and place.lua.
--
-- KEYS lock, queue, waiters, fence, shares if `enclosing` is not empty, and superseded if the token is one of
--      superseding.lua
-- ARGV token, ttl_ms, mode, lease_ms, grace_ms, channel ('' = none), ticket ('0' = none yet), kind, enclosing
--   kind    cluster if the server is a node of a cluster: a lock's slot may move to another
--   enclosing  the tokens of the runs that the caller is part of, with spaces between them; '' = none
--   mode    queue  join the queue if it is not granted (first call, heartbeat, poll and claim alike)
--           once   do not join the queue; yields to all waiters
--           plain  as SET NX: granted whenever the lock is free, regardless of the queue
-- RETURNS {1, fence}                      granted, or already ours, or our reservation claimed
--         {0, value, pttl, position, length, ticket, channel_used, fence, now_us}
--           value         the lock's value, '' if it is free (only with too many dead in the queue)
--           position      our place from 1, 0 if not queued;  length  how many are queued
--           ticket        to send back with every further call, '0' if not queued and not one of superseding.lua
--           channel_used  1: wake-ups will reach the caller.  0: poll
--           value, pttl, ticket, fence, now_us are strings, the rest integers
--         {4, ...}                        as {0, ...}, and one of `enclosing` holds the lock
--         {2, by, length, value, pttl, fence, now_us}     dismissed by the newer waiter with the token `by`
--
-- Work: a constant number of commands, and the dead waiters that queue.lua drops; for a lock that is shared, a command
-- for each of `enclosing`, of which nxlock sends at most 256.
--
-- Keeps: the lock changes hands here only from nobody to the first live waiter (except for `plain`), so a call by any
-- client repairs a lost wake-up. A free lock is reserved for a live waiter ahead of the caller exactly as by RELEASE: a
-- frozen one costs its grace, a killed one nothing (or, if the slot has moved since its last heartbeat, its grace).
-- While the lock is held, `once` and `plain` change nothing.

value = redis.call('GET', K)
if value == token then
  leave()
  is_granted(ticket)
  redis.call('PEXPIRE', K, digits(ttl))
  local fence = last_fence()
  if fence then lengthen(F, fence_ms) else fence = bump(fence_ms) end
  return { 1, fence }
end

local by = dismissed_by()
if by then return dismissal(by, value) end

queued = redis.call('ZCARD', Q)

local function grant()
  local mine = S and ((ticket or 0) > 0 and ticket or next_ticket())
  local by = S and newer_than(mine)
  if by then return dismissal(by, value) end
  leave_if_known()
  local fence = bump(fence_ms)
  redis.call('SET', K, token, 'PX', digits(ttl))
  if S then
    supersede(mine)
    is_granted(mine)
  end
  -- The grant is done: the server may refuse access to a queue that is empty now (see reserve).
  if queued > 0 then pcall(front, 'n') end
  return { 1, fence }
end

if not value and (mode == 'plain' or queued == 0) then return grant() end
-- Enqueues before serving anybody: a waiter that comes back with its old ticket may be the first.
if mode == 'queue' then by = enqueue() else ticket = S and next_ticket() or 0 end
if by then return dismissal(by, value) end
if not value then
  local h, w = front('g')
  if h == nil or h == token then return grant() end
  if h then
    reserve(h, w)
    value = h
  end
elseif mode == 'queue' then
  if queued > 0 then
    local _, _, dropped = front()
    if dropped or dismissed_first then front('n') end
  end
else
  -- A replica must not answer for its master: it refuses this write, which removes nothing.
  redis.call('ZREM', Q, '')
end
local position, length = 1, 1
if mode ~= 'queue' or queued > 0 then
  position = ticket > 0 and (redis.call('ZRANK', Q, token) or -1) + 1 or 0
  length = redis.call('ZCARD', Q)
end
return { refusal(value), value or '', digits(redis.call('PTTL', K)), position, length,
  digits(ticket), used, last_fence() or '0', digits(us()) }
