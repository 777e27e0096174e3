-- RENEW beside old SETNX clients: puts back our value if one of them overwrote it during our lease.
--
-- KEYS lock, fence, holder     ARGV as RENEW, record
-- RETURNS as RENEW; with a third element if it is ours: 1 if our value had to be put back, else 0
--
-- Work: as RENEW, and a constant number of commands.
--
-- Keeps: puts the value back only while the lease is valid by the server's clock, and only over such a time: a deleted
-- key stays deleted, and the lock is lost. Works on a full server: PEXPIRE comes first.

local back, ms = 0, tonumber(ARGV[2])
if ours and ARGV[3] == 'prolong' then ms = math.max(ms, redis.call('PTTL', H) + 2) end
if ours then redis.call('PEXPIRE', H, beside(ms)) end
if ours and ends(redis.call('GET', K)) then
  redis.call('SET', K, token, 'PX', string.format('%.0f', ms))
  back = 1
end
local answer = ask()
if answer[1] == 1 then
  if not ours then redis.call('SET', H, ARGV[4], 'PX', beside(ms)) end
  answer[3] = back
elseif ours then
  redis.call('DEL', H)
end
return answer
