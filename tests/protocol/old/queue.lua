-- The queue of one lock: finds the first live waiter, and hands the lock over to it. Follows fence.lua, precedes
-- acquire.lua, release.lua, nudge.lua and inspect.lua, and does nothing by itself.
--
-- KEYS lock, queue, waiters, fence     ARGV[1] token
--   lock     string  the holder's token; nothing else decides who holds
--   queue    zset    token -> ticket, a waiter's place in the order
--   waiters  hash    token -> 1|lease deadline ms|grace ms|channel     (server clock; '' = it polls)
--                    in a cluster, `@` and the id of the node at which it subscribed follow the grace
--                    and, if the token is a bare number, a line that says who waits (setnx.lua)
--                    reserved -> token for which the lock was last reserved; valid only while lock == it
--   fence    string  fence of the last change of owner, in decimal digits
-- Messages on a channel: g "the lock is yours, claim it", n "ask again", e and a time in ms "ask again soon, and at the
-- latest then: a reservation ends" (server clock), t a test (ignore it), s (superseding.lua).
--
-- Work: `front` takes 6 commands, and 6 more for each dead waiter that it drops; one script drops at most DEAD_MAX,
-- however often it looks. Nothing else depends on how many wait.
--
-- Keeps: a token leaves the queue together with its record. Dead waiters are dropped only where they block the queue,
-- so the work does not grow with it. A waiter with a reservation leaves queue and hash at once: all that a reservation
-- never claimed can leave behind is the one field `reserved`, which the next overwrites. Fences rise with every change
-- of owner, even after data was lost: TIME is their floor.

local K, Q, W, F, token = KEYS[1], KEYS[2], KEYS[3], KEYS[4], ARGV[1]
local FENCE_MS, LEASE_MAX, DEAD_MAX = 86400000, 120000, 1000

local clock
-- Returns the server's time in microseconds, read once per script.
local function us()
  if not clock then
    local time = redis.call('TIME')
    clock = tonumber(time[1]) * 1000000 + tonumber(time[2])
  end
  return clock
end

-- The same in milliseconds.
local function now() return math.floor(us() / 1000) end

-- tostring() would write large numbers with an exponent.
local function digits(n) return string.format('%.0f', n) end

local function lengthen(key, ms)
  if redis.call('PTTL', key) < ms then redis.call('PEXPIRE', key, digits(ms)) end
end

-- Returns a waiter whose lease is running. A deadline beyond any lease was written before the clock was set back. A
-- record of another version counts until its lease ends; how to wake its waiter is unknown.
local function waiter(t)
  local record = redis.call('HGET', W, t) or ''
  local version, lease, grace, node, channel = string.match(record, '^(%d+)|(%d+)|(%d+)@?(%x*)|?(%C*)')
  lease = tonumber(lease)
  if not lease or lease < now() or lease > now() + LEASE_MAX then return nil end
  if version ~= '1' then channel = '' end
  return { lease = lease, grace = math.max(1, tonumber(grace)), node = node, channel = channel, record = record }
end

-- Returns how many clients received the message; false if the server does not permit it.
local function publish(channel, word)
  local n = redis.pcall('PUBLISH', channel, word)
  return type(n) == 'number' and n
end

-- Returns how many clients subscribe to the channel itself: PUBLISH also counts clients that listen to all channels,
-- and those are no waiters. nil if the server does not say.
local function listeners(channel)
  local n = redis.pcall('PUBSUB', 'NUMSUB', channel)
  return type(n) == 'table' and n.err == nil and tonumber(n[2]) or nil
end

-- Returns the id of the cluster's node that runs this; '' if the server does not say.
local function this_node()
  local id = redis.pcall('CLUSTER', 'MYID')
  return type(id) == 'string' and id or ''
end

-- Returns whether a waiter subscribed at another node: its slot has moved since, or a replica was promoted. NUMSUB does
-- not count it here, though it is alive; PUBLISH reaches it, because the nodes of a cluster forward messages.
local function elsewhere(w) return w.node ~= '' and w.node ~= this_node() end

-- Returns the first live waiter, after sending it `word` if one is given; drops the dead ones before it. The caller is
-- alive: it is asking. nil: nobody waits. false: too many dead for one script. `heads` are the first two of the queue,
-- if they are known.
local dead = 0
local function front(word, heads)
  local dropped = false
  while true do
    heads = heads or redis.call('ZRANGE', Q, 0, 1)
    local h, second = heads[1], heads[2]
    heads = nil
    if not h or h == token then return h, nil, dropped end
    local w = waiter(h)
    if w then
      w.is_last = not second
      if w.channel == '' then return h, w, dropped end
      local heard = listeners(w.channel)
      local away = heard == 0 and elsewhere(w)
      local told = word and (heard ~= 0 or away) and publish(w.channel, word)
      w.untold = word and not told
      -- A failed request must not cost a waiter its place.
      if away or (heard or told or 1) > 0 then return h, w, dropped end
    end
    if dead < DEAD_MAX then
      redis.call('ZREM', Q, h)
      redis.call('HDEL', W, h)
      dead, dropped = dead + 1, true
    end
    if dead == DEAD_MAX then return false, nil, dropped end
  end
end

-- A fence key of another type must not prevent a release.
local function last_fence()
  local fence = fence_in(redis.pcall('GET', F))
  return fence and digits(fence)
end

local function bump(ms)
  local fence = digits(math.max((fence_in(redis.pcall('GET', F)) or 0) + 1, us()))
  redis.call('SET', F, fence, 'PX', digits(ms))
  return fence
end

-- Reserves the lock for `h`, until it claims the lock or its grace is over: nobody can get in between, and the next
-- waiter has an expiry to watch. ZREM comes first: on a full server no SET may be the first write.
local function reserve(h, w)
  local grace = w.grace
  -- Without the message it notices at its next heartbeat, which comes before its lease ends.
  if w.untold then grace = math.max(grace, w.lease - now()) end
  redis.call('ZREM', Q, h)
  -- HDEL after HSET: a hash emptied in between would lose its TTL.
  redis.call('HSET', W, 'reserved', h)
  redis.call('HDEL', W, h)
  bump(FENCE_MS)
  redis.call('SET', K, h, 'PX', digits(grace))
  -- The reservation is done: the server may refuse access to a queue that is empty now, if its slot is moving to
  -- another server.
  if not w.is_last then pcall(front, 'e' .. digits(now() + grace)) end
end
