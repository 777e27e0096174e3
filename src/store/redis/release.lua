-- RELEASE: the lock given back and put into the hands of the next; or a wait given up.
--
-- KEYS lock, queue, waiters, fence     ARGV token
-- RETURNS {1}                               it was ours; nobody waits, it is free
--         {2, next_token}                   it was ours; now it is reserved for the next
--         {0, value, pttl, fence, now_us}   it was not ours: as found, value '' if it was free.
--                                           value, pttl, fence, now_us are strings
--
-- Keeps: only a lock that holds our token is touched. Nothing of ours stays in the queue, whatever
-- the lock holds. A reservation passed to us while we gave up goes on to the next. The dead are
-- passed over at once (nobody hears them called). Works on a full server. A replica can't answer:
-- "not yours" always comes from a server that could have written. A lock is given back whatever lies in
-- the queue's place: nobody is served from a queue of another type.

local sound = true
local head, record = redis.pcall('ZRANGE', Q, 0, 0), redis.pcall('HDEL', W, token)
for _, reply in ipairs({ head, record }) do
  local why = type(reply) == 'table' and reply.err
  if why and not string.find(why, 'WRONGTYPE', 1, true) then return reply end
  sound = sound and not why
end
local first = sound and head[1]
if first then redis.call('ZREM', Q, token) end
local value = redis.call('GET', K)
local ours = value == token
if sound and (ours or redis.call('HGET', W, 'reserved') ~= value) then redis.call('HDEL', W, 'reserved') end
local answer
if not ours then
  answer = { 0, value or '', digits(redis.call('PTTL', K)), last_fence() or '0', digits(us) }
end

-- Free, and somebody waits: the one who finds it so serves it, as after a release of our own.
if ours or not value then
  local h, w
  if first then h, w = front('g') end
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
