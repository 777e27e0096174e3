-- INSPECT: who holds it, who waits. Reads only: EVAL_RO, a replica and a reader's permissions do.
--
-- KEYS lock, queue, waiters, fence     no ARGV
-- RETURNS {type, value, pttl, fence, now_us, reserved, queue}
--   type      as TYPE says, 'none' if it is free;  value  '' if it is free or not a string
--   reserved  1 while the lock is put aside for a waiter that has not claimed it yet, else 0
--   queue     {token, ticket, token, ticket ...}, in order, the first 500, only the living; for a token
--             that is a bare number, what lies beside it and tells who it is
--   all strings but reserved
--
-- Keeps: everything as it was. A waiter is left out if its lease is over, or if nobody listens on its
-- channel; unless nobody listens on any, which is how a replica, where nobody subscribes, sees it, or the waiter
-- subscribed at another node of the cluster.

local kind = redis.call('TYPE', K)
kind = kind.ok or kind
local value = kind == 'string' and redis.call('GET', K) or ''
local leased, channels = {}, {}
local queue = redis.call('ZRANGE', Q, 0, 499, 'WITHSCORES')
for i = 1, #queue, 2 do
  local w = waiter(queue[i])
  if w then
    leased[#leased + 1] = { string.match(w.record, '\n(.*)') or queue[i], queue[i + 1], w }
    if w.channel ~= '' then channels[#channels + 1] = w.channel end
  end
end
-- Of many at once: a question for each would take half of the time. Not to know is not to be dumb.
local dumb = {}
for from = 1, #channels, 100 do
  local n = redis.pcall('PUBSUB', 'NUMSUB', unpack(channels, from, math.min(from + 99, #channels)))
  for i = 1, n.err and 0 or #n, 2 do dumb[n[i]] = tonumber(n[i + 1]) == 0 end
end
local heard = false
for _, channel in ipairs(channels) do heard = heard or not dumb[channel] end
local alive = {}
for _, w in ipairs(leased) do
  if not (heard and dumb[w[3].channel]) or elsewhere(w[3]) then
    alive[#alive + 1] = w[1]
    alive[#alive + 1] = digits(tonumber(w[2]))
  end
end
return { kind, value, digits(redis.call('PTTL', K)), last_fence() or '0', digits(us),
  (value ~= '' and redis.call('HGET', W, 'reserved') == value) and 1 or 0, alive }
