-- INSPECT of a shared lock: returns who holds it together, and the waiters. Only reads. Follows queue.lua,
-- companions.lua and inspect.lua, whose body is `ask()` here.
--
-- KEYS lock, queue, waiters, fence, shares, terms     ARGV the id of a holder that is to be among the shares ('' = none)
-- RETURNS {the answer of INSPECT, shares, count, least}
--   shares  {token, end_ms, terms, token, end_ms, terms ...} in the order of their ends, of at most 500 whose leases
--           run, and that of the id; empty if the lock is not shared;  terms  '' if they are lost
--   count   how many hold the lock, an integer
--   least   the least limit of all shares, '0' if none has one, or if it is lost

local H, T, id = KEYS[5], KEYS[6], ARGV[1]
local answer, shares, count = ask(), {}, 0
if answer[1] ~= 'string' or string.sub(answer[2], 1, 11) ~= 'nx1:shared:' then return { answer, shares, 0, '0' } end
local all = redis.pcall('ZRANGE', H, 0, -1, 'WITHSCORES')
local damaged = damage(all, H)
if damaged then return damaged end
local function term(field)
  local text = redis.pcall('HGET', T, field)
  return type(text) == 'string' and text or ''
end
for i = 1, #all, 2 do
  if tonumber(all[i + 1]) > now() then
    count = count + 1
    if count <= 500 or (id ~= '' and string.sub(all[i], 5, 4 + #id) == id) then
      shares[#shares + 1] = all[i]
      shares[#shares + 1] = digits(tonumber(all[i + 1]))
      shares[#shares + 1] = term(all[i])
    end
  end
end
return { answer, shares, count, string.match(term('state'), '^%d+') or '0' }
