-- RELEASE: releases the lock, or reserves it for the next waiter; or gives up a wait. Follows queue.lua,
-- superseding.lua and leaving.lua.
--
-- KEYS lock, queue, waiters, fence, and superseded if the token is one of superseding.lua     ARGV token
-- RETURNS {1}                               it was ours; nobody waits, it is free
--         {2, next_token}                   it was ours; now it is reserved for the next waiter
--         {0, value, pttl, fence, now_us}   it was not ours: as found, value '' if it was free.
--                                           value, pttl, fence, now_us are strings
--
-- Work: a constant number of commands, and the dead waiters that queue.lua drops.
--
-- Keeps: changes only a lock that holds our token. Removes all that is ours from the queue, whatever the lock holds. A
-- reservation that reached us while we gave up passes on to the next. Skips dead waiters at once (nobody receives their
-- message). Works on a full server. A replica can't answer: "not yours" always comes from a server that could have
-- written. Releases the lock even if the queue key is of another type: then it serves nobody.

local ours = value == token
local answer
if not ours then
  answer = { 0, value or '', digits(redis.call('PTTL', K)), last_fence() or '0', digits(us()) }
end

-- A free lock with waiters: the client that finds it serves them, as after a release of its own.
if ours or not value then
  local h, w
  if first then h, w = front('g', heads) end
  if h then
    reserve(h, w)
    if ours then answer = { 2, h } end
  elseif ours then
    redis.call('DEL', K)
    answer = { 1 }
  end
elseif first == token then
  front('n')
end
return answer
