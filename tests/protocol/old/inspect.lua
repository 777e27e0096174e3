-- INSPECT: returns the holder and the waiters. Only reads: EVAL_RO, a replica and read permission suffice.
-- Follows queue.lua.
--
-- KEYS lock, queue, waiters, fence     ARGV[2] how many waiters to look at, at most (none = 500)
-- RETURNS {type, value, pttl, fence, now_us, reserved, queue}
--   type      as TYPE says, 'none' if it is free;  value  '' if it is free or not a string
--   reserved  1 while the lock is reserved for a waiter that has not claimed it yet, else 0
--   queue     {token, ticket, token, ticket ...}, in order, the live ones of the first; for a token that
--             is a bare number, the record that says who waits
--   all strings but reserved
--
-- Work: a command for each waiter that it looks at, one for every 100 channels, and, in a cluster, one for each waiter
-- whose channel has no subscriber.
--
-- Keeps: everything unchanged. Omits a waiter if its lease is over, or if its channel has no subscriber; unless no
-- channel has one, as on a replica, where nobody subscribes, or the waiter subscribed at another node of the cluster.

local value, most = redis.pcall('GET', K), tonumber(ARGV[2] or 500)
local kind = value and 'string' or 'none'
if type(value) == 'table' then
  if not string.find(value.err, 'WRONGTYPE', 1, true) then return value end
  kind, value = redis.call('TYPE', K), ''
  kind = kind.ok or kind
end
value = value or ''
local leased, channels = {}, {}
local queue = most > 0 and redis.call('ZRANGE', Q, 0, digits(most - 1), 'WITHSCORES') or {}
for i = 1, #queue, 2 do
  local w = waiter(queue[i])
  if w then
    leased[#leased + 1] = { string.match(w.record, '\n(.*)') or queue[i], queue[i + 1], w }
    if w.channel ~= '' then channels[#channels + 1] = w.channel end
  end
end
-- Many channels at once: a request for each would take half of the time. A failed request does not make a waiter dumb.
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
return { kind, value, digits(redis.call('PTTL', K)), last_fence() or '0', digits(us()),
  (value ~= '' and redis.call('HGET', W, 'reserved') == value) and 1 or 0, alive }
