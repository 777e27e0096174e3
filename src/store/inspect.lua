-- INSPECT: who holds it, who waits. Reads only: EVAL_RO, a replica and a reader's permissions do.
--
-- KEYS lock, queue, waiters, fence     no ARGV
-- RETURNS {type, value, pttl, fence, now_us, reserved, queue}
--   type      as TYPE says, 'none' if it is free;  value  '' if it is free or not a string
--   reserved  1 while the lock is put aside for a waiter that has not claimed it yet, else 0
--   queue     {token, ticket, token, ticket ...}, in order, the first 1000, only the living; for a token
--             that is a bare number, what lies beside it and tells who it is
--   all strings but reserved
--
-- Keeps: everything as it was. A waiter is left out if its lease is over, or if nobody listens on its
-- channel; unless nobody listens on any, which is how a replica, where nobody subscribes, sees it.

local kind = redis.call('TYPE', K)
kind = kind.ok or kind
local value = kind == 'string' and redis.call('GET', K) or ''
local leased, heard = {}, false
local queue = redis.call('ZRANGE', Q, 0, 999, 'WITHSCORES')
for i = 1, #queue, 2 do
  local w = waiter(queue[i])
  if w then
    local dumb = w.channel ~= '' and not listens(w.channel)
    heard = heard or (w.channel ~= '' and not dumb)
    local told = string.match(redis.call('HGET', W, queue[i]), '\n(.*)')
    leased[#leased + 1] = { told or queue[i], queue[i + 1], dumb }
  end
end
local alive = {}
for _, w in ipairs(leased) do
  if not (heard and w[3]) then
    alive[#alive + 1] = w[1]
    alive[#alive + 1] = digits(tonumber(w[2]))
  end
end
return { kind, value, digits(redis.call('PTTL', K)), last_fence() or '0', digits(us),
  (value ~= '' and redis.call('HGET', W, 'reserved') == value) and 1 or 0, alive }
