-- ACQUIRE of a share: adds the token to those who hold the lock if it may hold it with them. May be repeated at any
-- time. Follows queue.lua, companions.lua, superseding.lua, sharing.lua and place.lua.
--
-- KEYS lock, queue, waiters, fence, shares, terms, and superseded if the token is one of superseding.lua
-- ARGV as ACQUIRE
-- RETURNS {1, fence, slot, count}   granted, or already ours, or our reservation claimed.
--                                   slot '-' if it has no limit; count: how many hold it now, the caller included
--         {0, value, pttl, position, length, ticket, channel_used, fence, now_us, look_ms, count, least}
--           as ACQUIRE;  look_ms  when to ask again without a message, if near the front; -1 if nothing ends by itself;
--                                 0 for anybody: there were more dead waiters, or leases that are over, than one script
--                                 drops
--           least  the least limit of all shares, 0 if none has one;  look_ms is a string
--         {2, by, length, value, pttl, fence, now_us}     as ACQUIRE
--         {4, ...}                          as {0, ...}, and one of `enclosing` holds a share, or the lock
--
-- Work: as ACQUIRE, and as sharing.lua.
--
-- Keeps: as sharing.lua, and as ACQUIRE: a call by any client repairs a lost wake-up.

local limit = limit_of(token)

-- Begins a generation with the caller, and lets in the first waiters behind it.
local function begin()
  local mine = S and ((ticket or 0) > 0 and ticket or next_ticket())
  local by = S and newer_than(mine)
  if by then return dismissal(by, value) end
  leave_if_known()
  clear()
  generation = bump(fence_ms)
  redis.call('SET', K, MARK .. generation, 'PX', digits(ttl))
  whole = true
  local answer = enter(token, ttl, false)
  serve(ttl)
  settle()
  if S then
    supersede(mine)
    is_granted(mine)
  end
  answer[4] = count
  return answer
end

value = redis.call('GET', K)
queued = redis.call('ZCARD', Q)
-- Nothing has been written yet.
local damaged = damage(found, H) or damage(state, T)
if damaged then return damaged end
if value == token then return begin() end
local shared = open(value)
local mine = shared and redis.call('ZSCORE', H, token)
local slot, fence, since, reserved
if mine then
  slot, fence, since, reserved = string.match(redis.call('HGET', T, token) or '', '^([^|]*)|(%d+)|(%d+)|(r?)$')
  -- Its terms are lost (eviction), and with them its slot: it has to wait for another.
  if not slot and limit > 0 then
    drop(token)
    mine = false
  end
end
if mine then
  -- Before anything that a full server would refuse.
  redis.call('PEXPIRE', K, digits(math.max(ttl, redis.call('PTTL', K))))
  leave_if_known()
  local is_known = slot
  if not is_known or reserved == 'r' then since = digits(us()) end
  slot, fence = slot or '-', fence or generation
  redis.call('ZADD', H, digits(now() + ttl), token)
  redis.call('HSET', T, token, table.concat({ slot, fence, since, '' }, '|'))
  -- Terms that were lost, and are written again, have no expiry.
  if not is_known then lengthen(T, redis.call('PTTL', H)) end
  lengthen(F, fence_ms)
  changed = true
  serve(ttl)
  settle()
  is_granted(ticket)
  return { 1, fence, slot, count }
end
-- The last lease is over: nobody holds the lock, whatever its key says.
if shared and count == 0 then
  clear()
  redis.call('DEL', K)
  value = false
end
local by = dismissed_by()
if by then
  settle()
  return dismissal(by, value)
end

if not value and (mode == 'plain' or queued == 0) then return begin() end
-- Enqueues before serving anybody: a waiter that comes back with its old ticket may be the first.
if mode == 'queue' then by = enqueue() else ticket = S and next_ticket() or 0 end
if by then
  settle()
  return dismissal(by, value)
end
if not value then
  local h, w = front('g')
  if h == nil or h == token then return begin() end
  if h then
    reserve(h, w)
    value = h
  end
elseif whole then
  local entered
  if mode == 'queue' then
    entered = serve(ttl)
  else
    if queued > 0 and mode == 'once' then serve(ttl) end
    if (mode == 'plain' or redis.call('ZCARD', Q) == 0) and fits(limit) then
      entered = enter(token, ttl, false)
      if S then
        ticket = next_ticket()
        supersede(ticket)
      end
    else
      -- A replica must not answer for its master: it refuses this write. Not before: a full server would then let a
      -- newcomer in.
      redis.call('ZREM', Q, '')
    end
  end
  settle()
  if entered then
    is_granted(ticket)
    entered[4] = count
    return entered
  end
  if dismissed_first then pcall(front, 'n') end
elseif mode == 'queue' then
  local _, _, dropped = front()
  if dropped or dismissed_first then front('n') end
else
  redis.call('ZREM', Q, '')
end

local position = ticket > 0 and (redis.call('ZRANK', Q, token) or -1) + 1 or 0
local pttl = redis.call('PTTL', K)
local look = pttl
if whole then
  -- If only a waiter ahead is in the way, nobody tells if that one dies; else the first share to end counts.
  -- That may be over, if there were too many for one script.
  look = fits(limit) and 500 or math.max(0, tonumber(redis.call('ZRANGE', H, 0, 0, 'WITHSCORES')[2]) - now())
  if unfinished then look = 0 end
end
return { refusal(value), value or '', digits(pttl), position, redis.call('ZCARD', Q), digits(ticket), used,
  last_fence() or '0', digits(us()), digits(look), count, least }
