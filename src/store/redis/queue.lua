-- The queue of one lock: who is first in line and alive, and how the lock is put into its hands.
-- Stands before acquire.lua, release.lua, nudge.lua and inspect.lua, and does nothing by itself.
--
-- KEYS lock, queue, waiters, fence     ARGV[1] token
--   lock     string  the holder's token; nothing else decides who holds
--   queue    zset    token -> ticket, a waiter's place in the order
--   waiters  hash    token -> 1|lease deadline ms|grace ms|channel     (server clock; '' = it polls)
--                    in a cluster `@` and the id of the node at which it subscribed come after the grace
--                    and on a new line who it is, where a token is a bare number (setnx.lua)
--                    reserved -> token the lock was last put aside for; true only while lock == it
--   fence    string  fence of the last change of owner, in decimal digits
-- Words on a channel: g "it is yours, claim it", n "look again", t "do you hear me" (ignore it).
--
-- Keeps: a token leaves the queue together with its record. The dead are dropped where they stand in
-- the way, so work does not grow with the queue. A reserved waiter leaves both at once: the one field
-- `reserved`, overwritten by the next, is all that a reservation never claimed can leave behind.
-- Fences rise with every change of owner, whatever was lost before: TIME is their floor.

local K, Q, W, F, token = KEYS[1], KEYS[2], KEYS[3], KEYS[4], ARGV[1]
local time = redis.call('TIME')
local us = tonumber(time[1]) * 1000000 + tonumber(time[2])
local now = math.floor(us / 1000)
local FENCE_MS, LEASE_MAX = 86400000, 120000

-- tostring() would write large numbers with an exponent.
local function digits(n) return string.format('%.0f', n) end

local function lengthen(key, ms)
  if redis.call('PTTL', key) < ms then redis.call('PEXPIRE', key, digits(ms)) end
end

-- A waiter whose lease runs. A deadline beyond any lease was written before the clock was set back.
-- A record of another version is good for its lease; how to reach its waiter we can't know.
local function waiter(t)
  local record = redis.call('HGET', W, t) or ''
  local version, lease, grace, node, channel = string.match(record, '^(%d+)|(%d+)|(%d+)@?(%x*)|?(%C*)')
  lease = tonumber(lease)
  if not lease or lease < now or lease > now + LEASE_MAX then return nil end
  if version ~= '1' then channel = '' end
  return { lease = lease, grace = math.max(1, tonumber(grace)), node = node, channel = channel, record = record }
end

-- How many heard it; false where the server does not let us say it.
local function publish(channel, word)
  local n = redis.pcall('PUBLISH', channel, word)
  return type(n) == 'number' and n
end

-- How many subscribe to the channel itself: PUBLISH counts those too who listen to all channels, and
-- they stand in for nobody. nil where the server does not say.
local function listeners(channel)
  local n = redis.pcall('PUBSUB', 'NUMSUB', channel)
  return type(n) == 'table' and n.err == nil and tonumber(n[2]) or nil
end

-- The id of the cluster's node that runs this; '' where it does not say.
local function this_node()
  local id = redis.pcall('CLUSTER', 'MYID')
  return type(id) == 'string' and id or ''
end

-- Whether a waiter subscribed at another node: its slot has moved since, or a replica was promoted. NUMSUB does
-- not count it here, though it lives; PUBLISH reaches it, because the nodes of a cluster pass messages on.
local function elsewhere(w) return w.node ~= '' and w.node ~= this_node() end

-- The first in line that lives, told `word` if one is given; the dead before it are dropped.
-- The caller lives: it is asking. nil: nobody waits. false: too many dead for one script.
local function front(word)
  local dropped = false
  for _ = 1, 1000 do
    local h = redis.call('ZRANGE', Q, 0, 0)[1]
    if not h or h == token then return h, nil, dropped end
    local w = waiter(h)
    if w then
      if w.channel == '' then return h, w, dropped end
      local heard = listeners(w.channel)
      local away = heard == 0 and elsewhere(w)
      local told = word and (heard ~= 0 or away) and publish(w.channel, word)
      w.untold = word and not told
      -- Not knowing must not cost a waiter its place.
      if away or (heard or told or 1) > 0 then return h, w, dropped end
    end
    redis.call('ZREM', Q, h)
    redis.call('HDEL', W, h)
    dropped = true
  end
  return false, nil, dropped
end

-- Whatever else may stand in the fence's place must not keep a lock from being given back.
local function last_fence()
  local fence = redis.pcall('GET', F)
  return type(fence) == 'string' and fence
end

local function bump(ms)
  local fence = digits(math.max((tonumber(last_fence() or 0) or 0) + 1, us))
  redis.call('SET', F, fence, 'PX', digits(ms))
  return fence
end

-- The lock for `h`, until it claims it or its grace is over: nobody can get between, and whoever is
-- next then has an expiry to watch. ZREM comes first: with a full server no SET may be the first write.
local function reserve(h, w)
  local grace = w.grace
  -- It will see it no sooner than at its next heartbeat, which comes before its lease ends.
  if w.untold then grace = math.max(grace, w.lease - now) end
  redis.call('ZREM', Q, h)
  -- HDEL second: a hash emptied in between would lose its TTL.
  redis.call('HSET', W, 'reserved', h)
  redis.call('HDEL', W, h)
  bump(FENCE_MS)
  redis.call('SET', K, h, 'PX', digits(grace))
  -- It is done: a queue that is empty now may be refused to us, if its slot is on its way to another server.
  pcall(front, 'n')
end
