-- The shares of one lock: who holds it together with others, on which terms, and who comes in next. Follows queue.lua and
-- companions.lua, precedes sharing_acquire.lua and sharing_release.lua, and does nothing by itself.
--
-- KEYS lock, queue, waiters, fence, shares, terms     ARGV[1] token
--   lock    while it is shared: 'nx1:shared:' and the fence of the generation; expires at the latest end of all shares,
--           so whoever knows only this key (SET NX, and the scripts of exclusive claims) is kept out by it
--   shares  zset  token -> end of its lease, ms of the server's clock; a reserved share ends with its grace
--   terms   hash  token -> slot|fence|us of the grant|r     slot '-' = none; r = reserved, not claimed yet
--                 state -> least|how many|map      the least limit of all shares ('0' = none has one), how many shares
--                          have that one, and which slots are taken: '1' or '0' each, from slot 0
-- A token of a share has its limit in its seventh field: at most so many may hold the lock while it does, itself
-- included; 0 is any number. Any other token is exclusive, that is 1.
-- A generation is the time from the first share to the last: shares that overlap.
--
-- Work: at most BATCH shares end, and at most BATCH enter, in one script. Each takes a constant number of commands, and
-- copies the map: a byte for each slot. The holders are counted at most once a script, and only if the last share with
-- the least limit has ended while others stay.
--
-- Keeps: no more hold the lock than the least of their limits. A share is valid only while the lock's value is the
-- generation that it joined, and only as long as its lease: whoever deletes or replaces the lock's key ends all shares.
-- Nobody passes the first live waiter. Leftovers of an earlier generation have no effect. If only one of both keys is
-- left (eviction), nobody comes in until the lock's key has expired; holders continue. A terms key of another type does
-- not prevent a release. A script writes all of a share before it reads the queue again: the server may refuse access
-- to a queue that is empty now, if its slot is moving to another server.

local H, T, MARK = KEYS[5], KEYS[6], 'nx1:shared:'
-- An end of all shares that is nearer than this is announced: nobody would look before it.
local SOON = 2500
-- At most so many shares change in one script.
local BATCH = 32

local function limit_of(t)
  return tonumber(string.match(t .. ':', '^nx1:[^:]*:[^:]*:[^:]*:[^:]*:[^:]*:(%d+):'))
end

-- `whole`: the terms are known. `changed`: `settle` has something to write.
local generation, whole, changed = nil, false, false
local count, least, many, map = 0, 0, 0, ''
-- More dead waiters are in the way than one script drops: the caller may come in if it asks again at once.
local unfinished = false
-- What the keys hold, perhaps of an earlier generation, or the errors.
local found, state = redis.pcall('ZCARD', H), redis.pcall('HGET', T, 'state')

-- Finds the least limit, if all shares that had it have ended.
local function recount()
  if least == 0 or many > 0 then return end
  least = 0
  for _, t in ipairs(redis.call('ZRANGE', H, 0, -1)) do
    local n = limit_of(t) or 0
    if n > 0 and (least == 0 or n < least) then least, many = n, 0 end
    if n > 0 and n == least then many = many + 1 end
  end
end

local function drop(t)
  local terms = redis.pcall('HGET', T, t)
  local slot = type(terms) == 'string' and tonumber(string.match(terms, '^(%d+)|'))
  redis.call('ZREM', H, t)
  redis.pcall('HDEL', T, t)
  count, changed = count - 1, true
  if slot then map = string.sub(map, 1, slot) .. '0' .. string.sub(map, slot + 2) end
  if whole and least > 0 and limit_of(t) == least then many = many - 1 end
end

-- Drops shares whose leases are over.
local function expire()
  for _ = 1, BATCH do
    local first = redis.call('ZRANGE', H, 0, 0, 'WITHSCORES')
    if not first[1] or tonumber(first[2]) > now() then return end
    drop(first[1])
  end
end

