-- RENEW beside old SETNX clients: what one of them wrote over a lease of ours is undone.
--
-- KEYS lock, fence, holder     ARGV as RENEW, record
-- RETURNS as RENEW; {1, 1} if our value had to be put back
--
-- Keeps: it is put back only while the lease is valid by the server's clock, and only over such a time: what
-- was deleted stays so, and is lost. Works on a full server: PEXPIRE comes first.

local back = 0
if ours then redis.call('PEXPIRE', H, beside(tonumber(ARGV[2]))) end
if ours and ends(redis.call('GET', K)) then
  redis.call('SET', K, token, 'PX', ARGV[2])
  back = 1
end
local answer = ask()
if answer[1] == 1 then
  if not ours then redis.call('SET', H, ARGV[3], 'PX', beside(tonumber(ARGV[2]))) end
  answer[2] = back
elseif ours then
  redis.call('DEL', H)
end
return answer
