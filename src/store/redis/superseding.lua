-- The waiters of which only the newest stays in the queue: who was dismissed, and by whom. Follows queue.lua and
-- companions.lua, precedes place.lua and leaving.lua, and does nothing by itself.
--
-- The last of KEYS, superseded   hash   newest -> ticket|token of the newest of these waiters that joined the queue
--                                       granted -> the same of the newest that was granted the lock, until it leaves
--                                       token -> token of the one that dismissed it, until it learns of that
-- Message on the channel of the one that is dismissed: s "you are dismissed, ask by whom".
--
-- A waiter of this kind has its ticket from its first call, which does not join the queue: a request to join that was
-- given up, and arrives late, is older than whoever has joined meanwhile, and dismisses nobody.
--
-- Keeps: a token that was dismissed never joins the queue again, nor is granted a free lock, however late it asks: its
-- field stays until it has asked, or for as long as a fence does. One that asked before the holder did does not wait
-- for that one's end either: it is dismissed when it joins. Only a token that says so in a field of its own is of
-- these waiters; for any other, this does nothing.

local terms = string.match(token, '^nx1:[^:]*:[^:]*:[^:]*:[^:]*:[^:]*(:.*)$')
local S = terms and string.find(terms .. ':', ':newest:', 1, true) and KEYS[#KEYS]

-- Returns the token that has dismissed the caller, or the error of a key of another type.
local function dismissed_by()
  if not S then return nil end
  local by = redis.pcall('HGET', S, token)
  return damage(by, S) or by
end

-- The answer to a caller that was dismissed.
local function dismissal(by, value)
  if type(by) == 'table' then return by end
  return { 2, by, redis.call('ZCARD', Q), value or '', digits(redis.call('PTTL', K)), last_fence() or '0', digits(us()) }
end

-- Returns the ticket and the token of the newest that waits, or that was granted the lock, if there is one.
local function newest(field)
  local ticket, t = string.match(redis.call('HGET', S, field) or '', '^(%d+)|(.*)$')
  return tonumber(ticket), t
end

-- Returns the token of a newer one, if there is one: it dismisses the caller.
local function newer_than(ticket)
  for _, field in ipairs({ 'newest', 'granted' }) do
    local theirs, t = newest(field)
    if t and t ~= token and theirs > ticket then
      redis.call('HSET', S, token, t)
      lengthen(S, FENCE_MS)
      return t
    end
  end
  return nil
end

-- Makes the caller the newest, and dismisses the one that was; returns whether that was the first of the queue. Comes
-- after all else that a call writes: if the server refuses a command, nobody is dismissed by a caller that is not there.
local function supersede(ticket)
  local _, before = newest('newest')
  if before == token then
    lengthen(S, FENCE_MS)
    return false
  end
  local w, was_first
  if before then
    w, was_first = waiter(before), redis.call('ZRANK', Q, before) == 0
    redis.call('ZREM', Q, before)
    redis.call('HDEL', W, before)
  end
  -- Refused here, if at all.
  redis.call('PEXPIRE', S, digits(FENCE_MS))
  redis.call('HSET', S, 'newest', digits(ticket) .. '|' .. token)
  -- It may have a reservation, or have been dropped as dead: in the queue or not, it is the older one.
  if before then redis.call('HSET', S, before, token) end
  redis.call('PEXPIRE', S, digits(FENCE_MS))
  if w and w.channel ~= '' then publish(w.channel, 's') end
  return was_first
end

-- Removes the caller from the waiters or the holders, as the field says.
local function leaves(field)
  local sound, _, t = pcall(newest, field)
  if sound and t == token then redis.call('HDEL', S, field) end
  return sound
end

-- Removes the caller from these waiters, and forgets that it had the lock: it has left.
local function no_longer_waits()
  if not S or not leaves('newest') then return end
  leaves('granted')
  redis.call('HDEL', S, token)
end

-- Notes that the caller has the lock, with its ticket if that is known. A full server may refuse the note.
local function is_granted(ticket)
  if not S or not leaves('newest') then return end
  redis.call('HDEL', S, token)
  local theirs = newest('granted')
  if not ticket or ticket == 0 or (theirs and theirs > ticket) then return end
  redis.pcall('HSET', S, 'granted', digits(ticket) .. '|' .. token)
  redis.pcall('PEXPIRE', S, digits(FENCE_MS))
end