-- Returns whether the lock with this value is shared, and by whom is known.
local function open(value)
  if not value or string.sub(value, 1, #MARK) ~= MARK then return false end
  generation = string.sub(value, #MARK + 1)
  if found == 0 then return false end
  count = found
  local a, b, c = string.match(type(state) == 'string' and state or '', '^(%d+)|(%d+)|([01]*)$')
  if a then whole, least, many, map = true, tonumber(a), tonumber(b), c end
  expire()
  return true
end

-- Returns whether one more with this limit may come in.
local function fits(n)
  recount()
  local most = (least == 0 or (n > 0 and n < least)) and n or least
  return most == 0 or count < most
end

-- Adds a share: claimed for `ms`, or reserved for so long.
local function enter(t, ms, reserved)
  recount()
  local n, slot, fence = limit_of(t), '-', generation
  if n > 0 then
    slot = (string.find(map, '0', 1, true) or #map + 1) - 1
    map = string.sub(map, 1, slot) .. '1' .. string.sub(map, slot + 2)
    if least == 0 or n < least then least, many = n, 1 elseif n == least then many = many + 1 end
  end
  -- The fence outlives the leases of all, as after `begin`. That of a slot is newer than whoever had the slot before.
  if count > 0 then
    local lasts = math.max(FENCE_MS, 10 * ms)
    if n > 0 then fence = bump(math.max(lasts, redis.call('PTTL', F))) else lengthen(F, lasts) end
  end
  redis.call('ZADD', H, digits(now() + ms), t)
  redis.call('HSET', T, t, table.concat({ slot, fence, digits(us()), reserved and 'r' or '' }, '|'))
  count, changed = count + 1, true
  return { 1, fence, tostring(slot), count }
end

-- Removes what is left of a generation that is over.
local function clear()
  if type(state) == 'table' then
    redis.call('DEL', H)
  elseif found > 0 or state then
    redis.call('DEL', H, T)
    found, state = 0, false
  end
  count, least, many, map, whole, changed = 0, 0, 0, '', false, false
end

-- Lets the first waiters in as long as they fit; returns the caller's share if it was among them. `ms` is the caller's
-- lease, if it asks for one.
local function serve(ms)
  local entered, moved
  for _ = 1, whole and BATCH or 0 do
    local heads = redis.pcall('ZRANGE', Q, 0, 1)
    local h = heads[1]
    if not h then break end
    local n = limit_of(h)
    if not n or not fits(n) then
      -- A dead waiter must not block those behind it. The waiter that gets the message below finds out.
      if moved then break end
      local ok, first, _, dropped = pcall(front, nil, heads)
      unfinished = unfinished or (ok and first == false)
      if not ok or not first or first == h then break end
      moved = dropped
    elseif h == token then
      entered, moved = enter(h, ms, false), true
      redis.call('ZREM', Q, h)
      redis.call('HDEL', W, h)
    else
      local ok, first, w = pcall(front, 'g', heads)
      unfinished = unfinished or (ok and first == false)
      if not ok then break end
      moved = true
      if not first then break end
      if first == h then
        -- Without the message it notices at its next heartbeat, which comes before its lease ends.
        enter(h, w.untold and math.max(w.grace, w.lease - now()) or w.grace, true)
        redis.call('ZREM', Q, h)
        redis.call('HDEL', W, h)
      end
    end
  end
  -- The first has a new end to watch, or fits.
  if moved then pcall(front, 'n') end
  return entered
end

-- Writes the state, and moves the expiries: the lock's key lives as long as the longest share, and its companions a
-- little longer. Returns how long that is, if it has changed.
local function settle()
  if not changed then return nil end
  if whole then
    recount()
    -- Free slots at the end are not written. An anchored pattern tries each length once.
    map = string.match(map, '^(.*1)') or ''
    redis.call('HSET', T, 'state', table.concat({ least, many, map }, '|'))
  end
  local ms = tonumber(redis.call('ZRANGE', H, -1, -1, 'WITHSCORES')[2]) - now()
  redis.call('PEXPIRE', K, digits(ms))
  outlast(ms, H, type(state) ~= 'table' and T)
  return ms
end
