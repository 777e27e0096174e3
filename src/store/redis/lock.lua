-- The rules of a lock, for Redis: the translation of src/lock/machine.rs, in the same order and with the same names.
--
-- KEYS lock     string  the token of an exclusive holder, 'nx1:shared:' and a generation while it is shared
--      fence    string  the fence of the last grant
--      shares   zset    token -> end of its lease in ms
--      terms    hash    token -> slot|fence|us of the grant|r    slot '-' = none, r = reserved, not claimed yet
--                       all -> map|limits    which slots are taken, '1' or '0' each; limit:count of those that have one
--                       asked:ID -> who asks the share known as ID to give up
--      queue    zset    token -> ticket of a waiter; AHEAD less for one that waits ahead of the others (--first)
--      waiters  hash    token -> 1|end of its lease in ms|grace|channel    its entry; channel '' = it polls
--                       in a cluster, `@` and the id of the node at which it subscribed follow the grace; if the
--                       token is a bare number, a line with its identity follows the channel
--                       reserved -> the token for which the lock was last reserved; counts while lock == it
--                       asked -> ID of a holder and, after a space, who asks it to give up; counts while ID holds alone
--                       broken -> until when, in ms|ID|who: of the holder whose claim was broken last, and by whom
--                       owner -> end in ms|number|identity of the last holder beside SETNX clients; end 0 until it has
--                       claimed its reservation. A number says nothing: its identity is a token that says who has it
--      newest   hash    newest, dismissed -> ticket|token; and of those dismissed that have not left: token -> by whom
--      runs     hash    see "Records of runs"
--      newest only if the token supersedes, and runs, the last, if the run is recorded. RENEW may go without the queue
--      and the waiters: then it wakes nobody. RAISE has the first two, and RECORD may have the runs alone. Without keys, the
--      script does nothing: it is loaded.
-- ARGV operation, field, value, field, value ...
--      acquire  token, ttl, mode (once, queue, plain), lease, grace, channel, ticket, last, cluster, enclosing; margin
--               and identity beside SETNX clients; who, kept, most, waited, unless of a run
--      release  token, tell, by, keeps; who, kept, most, waited, granted, fence, how of a run
--      record   the same, and releases nothing
--      renew    token, ttl, how (set; prolong: never nearer than it is), identity     ask  id, by, back
--      raise    token, fence, ttl          inspect  id, most; who and runs, to see so many          history  who
-- RETURNS field, value, field, value ...: `verdict` and what belongs to it; all are strings, but queue and shares
--
-- Words on a waiter's channel: g "yours, claim it", n "ask again", e and a time in ms "ask again soon, and no later than
-- then: the lock that you wait for may end", s "superseded", t "a test, ignore it"
-- On the channel of all waiters, which is the key and ':wake': l "the queue was lost, ask again, the first of you first"
-- On a holder's, which is the key, ':holder:' and its ID: a "somebody asks you to give up", b "somebody has released it".
-- Either is also found by its next renewal.
--
-- Work: at most DEAD dead waiters are dropped in one call, and BATCH holders enter or end. Nothing else grows with the
-- waiters or the holders, but the map of slots, one byte each, which is copied, and what inspect and history return.
--
-- Keeps: nothing but the lock's key, and while it says so the shares, decides who holds. A full server refuses a script
-- whose first write needs memory: so a newcomer's does, and nobody else's. A replica never answers for its master: each
-- call writes, but inspect and history. A call by any client repairs a lost wake-up.

