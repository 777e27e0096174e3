-- The place of a caller in the queue: how it joins, and how it leaves. Follows queue.lua and superseding.lua, precedes
-- acquire.lua and sharing_acquire.lua, and does nothing by itself.
--
-- KEYS[5] shares, if any runs enclose the caller     ARGV as ACQUIRE
--
-- Work: a constant number of commands; the records of a queue that was lost are deleted at once.

local ttl, mode, lease = tonumber(ARGV[2]), ARGV[3], math.min(tonumber(ARGV[4]), LEASE_MAX)
-- A claim must never shorten the expiry by which the next waiter has set its timer.
local grace, channel = math.min(tonumber(ARGV[5]), ttl), ARGV[6]
local ticket = tonumber(ARGV[7])
local fence_ms = math.max(FENCE_MS, 10 * ttl)
local used = 0

-- The lock's value, and the length of the queue, perhaps with the caller: an empty queue needs less work.
local value, queued
-- The caller has dismissed the first of the queue: the next has to hear that it is the first.
local dismissed_first

-- Returns the first word of a refusal: 4 if a run that encloses the caller holds the lock with this value, alone or
-- with others, so that the caller would wait for itself; else 0.
local function refusal(value)
  for t in string.gmatch(ARGV[9] or '', '[^ ]+') do
    if t == value then return 4 end
    local ends = value and string.sub(value, 1, 11) == 'nx1:shared:' and redis.call('ZSCORE', KEYS[5], t)
    if ends and tonumber(ends) > now() then return 4 end
  end
  return 0
end

local function leave()
  redis.call('ZREM', Q, token)
  redis.call('HDEL', W, token, 'reserved')
end

-- Does the same, and writes only if there is something to remove: a first write that a full server allows would let
-- the SET after it pass, and a full server should refuse newcomers. It does serve those in the queue.
local function leave_if_known()
  if (queued > 0 and redis.call('ZSCORE', Q, token)) or redis.call('HGET', W, token)
    or redis.call('HGET', W, 'reserved') then
    leave()
  end
end

-- Returns the ticket of a newcomer: behind all others.
local function next_ticket()
  local last = queued > 0 and redis.call('ZRANGE', Q, -1, -1, 'WITHSCORES')[2]
  return math.max(us(), (tonumber(last or 0) or 0) + 1, (S and latest() or 0) + 1)
end

-- Returns nothing, or the token of a newer waiter that dismisses the caller: then it has not joined.
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
  if score then ticket = tonumber(score) elseif ticket == 0 then ticket = next_ticket() end
  if S then
    local by = newer_than(ticket)
    if by then
      leave_if_known()
      return by
    end
  end
  if score then
    -- Lets the heartbeat pass when the server is full (see reserve). The caller's record stays: without it the hash of
    -- a lone waiter would be gone, and a node that is handing over the slot does not create keys any more.
    redis.call('HDEL', W, '')
  else
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
  if S then dismissed_first = supersede(ticket) end
end
