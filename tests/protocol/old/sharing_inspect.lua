-- INSPECT of a shared lock: returns who holds it together, and the waiters. Only reads. Follows queue.lua,
-- companions.lua and inspect.lua, whose body is `ask()` here.
--
-- KEYS lock, queue, waiters, fence, shares, terms     ARGV id of a holder that is to be among the shares ('' = none),
--      how many waiters to look at, at most
-- RETURNS {the answer of INSPECT, shares, count, least}
--   shares  {token, end_ms, terms, token, end_ms, terms ...} in the order of their ends, of at most 500 whose leases
--           run, and that of the id; empty if the lock is not shared;  terms  '' if they are lost
--   count   how many hold the lock, an integer
--   least   the least limit of all shares, '0' if none has one, or if it is lost
--
-- Work: as INSPECT, a command for each of 500 shares, and some 30 to count them; with an id, and for shares whose leases
-- are over, in proportion to the holders.

local H, T, id = KEYS[5], KEYS[6], ARGV[1]
local answer, shares, count = ask(), {}, 0
if answer.err then return answer end
if answer[1] ~= 'string' or string.sub(answer[2], 1, 11) ~= 'nx1:shared:' then return { answer, shares, 0, '0' } end
local ended = redis.pcall('ZRANGE', H, '-inf', digits(now()), 'BYSCORE')
local damaged = damage(ended, H)
if damaged then return damaged end
-- Counts them by halves: a user who may only look may lack ZCARD.
local function has(n) return redis.call('ZRANGE', H, n - 1, n - 1)[1] end
local held, beyond = #ended, #ended + 1
while has(beyond) do held, beyond = beyond, beyond * 2 end
while beyond - held > 1 do
  local middle = math.floor((held + beyond) / 2)
  if has(middle) then held = middle else beyond = middle end
end
count = held - #ended
-- An id is no score: to find its share takes all of them.
local last = id == '' and #ended + 499 or -1
local all = redis.call('ZRANGE', H, #ended, last, 'WITHSCORES')
local function term(field)
  local text = redis.pcall('HGET', T, field)
  return type(text) == 'string' and text or ''
end
for i = 1, #all, 2 do
  if i < 1000 or string.sub(all[i], 5, 4 + #id) == id then
    shares[#shares + 1] = all[i]
    shares[#shares + 1] = digits(tonumber(all[i + 1]))
    shares[#shares + 1] = term(all[i])
  end
end
return { answer, shares, count, string.match(term('state'), '^%d+') or '0' }
