-- ACQUIRE: grants the lock to the token if it may have it. May be repeated at any time. Follows queue.lua.
--
-- KEYS lock, queue, waiters, fence
-- ARGV token, ttl_ms, mode, lease_ms, grace_ms, channel ('' = none), ticket ('0' = none yet), kind
--   kind    cluster if the server is a node of a cluster: a lock's slot may move to another
--   mode    queue  join the queue if it is not granted (first call, heartbeat, poll and claim alike)
--           once   do not join the queue; yields to all waiters
--           plain  as SET NX: granted whenever the lock is free, regardless of the queue
-- RETURNS {1, fence}                      granted, or already ours, or our reservation claimed
--         {0, value, pttl, position, length, ticket, channel_used, fence, now_us}
--           value         the lock's value, '' if it is free (only with too many dead in the queue)
--           position      our place from 1, 0 if not queued;  length  how many are queued
--           ticket        to send back with every further call, '0' if not queued
--           channel_used  1: wake-ups will reach the caller.  0: poll
--           value, pttl, ticket, fence, now_us are strings, the rest integers
--
-- Keeps: the lock changes hands here only from nobody to the first live waiter (except for `plain`), so a call by any
-- client repairs a lost wake-up. A free lock is reserved for a live waiter ahead of the caller exactly as by RELEASE: a
-- frozen one costs its grace, a killed one nothing (or, if the slot has moved since its last heartbeat, its grace).
-- While the lock is held, `once` and `plain` change nothing.

local ttl, mode, lease = tonumber(ARGV[2]), ARGV[3], math.min(tonumber(ARGV[4]), LEASE_MAX)
-- A claim must never shorten the expiry by which the next waiter has set its timer.
local grace, channel = math.min(tonumber(ARGV[5]), ttl), ARGV[6]
local ticket = tonumber(ARGV[7])
local fence_ms = math.max(FENCE_MS, 10 * ttl)
local used = 0

local function leave()
  redis.call('ZREM', Q, token)
  redis.call('HDEL', W, token, 'reserved')
end

local value = redis.call('GET', K)
if value == token then
  leave()
  redis.call('PEXPIRE', K, digits(ttl))
  local fence = last_fence()
  if fence then lengthen(F, fence_ms) else fence = bump(fence_ms) end
  return { 1, fence }
end

-- Length of the queue, perhaps with the caller: an empty queue needs less work.
local queued = redis.call('ZCARD', Q)

local function grant()
  -- Writes only if there is something to remove: a first write that a full server allows would let the SET after it
  -- pass, and a full server should refuse newcomers. It does serve those in the queue.
  if (queued > 0 and redis.call('ZSCORE', Q, token)) or redis.call('HGET', W, token)
    or redis.call('HGET', W, 'reserved') then
    leave()
  end
  local fence = bump(fence_ms)
  redis.call('SET', K, token, 'PX', digits(ttl))
  -- The grant is done: the server may refuse access to a queue that is empty now (see reserve).
  if queued > 0 then pcall(front, 'n') end
  return { 1, fence }
end

local function enqueue()
  local own = waiter(token)
  -- Sent once, not with every heartbeat: it proves that scripts may publish to the caller, not only that the caller is
  -- subscribed to the server that runs them.
  local heard = own and own.channel == channel and listeners(channel) ~= 0
  if channel ~= '' and not heard then
    local receivers = publish(channel, 't')
    heard = receivers and (listeners(channel) or receivers) > 0
  end
  if channel ~= '' and heard then used = 1 end
  local score = queued > 0 and redis.call('ZSCORE', Q, token)
  if score then
    ticket = tonumber(score)
    -- Lets the heartbeat pass when the server is full (see reserve). The caller's record stays: without it the hash of
    -- a lone waiter would be gone, and a node that is handing over the slot does not create keys any more.
    redis.call('HDEL', W, '')
  else
    if ticket == 0 then
      local last = queued > 0 and redis.call('ZRANGE', Q, -1, -1, 'WITHSCORES')[2]
      ticket = math.max(us(), (tonumber(last or 0) or 0) + 1)
    end
    redis.call('ZADD', Q, digits(ticket), token)
    -- The caller is the whole queue: any other record belonged to a queue that was lost.
    if queued == 0 then
      local reserved = redis.call('HGET', W, 'reserved')
      redis.call('DEL', W)
      if reserved and reserved == value then redis.call('HSET', W, 'reserved', reserved) end
    end
  end
  local node = used == 1 and ARGV[8] == 'cluster' and this_node() or ''
  redis.call('HSET', W, token, table.concat({ '1', digits(now() + lease),
    digits(grace) .. (node ~= '' and '@' .. node or ''), used == 1 and channel or '' }, '|'))
  if queued == 0 then
    redis.call('PEXPIRE', Q, digits(4 * lease))
    redis.call('PEXPIRE', W, digits(4 * lease))
  else
    lengthen(Q, 4 * lease)
    lengthen(W, 4 * lease)
  end
end

if not value and (mode == 'plain' or queued == 0) then return grant() end
-- Enqueues before serving anybody: a waiter that comes back with its old ticket may be the first.
if mode == 'queue' then enqueue() else ticket = 0 end
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
    if dropped then front('n') end
  end
else
  -- A replica must not answer for its master: it refuses this write, which removes nothing.
  redis.call('ZREM', Q, '')
end
local position, length = 1, 1
if ticket == 0 or queued > 0 then
  position = ticket > 0 and (redis.call('ZRANK', Q, token) or -1) + 1 or 0
  length = redis.call('ZCARD', Q)
end
return { 0, value or '', digits(redis.call('PTTL', K)), position, length,
  digits(ticket), used, last_fence() or '0', digits(us()) }
