-- RELEASE of one key: deletes the lock, the record beside one that is shared with SETNX clients, or a request to a
-- holder to give up.
--
-- KEYS lock, holder or asker:ID     ARGV token
-- RETURNS {1}                        it was ours
--         {0, value, pttl, '0', us}  it was not: as found, value '' if it was free; all strings, '0' for the fence
--
-- Work: a constant number of commands.
--
-- Keeps: deletes only what contains our token. Wakes no waiter, and reserves the lock for none.

local K, token = KEYS[1], ARGV[1]
local value, record = redis.call('GET', K), 'nx1:' .. token .. ':'
if value and (value == token or string.sub(value, 1, #record) == record) then
  redis.call('DEL', K)
  return { 1 }
end
local time = redis.call('TIME')
local function digits(n) return string.format('%.0f', n) end
return { 0, value or '', digits(redis.call('PTTL', K)), '0',
  digits(tonumber(time[1]) * 1000000 + tonumber(time[2])) }
