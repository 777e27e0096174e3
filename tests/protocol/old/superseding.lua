-- The waiters of which only the newest stays in the queue: who was dismissed, and by whom. Follows queue.lua and
-- companions.lua, precedes place.lua and leaving.lua, and does nothing by itself.
--
-- The last of KEYS, superseded   hash   newest -> ticket|token of the newest of these waiters that joined the queue
--                                       granted -> the same of the newest that was granted the lock, until it leaves
--                                       dismissed -> a line for each of the last that were dismissed, until it learns
--                                       of that: its ticket, its token, and the token of the one that dismissed it
--                                       before -> ticket|token: with one that is noted no more, all were dismissed that
--                                       had no later ticket, by that token
-- Message on the channel of the one that is dismissed: s "you are dismissed, ask by whom".
--
-- A waiter of this kind has its ticket from its first call, which does not join the queue: a request to join that was
-- given up, and arrives late, is older than whoever has joined meanwhile, and dismisses nobody.
--
-- Work: a constant number of commands, and that of reading NOTED lines.
--
-- Keeps: a token that was dismissed never joins the queue again, nor is granted a free lock, however late it asks: its
-- line stays until it has asked, or its ticket is not after `before`, for as long as a fence stays. A ticket is later
-- than all that are noted. One that asked before the holder did does not wait
-- for that one's end either: it is dismissed when it joins. Only a token that says so in a field of its own is of
-- these waiters; for any other, this does nothing.

local terms = string.match(token, '^nx1:[^:]*:[^:]*:[^:]*:[^:]*:[^:]*(:.*)$')
local S = terms and string.find(terms .. ':', ':newest:', 1, true) and KEYS[#KEYS]

-- Waiters that are killed after their dismissal never learn of it: so many are noted each.
local NOTED = 16

-- Returns the token that has dismissed the caller, or the error of a key of another type.
local function dismissed_by()
  if not S then return nil end
  local notes = redis.pcall('HGET', S, 'dismissed')
  local damaged = damage(notes, S)
  if damaged then return damaged end
  for _, t, by in string.gmatch(notes or '', '(%d+) (%S+) (%S+)') do
    if t == token then return by end
  end
  return nil
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

-- Returns the lines of those that were dismissed, without that of `t`, and whether it has one.
local function notes_but(t)
  local notes, has = {}, false
  for note, whose in string.gmatch(redis.call('HGET', S, 'dismissed') or '', '(%d+ (%S+) %S+)') do
    if whose == t then has = true else notes[#notes + 1] = note end
  end
  return notes, has
end

-- Notes who has dismissed a waiter.
local function dismiss(ticket, t, by)
  local notes = notes_but(t)
  notes[#notes + 1] = digits(ticket) .. ' ' .. t .. ' ' .. by
  if #notes > NOTED then
    local last, whom = string.match(table.remove(notes, 1), '^(%d+) %S+ (%S+)$')
    if tonumber(last) > (newest('before') or 0) then redis.call('HSET', S, 'before', last .. '|' .. whom) end
  end
  redis.call('HSET', S, 'dismissed', table.concat(notes, '\n'))
end

-- Forgets that the caller was dismissed.
local function learns()
  local notes, has = notes_but(token)
  if not has then return end
  -- Removes the last line, or nothing: a full server does not let HSET be the first write.
  redis.call('HDEL', S, notes[1] and '' or 'dismissed')
  if notes[1] then redis.call('HSET', S, 'dismissed', table.concat(notes, '\n')) end
end

-- Returns the latest ticket that is noted, of whomever.
local function latest()
  local last = math.max(newest('newest') or 0, newest('granted') or 0, newest('before') or 0)
  for _, note in ipairs((notes_but(''))) do last = math.max(last, tonumber(string.match(note, '^%d+'))) end
  return last
end

-- Returns the token of a newer one, if there is one: it dismisses the caller.
local function newer_than(ticket)
  for _, field in ipairs({ 'newest', 'granted', 'before' }) do
    local theirs, t = newest(field)
    if t and t ~= token and (theirs > ticket or field == 'before' and theirs == ticket) then
      dismiss(ticket, token, t)
      lengthen(S, FENCE_MS)
      return t
    end
  end
  return nil
end

-- Makes the caller the newest, and dismisses the one that was; returns whether that was the first of the queue. Comes
-- after all else that a call writes: if the server refuses a command, nobody is dismissed by a caller that is not there.
local function supersede(ticket)
  local theirs, before = newest('newest')
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
  if before then dismiss(theirs, before, token) end
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
  learns()
end

-- Notes that the caller has the lock, with its ticket if that is known. A full server may refuse the note.
local function is_granted(ticket)
  if not S or not leaves('newest') then return end
  learns()
  local theirs = newest('granted')
  if not ticket or ticket == 0 or (theirs and theirs > ticket) then return end
  redis.pcall('HSET', S, 'granted', digits(ticket) .. '|' .. token)
  redis.pcall('PEXPIRE', S, digits(FENCE_MS))
end
