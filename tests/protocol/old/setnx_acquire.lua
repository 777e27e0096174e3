-- ACQUIRE beside old SETNX clients: takes over a lock that one of them has left.
--
-- KEYS lock, queue, waiters, fence, shares if `enclosing` is not empty, holder
-- ARGV as ACQUIRE, margin_ms, record
-- RETURNS as ACQUIRE; {1, fence, stale} if it was taken over: the time at which it had ended, as written
--
-- Work: as ACQUIRE, and a constant number of commands.
--
-- Keeps: a lock that it takes over had ended by the server's clock more than the margin ago, and was no lock of ours
-- that somebody overwrote. It is compared and replaced in one step, by the rules of ACQUIRE: waiters are served in
-- their order.

local value, stale, ttl = redis.call('GET', K), '', tonumber(ARGV[2])
local time = ends(value)
if time and ours then
  redis.call('SET', K, token, 'PX', ARGV[2])
elseif time and not held and time + tonumber(ARGV[10]) < now() then
  redis.call('DEL', K)
  stale = value
end
local answer = ask()
if answer[1] == 1 then
  redis.call('SET', H, ARGV[11], 'PX', beside(ttl))
  if stale ~= '' then answer[3] = stale end
elseif answer[6] ~= '0' then
  redis.call('HSET', W, token, redis.call('HGET', W, token) .. '\n' .. ARGV[11])
end
return answer
