-- INSPECT of a shared lock: returns who holds it together, and the waiters. Only reads. Follows queue.lua and
-- inspect.lua, whose body is `ask()` here.
--
-- KEYS lock, queue, waiters, fence, shares, terms     no ARGV
-- RETURNS {the answer of INSPECT, shares, count, least}
--   shares  {token, end_ms, terms, token, end_ms, terms ...} in the order of their ends, of at most 500 whose leases
--           run; empty if the lock is not shared
--   count   how many hold the lock, an integer;  least  the least limit of all shares, '0' if none has one

local H, T = KEYS[5], KEYS[6]
local answer, shares, count = ask(), {}, 0
if answer[1] ~= 'string' or string.sub(answer[2], 1, 11) ~= 'nx1:shared:' then return { answer, shares, 0, '0' } end
local all = redis.call('ZRANGE', H, 0, -1, 'WITHSCORES')
for i = 1, #all, 2 do
  if tonumber(all[i + 1]) > now() then
    count = count + 1
    if count <= 500 then
      shares[#shares + 1] = all[i]
      shares[#shares + 1] = digits(tonumber(all[i + 1]))
      shares[#shares + 1] = redis.call('HGET', T, all[i]) or ''
    end
  end
end
return { answer, shares, count, string.match(redis.call('HGET', T, 'state') or '', '^%d+') or '0' }
