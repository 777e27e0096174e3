-- RELEASE beside old SETNX clients: deletes the record too.
--
-- KEYS lock, queue, waiters, fence, holder     ARGV token
-- RETURNS as RELEASE
--
-- Work: as RELEASE, and one command.
--
-- Keeps: changes only a lock that holds our token, as always. A value written over it may be somebody else's.

local answer = ask()
if ours then redis.call('DEL', H) end
return answer
