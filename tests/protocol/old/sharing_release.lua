-- RELEASE of a share: removes the token from those who hold the lock, and lets the next in; or gives up a wait. Follows
-- queue.lua, companions.lua, superseding.lua, sharing.lua and leaving.lua.
--
-- KEYS lock, queue, waiters, fence, shares, terms, and superseded if the token is one of superseding.lua     ARGV token
-- RETURNS as RELEASE: {1} also if others still hold the lock; {2, next_token} only if the share was the last
--
-- Work: as RELEASE, and as sharing.lua.
--
-- Keeps: changes only the token's own share. As RELEASE: removes all that is ours from the queue, passes on a
-- reservation, works on a full server, and a replica can't answer.

local damaged = damage(found, H)
if damaged then return damaged end
-- Without its terms a share is given back all the same.
if type(state) == 'table' and not string.find(state.err, 'WRONGTYPE', 1, true) then return state end
local shared = open(value)
local ours = value == token or (shared and redis.call('ZSCORE', H, token) and true)
local answer
if not ours then
  answer = { 0, value or '', digits(redis.call('PTTL', K)), last_fence() or '0', digits(us()) }
end

local ended = redis.call('PTTL', K)
if shared and ours and value ~= token then drop(token) end
if value == token or not value or (shared and count == 0) then
  -- Reserved for us alone, free while somebody waits, or the last share: as in RELEASE. A waiter that wants a share
  -- adds itself when it claims the lock.
  if shared then clear() end
  local h, w
  if first then h, w = front('g', heads) end
  if h then
    reserve(h, w)
    if ours then answer = { 2, h } end
  else
    if value then redis.call('DEL', K) end
    if ours then answer = { 1 } end
  end
elseif shared then
  serve(0)
  local ends = settle()
  -- All may be over sooner than the first would look by itself.
  if first == token or (ends and ends < SOON and ends < ended - 1) then pcall(front, 'n') end
  if ours then answer = { 1 } end
elseif first == token then
  front('n')
end
-- The generation is over, or damaged: removes what the token has in it.
if not shared then
  redis.call('ZREM', H, token)
  if type(state) ~= 'table' then
    redis.call('HDEL', T, token)
    if redis.call('ZCARD', H) == 0 then redis.call('DEL', T) end
  end
end
return answer