local K, F, H, T, Q, W = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
if not K then return 'loaded' end
local operation, arg = ARGV[1], {}
for i = 2, #ARGV, 2 do arg[ARGV[i]] = ARGV[i + 1] end
local token, ttl = arg.token or '', tonumber(arg.ttl)
-- What the token says behind its reason; beside SETNX clients, its identity.
local says = string.match((arg.identity or token) .. ':', '^nx1:[^:]*:[^:]*:[^:]*:[^:]*:[^:]*(:.*)$') or ''
local N = string.find(says, ':newest:', 1, true) and KEYS[7]
local R = arg.who and KEYS[#KEYS]

local SHARED, AHEAD, FENCE_MAX = 'nx1:shared:', 2 ^ 52, 2 ^ 53 - 1
local DAY, LEASE_MAX, KEPT = 86400000, 120000, 10000
-- A waiter with a longer lease is far back, and proves its life seldom: not within two seconds.
local NEAR = 6000
-- At most so many holders change in one call, and so many dead waiters are dropped.
local BATCH, DEAD = 32, 1000
-- Waiters that are killed after their dismissal never leave: so many are noted each.
local NOTED = 16
-- How long it is noted who broke a lock, at most: its holder renews it sooner.
local NOTED_FOR = 30000

-- What the lock holds. A table, not variables: a function costs time for each variable that it uses.
local lock = { value = false, count = 0, least = 0, dead = 0, entries = {} }

local time = redis.call('TIME')
local us = tonumber(time[1]) * 1000000 + tonumber(time[2])
local now = math.floor(us / 1000)
local function digits(n) return string.format('%.0f', n) end
local function lengthen(key, ms)
  if redis.call('PTTL', key) < ms then redis.call('PEXPIRE', key, digits(ms)) end
end

-- How many may hold the lock while the token does, itself included; 0 is any number.
local function limit_of(t)
  return tonumber(string.match(t .. ':', '^nx1:[^:]*:[^:]*:[^:]*:[^:]*:[^:]*:(%d+):') or 1)
end

-- Notes the error of a companion key. A holder goes on without a queue of another type, and serves nobody, and without the
-- terms; those who want the lock alone find it held, if they do not ask who shares it.
local function sound(reply, key)
  if type(reply) ~= 'table' or not reply.err then return reply end
  local keeps = operation == 'release' or operation == 'renew' or operation == 'record'
  if not string.find(reply.err, 'WRONGTYPE', 1, true) then
    lock.failed = reply
  elseif key == H or key == T then
    lock.odd = key
    local is_needed = key == H and arg.enclosing or limit_of(token) ~= 1 and not (keeps and key == T)
    if operation == 'inspect' or is_needed then lock.failed = true end
  elseif keeps then
    lock.line = { is_all = true }
  else
    lock.failed = true
  end
  if lock.failed == true then lock.failed = redis.error_reply('DAMAGED ' .. key .. ' is a key of another type') end
end

-- The ID by which people know a holder.
local function id_of(t) return string.sub(string.match(t, '^nx1:(.*)$') or t, 1, 8) end

-- Adds to an answer who has broken the caller's claim, if somebody has, once.
local function with_breaker(answer)
  local till, of, by = string.match(lock.broken or '', '^(%d+)|([^|]*)|(.*)$')
  if of == id_of(token) and tonumber(till) >= now then
    redis.pcall('HDEL', W, 'broken')
    answer[#answer + 1] = 'broken_by'
    answer[#answer + 1] = by
  end
  return answer
end

---- The fence

-- A spoilt fence counts as none: the clock is higher than those before it.
local function last_fence()
  local fence = redis.pcall('GET', F)
  local n = type(fence) == 'string' and string.find(fence, '^%d+$') and tonumber(fence)
  return n and n < FENCE_MAX and n or 0
end

local function bump(ms)
  local fence = digits(math.max(last_fence() + 1, us))
  redis.call('SET', F, fence, 'PX', digits(math.max(DAY, 10 * ms, lock.count > 0 and redis.call('PTTL', F) or 0)))
  return fence
end

---- The shares

local function set_least()
  lock.least = 0
  for n in pairs(lock.limits) do
    if lock.least == 0 or n < lock.least then lock.least = n end
  end
end

local function drop(t)
  local terms = redis.pcall('HGET', T, t)
  local slot = type(terms) == 'string' and tonumber(string.match(terms, '^(%d+)|'))
  redis.call('ZREM', H, t)
  redis.pcall('HDEL', T, t, 'asked:' .. id_of(t))
  lock.count, lock.changed = lock.count - 1, true
  if lock.count == 0 then lock.least = 0 end
  if not lock.whole then return end
  lock.rewrite = true
  if slot then lock.map = string.sub(lock.map, 1, slot) .. '0' .. string.sub(lock.map, slot + 2) end
  local n = limit_of(t)
  if n > 0 then
    local many = lock.limits[n] or 1
    lock.limits[n] = many > 1 and many - 1 or nil
    if many == 1 then set_least() end
  end
end

-- Deletes what is left of a generation, and no key of another type.
local function clear() redis.call('DEL', lock.odd == H and T or H, lock.odd == T and H or T) end

-- Returns the end of a share that the token has, or true if it has the lock alone.
local function holds(t)
  if lock.value == t then return true end
  local ends = lock.generation and redis.pcall('ZSCORE', H, t)
  return type(ends) == 'string' and tonumber(ends) > now and tonumber(ends)
end

local function fits(n)
  local most = lock.least > 0 and (n == 0 or lock.least < n) and lock.least or n
  return most == 0 or lock.count < most
end

-- Returns whether a token may enter, as far as the types of the keys go.
local function may_enter(t)
  if lock.count > 0 or limit_of(t) == 1 then return true end
  sound(redis.pcall('ZCARD', H), H)
  sound(redis.pcall('HGET', T, 'all'), T)
  return not lock.odd
end

---- The queue

-- Returns the waiter that an entry describes; nil if its lease has ended. An entry of another version counts until then; how
-- to wake its waiter is unknown. One whose lease is longer than any was written before the clock was set back.
local function waiter(entry)
  local version, lease, grace, node, channel = string.match(entry or '', '^(%d+)|(%d+)|(%d+)@?(%x*)|?(%C*)')
  lease = tonumber(lease)
  if not lease or lease < now or lease > now + LEASE_MAX then return nil end
  channel = version == '1' and channel or ''
  return { lease = lease, grace = math.max(1, tonumber(grace)), node = node, channel = channel, entry = entry }
end

-- Returns how many listen to the channel itself: PUBLISH also counts who listens to all. nil: the server does not say.
local function listeners(channel)
  local n = redis.pcall('PUBSUB', 'NUMSUB', channel)
  return not n.err and tonumber(n[2]) or nil
end

-- Returns whether a waiter subscribed at another node of a cluster: the hash slot has moved since, or a replica was
-- promoted. Its listener is not counted here, but hears: the nodes forward messages.
local function is_away(w)
  if w.node == '' then return false end
  local id = redis.pcall('CLUSTER', 'MYID')
  return w.node ~= (type(id) == 'string' and id or '')
end

-- Returns whether the message went out; nil if nobody was there.
local function tell(channel, word)
  if channel == '' then return false end
  local n = redis.pcall('PUBLISH', channel, word)
  if type(n) ~= 'number' then return false end
  if n > 0 then return true end
end

local function channel_of(id) return K .. ':holder:' .. id end
local function tell_holder(id, word) tell(channel_of(id), word) end

-- The one at this place of the queue, 1 or 2; false if there is none, or if it is not known. Reads three at once: as many
-- as a hand-off looks at.
local function at(place)
  if not lock.line or not lock.line.is_all and #lock.line < place then
    local line = sound(redis.pcall('ZRANGE', Q, 0, 2), Q) or {}
    line.is_all = #line < 3
    lock.line = line
  end
  return lock.line[place] or false
end
local function first() return at(1) end

-- The entry of a waiter; those of the first three have been read.
local function entry_of(t)
  local entry = lock.entries[t]
  if entry == nil then return redis.call('HGET', W, t) end
  return entry
end

local function passes(t)
  first()
  for place, it in ipairs(lock.line) do
    if it == t then
      lock.moved, lock.closer = lock.moved or place == 1, lock.closer or place == 2
      table.remove(lock.line, place)
      return
    end
  end
end

-- Returns whether the caller, which holds the lock, may be in the queue. Whoever comes in leaves it, and does not join while
-- it holds the lock; but a share may have seemed to be over, if the clock was set back since. One that came in key by key,
-- while its hash slot was moving, may have left a place without an entry: nobody's, for others and for its release.
local function is_queued() return lock.entry or lock.generation and first() end

local function dequeue(t)
  passes(t)
  redis.call('ZREM', Q, t)
  redis.call('HDEL', W, t)
end

-- Returns the first live waiter, after dropping the dead before it; false if nobody waits, nil if too many are dead. The
-- caller lives: it is asking. One that releases has left.
local function front()
  while lock.dead < DEAD do
    local t = first()
    if not t or t == token and operation ~= 'release' then return t end
    if t == lock.live then return t, lock.its end
    local w = waiter(entry_of(t))
    if w and w.channel ~= '' and listeners(w.channel) == 0 then
      w.away = is_away(w)
      if not w.away then w = nil end
    end
    if w then
      lock.live, lock.its = t, w
      return t, w
    end
    dequeue(t)
    lock.dead = lock.dead + 1
  end
end

---- Enter, serve, settle

local function enter(t, ms, is_reserved)
  local n, fence, slot = limit_of(t), lock.generation, '-'
  if n ~= 0 or lock.count == 0 then
    fence = bump(ms)
  else
    lengthen(F, math.max(DAY, 10 * ms))
  end
  if n == 1 then
    redis.call('SET', K, t, 'PX', digits(ms))
    if lock.generation then clear() end
    lock.ms = ms
    if is_reserved then redis.call('HSET', W, 'reserved', t) end
    if lock.asked or lock.reserved and not is_reserved then
      redis.call('HDEL', W, 'asked', is_reserved and '' or 'reserved')
      lock.asked = nil
    end
    lock.value, lock.generation, lock.count, lock.least, slot = t, nil, 1, 1, '0'
  else
    if lock.count == 0 then
      lock.value, lock.generation = SHARED .. fence, fence
      lock.whole, lock.least, lock.map, lock.limits = true, 0, '', {}
      redis.call('SET', K, lock.value, 'PX', digits(ms))
      clear()
      if lock.reserved or lock.asked then redis.call('HDEL', W, 'reserved', 'asked') end
      lock.asked = nil
    end
    if n > 0 then
      slot = (string.find(lock.map, '0', 1, true) or #lock.map + 1) - 1
      lock.map = string.sub(lock.map, 1, slot) .. '1' .. string.sub(lock.map, slot + 2)
      lock.limits[n] = (lock.limits[n] or 0) + 1
      if lock.least == 0 or n < lock.least then lock.least = n end
    end
    redis.call('ZADD', H, digits(now + ms), t)
    redis.call('HSET', T, t, table.concat({ slot, fence, digits(us), is_reserved and 'r' or '' }, '|'))
    lock.count, lock.changed, lock.rewrite = lock.count + 1, true, true
  end
  if t == token then lock.fence, lock.slot, lock.is_new = fence, tostring(slot), true end
end

-- Lets the first live waiters in as long as they fit.
local function serve()
  for i = 1, BATCH do
    if not first() or (i > 1 and not fits(0)) then break end
    local t, w = front()
    if not t or not fits(limit_of(t)) then break end
    if not may_enter(t) then
      lock.failed, lock.line = nil, { is_all = true }
      break
    end
    if t == token then
      dequeue(t)
      enter(t, ttl, false)
    else
      -- Writes first: a server that does not take it has told nobody.
      redis.call('ZREM', Q, t)
      local told = w.channel ~= '' and tell(w.channel, 'g')
      if told == nil and not w.away then redis.call('HDEL', W, t) else
        -- Without the message it notices at its next heartbeat, which comes before its lease ends.
        local hears = told ~= false or w.channel == ''
        enter(t, hears and w.grace or math.max(w.grace, w.lease - now), true)
        -- Says whose a bare number is; its lease does not count before it is claimed.
        local owner = string.match(w.entry, '\n(.*)')
        if owner then
          lock.owner = '0|' .. t .. '|' .. owner
          redis.call('HSET', W, 'owner', lock.owner)
        end
        -- After HSET: a hash emptied in between would lose its expiry.
        redis.call('HDEL', W, t)
      end
      passes(t)
    end
  end
end

-- Tells the first, if it is another one or waits for something else now, to ask again: at once, or soon, and no later than
-- the lock that it waits for may end. Tells the second that it is near.
local function wake()
  local t, w = front()
  if not t then return end
  if w and lock.moved then
    local ms = not lock.generation and lock.value and (lock.ms or redis.call('PTTL', K)) or -1
    tell(w.channel, ms >= 0 and 'e' .. digits(now + ms) or 'n')
  end
  local second = at(2)
  w = second and second ~= token and waiter(entry_of(second))
  if w and w.lease - now > NEAR then tell(w.channel, 'n') end
end

-- Writes what has changed for all, and tells the first if it has for it. Every operation ends with it: reading may have
-- dropped a share.
local function settle()
  if lock.count == 0 then
    if lock.value then redis.call('DEL', K) end
    if lock.generation then clear() end
    lock.value, lock.generation = false, nil
  elseif lock.generation and lock.changed then
    if lock.whole and lock.rewrite then
      local last, limits = #lock.map, {}
      while last > 0 and string.byte(lock.map, last) == 48 do last = last - 1 end
      for n, many in pairs(lock.limits) do limits[#limits + 1] = digits(n) .. ':' .. digits(many) end
      table.sort(limits)
      redis.call('HSET', T, 'all', string.sub(lock.map, 1, last) .. '|' .. table.concat(limits, ','))
    end
    -- The lock's key lives as long as the longest share, and its companions a little longer.
    local ends = tonumber(redis.call('ZRANGE', H, -1, -1, 'WITHSCORES')[2]) - now
    redis.call('PEXPIRE', K, digits(ends))
    local left = redis.call('PTTL', H)
    if left < ends + 1000 or left > ends + 2 * KEPT then
      redis.call('PEXPIRE', H, digits(ends + KEPT))
      redis.pcall('PEXPIRE', T, digits(ends + KEPT))
    end
  end
  -- What counts is done: the server may refuse access to a queue that is empty now, while the lock's hash slot is moving.
  if (lock.moved or lock.closer) and Q and first() then pcall(wake) end
  lock.changed, lock.moved, lock.closer = false, false, false
end

---- Answers

local function seen(verdict, ...)
  -- The key of a shared lock may still be there when the last share has ended.
  local is_held = lock.value and (lock.count > 0 or operation == 'inspect')
  lock.pttl = is_held and (lock.overwritten and lock.ends - now or redis.call('PTTL', K)) or -2
  local answer = { 'verdict', verdict, 'value', is_held and lock.value or '', 'pttl', digits(lock.pttl),
    'fence', digits(last_fence()), 'count', digits(lock.count), 'least', digits(lock.least), 'now', digits(us), ... }
  -- Says who holds it, if its value is a bare number.
  local number, identity = string.match(lock.owner or '', '^%d+|(%d+)|(.*)$')
  if number and number == lock.value then
    answer[#answer + 1] = 'owner'
    answer[#answer + 1] = identity
  end
  return answer
end

-- Whether to repeat the request at once: there may be more dead waiters, or shares that have ended, than one call drops, and
-- nobody else may know that the lock is free.
local function again() return (lock.again or lock.dead >= DEAD) and '1' or '0' end

-- Beside SETNX clients: notes until when our lease counts, whatever they write over it.
local function own(ms)
  if not arg.identity then return end
  local identity = string.match(lock.owner or '', '^%d+|' .. token .. '|(.*)$') or arg.identity
  redis.call('HSET', W, 'owner', digits(now + ms) .. '|' .. token .. '|' .. identity)
  lengthen(W, ms)
end

---- Read: what the lock holds now

local reads = operation == 'inspect' or operation == 'history'
if F and not reads and operation ~= 'raise' then
  lock.value = redis.pcall('GET', K)
  if type(lock.value) == 'table' then
    if operation ~= 'release' and operation ~= 'record' then return lock.value end
    -- A key of another type is nobody's lock: the caller leaves all the same, and its run has lost the lock.
    lock.foreign, lock.value, lock.count, lock.least = lock.value, false, 1, 1
  end
  if operation ~= 'renew' then first() end
  if W then
    local line = lock.line or {}
    local found = redis.pcall('HMGET', W, 'reserved', 'asked', 'owner', token, 'broken', unpack(line))
    found = sound(found, W) or {}
    lock.reserved, lock.asked, lock.owner, lock.entry, lock.broken = found[1], found[2], found[3], found[4], found[5]
    for place, t in ipairs(line) do lock.entries[t] = found[5 + place] end
  end
  if lock.value and string.sub(lock.value, 1, #SHARED) == SHARED then
    lock.generation, lock.limits, lock.map = string.sub(lock.value, #SHARED + 1), {}, ''
    lock.count, lock.least = sound(redis.pcall('ZCARD', H), H) or 0, 1
    local all = sound(redis.pcall('HGET', T, 'all'), T)
    local map, limits = string.match(all or '', '^([01]*)|(.*)$')
    -- If shares or terms are lost, nobody comes in before the lock's key expires.
    if lock.count == 0 then lock.count = 1 else
      if map then
        lock.whole, lock.map = true, map
        for n, many in string.gmatch(limits, '(%d+):(%d+)') do lock.limits[tonumber(n)] = tonumber(many) end
        set_least()
      end
      local ended = redis.call('ZRANGE', H, '-inf', digits(now), 'BYSCORE', 'LIMIT', 0, BATCH)
      for _, t in ipairs(ended) do drop(t) end
      lock.again = #ended == BATCH
    end
  elseif lock.value then
    lock.count, lock.least = 1, 1
    -- The lock of an old SETNX client: a key without expiry, 10 digits of seconds or 13 of ms. Of two that race, the
    -- one that loses overwrites the winner's value: while our lease runs, that counts.
    local whole = arg.identity and string.match(lock.value, '^([1-9]%d+)%.?%d*$')
    local scale = whole and ({ [10] = 1000, [13] = 1 })[#whole]
    if scale and redis.call('PTTL', K) == -1 then
      local ends, number = string.match(lock.owner or '', '^(%d+)|(%d+)|')
      lock.ends = tonumber(ends)
      if number and lock.ends > now then
        if number == token then lock.value, lock.overwritten = token, true end
      elseif arg.margin and tonumber(lock.value) * scale + tonumber(arg.margin) < now then
        lock.stale, lock.value, lock.count, lock.least = lock.value, false, 0, 0
      end
    end
  end
  if lock.failed then return lock.failed end
end

---- Superseding: the newest wins
--
-- A waiter of this kind has its ticket from its first call, which does not join the queue: a request to join that was
-- given up, and arrives late, is older than all that have joined meanwhile. A ticket is newer than both marks: `newest` is
-- that of the last to join or to enter, until it leaves; with `dismissed`, and with all before it, no ticket waits or
-- enters any more. Those that were dismissed are noted by their tokens until they leave: when the last has, `dismissed`
-- goes. One that has a reservation is noted, and dismisses those before it only when it claims that.

local ticket_of_newest, newest, ticket_of_dismissed, dismissed_by, noted, more
if N then
  local found = redis.pcall('HMGET', N, 'newest', 'dismissed', token, 'more')
  if found.err and operation == 'release' then N = nil else sound(found, N) end
  if lock.failed then return lock.failed end
  ticket_of_newest, newest = string.match(found[1] or '', '^(%d+)|(.*)$')
  ticket_of_dismissed, dismissed_by = string.match(found[2] or '', '^(%d+)|(.*)$')
  noted, more = found[3], found[4]
end

local supersede, claim
if N and operation == 'acquire' then
  -- Comes after all else that a caller writes: a refusal must not dismiss anybody for one that is not there.
  function supersede(ticket)
    if newest == token then return redis.call('PEXPIRE', N, digits(DAY)) end
    local w
    if newest and redis.call('ZRANK', Q, newest) then
      w = waiter(redis.call('HGET', W, newest))
      dequeue(newest)
    end
    -- Refused here, if at all.
    redis.call('PEXPIRE', N, digits(DAY))
    redis.call('HSET', N, 'newest', digits(ticket) .. '|' .. token)
    if newest then
      local terms = lock.generation and redis.pcall('HGET', T, newest)
      local is_reserved = lock.value == newest and lock.reserved == newest
        or type(terms) == 'string' and string.sub(terms, -1) == 'r' and holds(newest)
      if not is_reserved and tonumber(ticket_of_newest) > (tonumber(ticket_of_dismissed) or 0) then
        redis.call('HSET', N, 'dismissed', ticket_of_newest .. '|' .. token)
      end
      local marks = ((ticket_of_dismissed or not is_reserved) and 2 or 1) + (more and 1 or 0)
      if redis.call('HLEN', N) - marks < NOTED then
        redis.call('HSET', N, newest, token)
      else
        redis.call('HSET', N, 'more', '')
      end
    end
    redis.call('PEXPIRE', N, digits(DAY))
    if w then tell(w.channel, 's') end
  end

  -- The caller has claimed its reservation. A full server may refuse the note.
  function claim(ticket)
    if ticket == 0 or newest == token then return end
    if not newest then
      redis.pcall('HSET', N, 'newest', digits(ticket) .. '|' .. token)
    elseif ticket > (tonumber(ticket_of_dismissed) or 0) then
      redis.pcall('HSET', N, 'dismissed', digits(ticket) .. '|' .. token)
    end
    redis.pcall('PEXPIRE', N, digits(DAY))
  end
end

---- Records of runs
--
-- run:WHO  granted_us|waited_ms|fence    a run that has not ended; it has vanished if WHO does not hold the lock
-- line:N   one line for a run that has ended; the last to end has the highest number:
--          granted_us|waited_ms|fence|ended_us|outcome|status|signal|WHO
--          ended_us, status and signal are empty if they are not known
-- of:WHO   the number of its line
-- kept     the lowest number in use, the next one, and how many lines there are: first|next|count
-- done     the line of the run that began last of those that succeeded
-- since    no run noted here was granted the lock before this time, in us
-- WHO is the token with which the lock is held or, beside old SETNX clients, the identity of the holder.
--
-- Work: a line that is added or removed takes a constant number of commands. Runs that have vanished are looked for only
-- if more are noted than there are holders: one command for each note, and 6 for each of at most BATCH.

local parts, begun, numbers, add, note, record
if R and not reads then
  -- Returns the parts of a line: up to the end, the end's time, the outcome, the rest, and WHO.
  function parts(line) return string.match(line, '^(%d*|%d*|%d*|)(%d*)|([%l_]*)|(%d*|%d*)|(.*)$') end

  -- Returns when a run began.
  function begun(line) return tonumber(string.match(line or '', '^(%d+)|')) end

  -- Returns the lowest number in use, the next one, and how many lines there are.
  function numbers()
    local lowest, after, count = string.match(redis.call('HGET', R, 'kept') or '', '^(%d+)|(%d+)|(%d+)$')
    return tonumber(lowest or 1), tonumber(after or 1), tonumber(count or 0)
  end

  -- Adds the lines of runs that have ended, each with its WHO, and keeps the last ones. The line of a run that has one
  -- already moves behind the others.
  function add(ended)
    local lowest, after, count = numbers()
    for _, run in ipairs(ended) do
      local line, who = run[1], run[2]
      local before = redis.call('HGET', R, 'of:' .. who)
      redis.call('HSET', R, 'line:' .. digits(after), line, 'of:' .. who, digits(after))
      if before then redis.call('HDEL', R, 'line:' .. before) else count = count + 1 end
      after = after + 1
    end
    while count > tonumber(arg.most) and lowest < after do
      local line = redis.call('HGET', R, 'line:' .. digits(lowest))
      if line then
        local _, _, _, _, who = parts(line)
        redis.call('HDEL', R, 'line:' .. digits(lowest), 'of:' .. (who or ''))
        count = count - 1
      end
      lowest = lowest + 1
    end
    redis.call('HSET', R, 'kept', table.concat({ digits(lowest), digits(after), digits(count) }, '|'))
  end

  -- Notes that the caller's run begins, and moves runs that have vanished to those that have ended, if the server permits
  -- the caller to see them. The notes stay until the lines are written: a node that is handing over the hash slot creates no
  -- keys any more.
  function note()
    local fields = redis.pcall('HLEN', R)
    if type(fields) == 'number' then
      local _, _, count = numbers()
      fields = fields - 2 * count
      for _, other in ipairs({ 'kept', 'done', 'since' }) do
        if redis.call('HGET', R, other) then fields = fields - 1 end
      end
      -- An earlier grant to the same token.
      if lock.run then fields = fields - 1 end
    end
    if type(fields) == 'number' and fields >= lock.count then
      local all, notes, lines, gone = redis.pcall('HGETALL', R), {}, {}, {}
      for i = 1, #all, 2 do
        local who = string.match(all[i], '^run:(.*)$')
        if who and who ~= arg.who and not holds(who) then notes[#notes + 1] = { begun(all[i + 1]) or 0, who, all[i + 1] } end
      end
      table.sort(notes, function(a, b) return a[1] < b[1] end)
      for i = 1, math.min(#notes, BATCH) do
        local who = notes[i][2]
        -- If it has ended, it has asked once more since.
        if not redis.call('HGET', R, 'of:' .. who) then
          lines[#lines + 1] = { notes[i][3] .. '||vanished|||' .. who, who }
        end
        gone[i] = 'run:' .. who
      end
      if gone[1] then
        add(lines)
        redis.call('HDEL', R, unpack(gone))
      end
    end
    local since = math.min(us, tonumber(redis.call('HGET', R, 'since') or us))
    redis.call('HSET', R, 'run:' .. arg.who, digits(us) .. '|' .. (arg.waited or '') .. '|' .. lock.fence,
      'since', digits(since))
    lengthen(R, tonumber(arg.kept))
    return digits(us)
  end

  -- Records how the run ended. It has one record, the first, unless it only seemed to have vanished by then: a request
  -- that is repeated, or arrives late, adds nothing, though the line has been removed since. One in which nothing ran has
  -- none. Returns what the record says.
  function record(is_held)
    local run = 'run:' .. arg.who
    local begin = redis.call('HGET', R, run)
    local number = redis.call('HGET', R, 'of:' .. arg.who)
    local own = number and redis.call('HGET', R, 'line:' .. number)
    -- It was noted here, and such a note goes only with the line, which has been removed since.
    local since = tonumber(redis.call('HGET', R, 'since'))
    local was_listed = not begin and not own and since and (tonumber(arg.granted) or 0) >= since
    local before, _, was = parts(own or '')
    local done = redis.call('HGET', R, 'done') or ''
    local _, _, _, _, whose = parts(done)
    local outcome, rest = string.match(arg.how or '', '^([%l_]*)|(.*)$')
    if not outcome or whose == arg.who or (own and was ~= 'vanished') or was_listed then
      local is_undone = not outcome and was == 'vanished' and whose ~= arg.who
      redis.call('HDEL', R, run, is_undone and 'line:' .. number or '', is_undone and 'of:' .. arg.who or '')
      if is_undone then
        local lowest, after, count = numbers()
        redis.call('HSET', R, 'kept', table.concat({ digits(lowest), digits(after), digits(count - 1) }, '|'))
      end
      return was
    end
    if own then begin = string.sub(before, 1, -2) end
    -- The server may have lost the note.
    local granted = (arg.granted or '') ~= '' and arg.granted or digits(us)
    begin = begin or table.concat({ granted, arg.waited or '', arg.fence or '' }, '|')
    if not is_held then outcome = 'lost' end
    local line = table.concat({ begin, digits(us), outcome, rest, arg.who }, '|')
    -- Removes nothing. The note stays until the line is written, as in `note`.
    redis.call('HDEL', R, '')
    add({ { line, arg.who } })
    redis.call('HDEL', R, run)
    if outcome == 'done' then
      local last = begun(done)
      if not last or last > us or last <= begun(line) then redis.call('HSET', R, 'done', line) end
    end
    lengthen(R, tonumber(arg.kept))
    return outcome
  end
end

---- Acquire

local function granted()
  settle()
  local noted_at = R and (not lock.is_new and begun(lock.run) and digits(begun(lock.run)) or note())
  own(lock.left or ttl)
  local answer = { 'verdict', 'granted', 'fence', lock.fence, 'slot', lock.slot, 'count', digits(lock.count) }
  if noted_at then answer[9], answer[10] = 'noted', noted_at end
  if lock.stale then
    answer[#answer + 1] = 'stale'
    answer[#answer + 1] = lock.stale
  end
  return answer
end

if operation == 'acquire' then
  local n, ends, done = limit_of(token), holds(token), nil
  if R then
    local found = sound(redis.pcall('HMGET', R, 'run:' .. arg.who, 'done', 'of:' .. arg.who), R)
    if lock.failed then return lock.failed end
    lock.run, done = found[1], found[2]
    -- If the run is recorded as ended, the request arrives late, and nobody is there to hold the lock. One that has vanished
    -- may come back.
    local _, _, outcome = parts(found[3] and redis.call('HGET', R, 'line:' .. found[3]) or '')
    if outcome and outcome ~= 'vanished' then
      redis.call('HDEL', R, '')
      settle()
      return seen('waiting', 'place', '0', 'length', digits(redis.call('ZCARD', Q)), 'ticket', arg.ticket or '0', 'heard', '0',
        'again', again(), 'nested', '', 'look_in', '-1')
    end
  end
  -- A share whose slot is lost has to wait for another.
  if ends and ends ~= true and n > 0 and not redis.call('HGET', T, token) then
    drop(token)
    ends = false
  end

  -- Has it been done recently? If the clock was set back since, it counts as just ended, or nothing would run until the
  -- clock has caught up. Whoever has claimed the lock, and whose run is noted, may be running: it repeats its request.
  local is_repeated = lock.run and ends and lock.reserved ~= token
    and (ends == true or string.sub(redis.call('HGET', T, token) or '', -1) ~= 'r')
  if R and arg.unless and not is_repeated and done then
    local at = parts(done) and begun(done)
    if at and at > us then
      local middle, over, rest = string.match(done, '^%d+(|%d*|%d*|)(%d*)(|.*)$')
      at = us - math.max(0, (tonumber(over) or at) - at)
      done = digits(at) .. middle .. digits(us) .. rest
      redis.pcall('HSET', R, 'done', done)
    end
    if at and us - at < tonumber(arg.unless) then
      redis.call('HDEL', R, '')
      settle()
      local others = redis.call('ZCARD', Q) - (redis.call('ZSCORE', Q, token) and 1 or 0)
      return seen('done', 'run', done, 'others', digits(others))
    end
  end

  -- It is the caller's: extends the lease, or claims the reservation. The first write needs no memory.
  if ends then
    local is_claim = lock.reserved == token
    lock.slot = '0'
    if ends == true then
      -- A lease that ends later stays: the request may be late.
      local left = is_claim and 0 or lock.overwritten and lock.ends - now or redis.call('PTTL', K)
      lock.left = math.max(left, ttl)
      if left < ttl or lock.overwritten then
        redis.call('PEXPIRE', K, digits(lock.left))
      else
        -- Writes nothing, but not on a replica.
        redis.call('ZREM', Q, '')
      end
      if lock.overwritten then redis.call('SET', K, token, 'PX', digits(lock.left)) end
      lock.overwritten = false
      if lock.reserved then redis.call('HDEL', W, 'reserved') end
    else
      local mark
      redis.call('PEXPIRE', K, digits(math.max(ttl, redis.call('PTTL', K))))
      lock.slot, lock.fence, mark = string.match(redis.call('HGET', T, token) or '', '^([^|]*)|(%d+)|%d+|(r?)$')
      lock.changed, is_claim = true, mark == 'r'
      redis.call('ZADD', H, digits(is_claim and now + ttl or math.max(now + ttl, ends)), token)
      if mark ~= '' then
        lock.slot, lock.fence = lock.slot or '-', lock.fence or lock.generation
        redis.call('HSET', T, token, table.concat({ lock.slot, lock.fence, digits(us), '' }, '|'))
        if not mark then lengthen(T, redis.call('PTTL', H)) end
      end
    end
    local fence = last_fence()
    if fence == 0 then fence = bump(ttl) else lengthen(F, math.max(DAY, 10 * ttl)) end
    lock.fence = lock.fence or digits(fence)
    if is_queued() then dequeue(token) end
    if N and is_claim then claim(tonumber(arg.ticket) or 0) end
    lock.is_new = is_claim
    if lock.generation then serve() end
    return granted()
  end

  -- A newcomer's ticket is behind those of all others of its kind, and newer than those of all that supersede. The score
  -- of one that goes first is so much less.
  local ahead = string.find(says, ':first:', 1, true) and AHEAD or 0
  local score = lock.entry and redis.call('ZSCORE', Q, token)
  local ticket = score and tonumber(score) + ahead or tonumber(arg.ticket) or 0
  local by = N and noted
  if ticket == 0 and (N or arg.mode == 'queue') then
    local last = first() and (ahead > 0
      and redis.call('ZRANGE', Q, '(0', '-inf', 'BYSCORE', 'REV', 'LIMIT', 0, 1, 'WITHSCORES')
      or redis.call('ZRANGE', Q, -1, -1, 'WITHSCORES'))[2]
    ticket = math.max(us, last and tonumber(last) + ahead + 1 or 0, (tonumber(ticket_of_newest) or 0) + 1,
      (tonumber(ticket_of_dismissed) or 0) + 1)
  elseif N then
    by = by or newest and newest ~= token and tonumber(ticket_of_newest) > ticket and newest
      or dismissed_by and dismissed_by ~= token and tonumber(ticket_of_dismissed) >= ticket and dismissed_by
  end
  if by then
    dequeue(token)
    serve()
    settle()
    return seen('superseded', 'by', by, 'length', digits(redis.call('ZCARD', Q)))
  end
  if not may_enter(token) then return lock.failed end

  -- The queue was lost: the caller was in it once, and is not any more, nor is anybody who was then. One that alone was
  -- dropped finds others. Perhaps only the entries are lost.
  local last = not score and tonumber(arg.last)
  if last then
    local function anybody(from, to) return redis.call('ZRANGE', Q, from, digits(to), 'BYSCORE', 'LIMIT', 0, 1)[1] end
    lock.lost = not lock.entry and redis.call('ZSCORE', Q, token)
      or not anybody('-inf', last - AHEAD) and not anybody('0', last)
  end

  local function is_next()
    return first() == false or ahead > 0 and tonumber(redis.call('ZSCORE', Q, first())) > 0
  end
  -- One that may not queue comes in only if nobody alive waits before it: the dead go first, and the living come in.
  if arg.mode == 'once' and not is_next() and fits(0) then serve() end
  if not lock.fence and fits(n) and (arg.mode == 'plain' or is_next()) then
    enter(token, ttl, false)
    if lock.entry or first() then dequeue(token) end
    if N then supersede(ticket) end
    lock.moved = true
    if lock.generation then serve() end
  elseif arg.mode == 'queue' then
    local lease, channel, w = math.min(tonumber(arg.lease), LEASE_MAX), arg.channel or '', score and waiter(lock.entry)
    -- Proves once that a script may publish to the caller; later, that it listens.
    if channel ~= '' and not (w and w.channel == channel and listeners(channel) ~= 0) then
      if not tell(channel, 't') or listeners(channel) == 0 then channel = '' end
    end
    -- The first write of a newcomer needs memory, and no other.
    if score then redis.call('HDEL', W, '') else
      redis.call('ZADD', Q, digits(ticket - ahead), token)
      -- Any other entry belongs to a queue that was lost.
      if not first() then
        local kept = (lock.owner or lock.broken) and redis.call('PTTL', W) or 0
        redis.call('DEL', W)
        for field, it in pairs({ reserved = lock.reserved, asked = lock.asked, owner = lock.owner, broken = lock.broken }) do
          if it then redis.call('HSET', W, field, it) end
        end
        if kept > 0 then lengthen(W, kept) end
      end
      lock.line = nil
    end
    -- With a grace beyond its ttl, a claim would bring the end nearer.
    local grace = digits(math.min(tonumber(arg.grace), ttl))
    local id = channel ~= '' and arg.cluster and redis.pcall('CLUSTER', 'MYID')
    if type(id) == 'string' then grace = grace .. '@' .. id end
    redis.call('HSET', W, token, table.concat({ '1', digits(now + lease), grace, channel }, '|')
      .. (arg.identity and '\n' .. arg.identity or ''))
    lengthen(Q, 4 * lease)
    lengthen(W, 4 * lease)
    if N then supersede(ticket) end
    serve()
    lock.heard = channel ~= ''
  end
  if lock.lost then tell(K .. ':wake', 'l') end
  if lock.fence then return granted() end

  settle()
  -- Writes nothing, but not on a replica.
  if arg.mode ~= 'queue' then redis.call('ZREM', Q, '') end
  local place = arg.mode == 'queue' and (redis.call('ZRANK', Q, token) or -1) + 1 or 0
  local nested = ''
  for t in string.gmatch(arg.enclosing or '', '%S+') do
    if holds(t) then nested = t end
  end
  local answer = seen('waiting', 'place', digits(place), 'length', digits(redis.call('ZCARD', Q)),
    'ticket', digits(ticket), 'heard', lock.heard and '1' or '0', 'again', again(), 'nested', nested)
  -- When to look again without a message, if near the front: 500 if only a waiter ahead is in the way, who may die.
  local look = fits(n) and 500 or lock.pttl
  if lock.generation and not fits(n) and lock.odd ~= H then
    local ends = redis.call('ZRANGE', H, 0, 0, 'WITHSCORES')[2]
    if ends then look = math.max(0, tonumber(ends) - now) end
  end
  answer[#answer + 1] = 'look_in'
  answer[#answer + 1] = digits(look)
  return answer
end

---- Release, or record alone that a run has ended

if operation == 'release' or operation == 'record' then
  -- While the hash slot is moving, the runs are the only key, and the caller knows what it holds.
  local ends = not F or holds(token)
  -- The grant with this fence stays: another process has it. A later one to the same token is nobody's.
  if arg.keeps and ends then
    local terms = ends ~= true and redis.pcall('HGET', T, token)
    local fence = ends == true and last_fence()
      or tonumber(type(terms) == 'string' and string.match(terms, '|(%d+)|') or lock.generation)
    if fence <= tonumber(arg.keeps) then
      redis.call('ZREM', Q, '')
      settle()
      return seen('not_yours')
    end
  end
  local answer, left = { 'verdict', 'recorded' }, nil
  if operation == 'release' then
    answer = not ends and with_breaker(seen('not_yours'))
    if ends and arg.by then left = ends == true and redis.call('PTTL', K) or ends - now end
    local sole = lock.reserved == token
    if not ends or sole or is_queued() then
      passes(token)
      sound(redis.pcall('ZREM', Q, token), Q)
      sound(redis.pcall('HDEL', W, token, sole and 'reserved' or ''), W)
      if lock.failed then return lock.failed end
    end
    if N then
      if noted or newest == token then redis.call('HDEL', N, token, newest == token and 'newest' or '') end
      if dismissed_by and redis.call('HLEN', N) == 1 then redis.call('DEL', N) end
    end
    if string.match(lock.owner or '', '^%d+|(%d+)|') == token then redis.call('HDEL', W, 'owner') end
    -- The lock's key goes in `settle`, if nobody enters: SET over it is one write, and one that a moving hash slot allows.
    if ends == true then
      lock.count, lock.least = 0, 0
      if lock.asked then redis.call('HDEL', W, 'asked') end
    elseif ends then
      drop(token)
    end
    if ends or fits(0) then serve() end
    settle()
    -- Advisory: it may fail. A holder that does not listen may not be there any more, and the note would be nobody's.
    if left and (left < 0 or left > NOTED_FOR) then left = NOTED_FOR end
    local hears = left and left > 0 and (listeners(channel_of(id_of(token))) or 0) > 0
    local broken = hears and table.concat({ digits(now + left), id_of(token), arg.by }, '|')
    if broken and type(redis.pcall('HSET', W, 'broken', broken)) == 'number' then lengthen(W, left) end
    if ends and arg.tell then tell_holder(id_of(token), 'b') end
    answer = answer or { 'verdict', 'released', 'next', lock.value and not lock.generation and lock.value or '' }
    answer[#answer + 1] = 'again'
    answer[#answer + 1] = again()
  else
    redis.call('HDEL', R, '')
    settle()
  end
  if not R then return lock.foreign or answer end
  -- The lock is released whatever becomes of the record.
  local recorded, said = pcall(record, ends)
  answer[#answer + 1] = recorded and 'outcome' or 'unrecorded'
  answer[#answer + 1] = recorded and (said or '') or type(said) == 'table' and said.err or tostring(said)
  return lock.foreign or answer
end

---- Renew

if operation == 'renew' then
  redis.call('PEXPIRE', F, digits(math.max(DAY, 10 * ttl, redis.call('PTTL', F))))
  local ends, by, answer = holds(token), nil, nil
  local left = ends and (ends ~= true and ends - now or lock.overwritten and lock.ends - now or redis.call('PTTL', K))
  local ms = arg.how == 'prolong' and left and math.max(left, ttl) or ttl
  if not ends then
    if W and string.match(lock.owner or '', '^%d+|(%d+)|') == token then redis.call('HDEL', W, 'owner') end
    answer = with_breaker(seen('not_yours'))
  elseif arg.how == 'prolong' and left > ttl and not lock.overwritten then
    lock.changed = true
    answer = seen('longer', 'left', digits(left))
  else
    if ends == true then
      redis.call('PEXPIRE', K, digits(ms))
      if lock.overwritten then redis.call('SET', K, token, 'PX', digits(ms)) end
      local id, asker = string.match(lock.asked or '', '^(%S+) (.*)$')
      by = id == id_of(token) and asker
    else
      redis.call('ZADD', H, digits(now + ttl), token)
      by = redis.pcall('HGET', T, 'asked:' .. id_of(token))
    end
    if W then own(ms) end
    lock.changed, lock.moved = true, left > ms or left < 0
    answer = { 'verdict', 'kept', 'asked_by', type(by) == 'string' and by or '', 'put_back',
      lock.overwritten and '1' or '0' }
  end
  settle()
  -- A client that tracks the key (CLIENT TRACKING) is told of the first change after it has read it, its own included.
  if ends == true then redis.call('GET', K) end
  return answer
end

---- Ask the holder with an ID to give up; with `back`, takes that back

if operation == 'ask' then
  local key, field, it = W, 'asked', arg.id .. ' ' .. arg.by
  if lock.generation then key, field, it = T, 'asked:' .. arg.id, arg.by end
  local is_held = lock.count > 0 and (lock.generation or id_of(lock.value) == arg.id)
  if is_held and not arg.back then
    redis.call('HSET', key, field, it)
    lengthen(key, key == W and math.min(60000, redis.call('PTTL', K)) + 20000 or redis.call('PTTL', K) + KEPT)
  else
    redis.call('HDEL', key, arg.back and redis.call('HGET', key, field) == it and field or '')
  end
  settle()
  if is_held and not arg.back then tell_holder(arg.id, 'a') end
  return seen(is_held and 'asked' or 'not_yours')
end

---- Raise the fence to at least that of a majority's grant, if the vote for the grant is still valid

if operation == 'raise' then
  if redis.call('GET', K) ~= token then return { 'verdict', 'not_yours' } end
  if last_fence() < tonumber(arg.fence) then
    redis.call('SET', F, arg.fence, 'PX', digits(math.max(DAY, 10 * ttl, redis.call('PTTL', F))))
  end
  return { 'verdict', 'raised' }
end

---- Inspect and history only read: EVALSHA_RO, a replica and read permission suffice

local kind = 'string'
lock.value = redis.pcall('GET', K)
if type(lock.value) == 'table' then
  if not string.find(lock.value.err, 'WRONGTYPE', 1, true) then return lock.value end
  kind, lock.value = redis.call('TYPE', K), false
  kind = kind.ok or kind
elseif not lock.value then
  kind = 'none'
end
if lock.value and string.sub(lock.value, 1, #SHARED) == SHARED then
  lock.generation = string.sub(lock.value, #SHARED + 1)
end
lock.owner = sound(redis.pcall('HGET', W, 'owner'), W)

-- Returns the runs that were recorded: the lines of those that have ended, the last first and at most so many; the notes of
-- the vanished, and of those under way; the last that succeeded, and the last line of one that did not.
local function recorded(most)
  local all = sound(redis.pcall('HGETALL', R), R)
  if lock.generation and all and all[1] then sound(redis.pcall('ZSCORE', H, token), H) end
  if lock.failed then return nil end
  local found, numbers, lines, vanished, running, failed = {}, {}, {}, {}, {}, ''
  for i = 1, #all, 2 do
    found[all[i]] = all[i + 1]
    numbers[#numbers + 1] = tonumber(string.match(all[i], '^line:(%d+)$'))
  end
  local ends, owner = string.match(lock.owner or '', '^(%d+)|%d+|(.*)$')
  for i = 1, #all, 2 do
    local who = string.match(all[i], '^run:(.*)$')
    -- If it has ended, it has asked once more since.
    if who and not found['of:' .. who] then
      -- Beside SETNX clients, the lock's value is a bare number.
      local number = string.match(who, '^nx1:(%d+):')
      local is_held = holds(who) or lock.value and lock.value == number or owner == who and tonumber(ends) > now
      local notes = is_held and running or vanished
      notes[#notes + 1] = all[i + 1]
      notes[#notes + 1] = who
    end
  end
  table.sort(numbers, function(a, b) return a > b end)
  for i, number in ipairs(numbers) do
    local line = found['line:' .. digits(number)] or ''
    if i <= most then lines[i] = line end
    local outcome = string.match(line, '^%d+|%d*|%d*|%d*|([%l_]+)|')
    if failed == '' and outcome and outcome ~= 'done' then failed = line end
  end
  return { 'ended', table.concat(lines, '\n'), 'vanished', vanished, 'running', running, 'succeeded', found.done or '',
    'failed', failed }
end

if operation == 'history' then
  local answer = recorded(math.huge)
  if not answer then return lock.failed end
  for _, part in ipairs({ 'verdict', 'seen', 'now', digits(us) }) do answer[#answer + 1] = part end
  return answer
end

-- Inspect: the first of the queue, without the dead, unless nobody listens here: then this is a replica. At most 500 of the
-- shares, the first to end, and the one with the ID.
local most = tonumber(arg.most or 500)
local live, channels, numbers, heard, queue, shares = {}, {}, {}, false, {}, {}
local heads = most > 0 and sound(redis.pcall('ZRANGE', Q, 0, digits(most - 1), 'WITHSCORES'), Q) or {}
for i = 1, #heads, 2 do
  local text = sound(redis.pcall('HGET', W, heads[i]), W)
  local w = waiter(text)
  if w then live[#live + 1] = { string.match(text, '\n(.*)') or heads[i], tonumber(heads[i + 1]), w } end
  if w and w.channel ~= '' then channels[#channels + 1] = w.channel end
end
for from = 1, #channels, 100 do
  local n = redis.pcall('PUBSUB', 'NUMSUB', unpack(channels, from, math.min(from + 99, #channels)))
  for i = 1, n.err and 0 or #n, 2 do
    numbers[n[i]] = tonumber(n[i + 1])
    heard = heard or numbers[n[i]] > 0
  end
end
for _, it in ipairs(live) do
  local who, ticket, w = it[1], it[2], it[3]
  if not heard or numbers[w.channel] ~= 0 or is_away(w) then
    queue[#queue + 1] = who
    queue[#queue + 1] = digits(ticket + (ticket < 0 and AHEAD or 0))
  end
end
if lock.generation then
  lock.count, lock.limits = sound(redis.pcall('ZCOUNT', H, '(' .. digits(now), '+inf'), H) or 0, {}
  if lock.failed then return lock.failed end
  local function term(field)
    local text = redis.pcall('HGET', T, field)
    return type(text) == 'string' and text or ''
  end
  -- An ID is no score: to find its share takes all of them.
  local held = redis.call('ZRANGE', H, '(' .. digits(now), '+inf', 'BYSCORE', 'LIMIT', 0, arg.id and -1 or 500, 'WITHSCORES')
  for i = 1, #held, 2 do
    if i < 1000 or id_of(held[i]) == arg.id then
      shares[#shares + 1] = held[i]
      shares[#shares + 1] = digits(tonumber(held[i + 1]))
      shares[#shares + 1] = term(held[i])
    end
  end
  for n in string.gmatch(string.match(term('all'), '|(.*)$') or '', '(%d+):') do lock.limits[tonumber(n)] = 1 end
  set_least()
elseif lock.value then
  lock.count, lock.least = 1, 1
end
if lock.failed then return lock.failed end
local reserved = lock.value and redis.call('HGET', W, 'reserved') == lock.value
local answer = seen('seen', 'type', kind, 'reserved', reserved and '1' or '0', 'queue', queue, 'shares', shares)
-- A reader who may not see the runs, or in whose place there is something else, sees the rest.
for _, part in ipairs(R and recorded(tonumber(arg.runs)) or {}) do answer[#answer + 1] = part end
return answer
