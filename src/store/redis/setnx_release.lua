-- RELEASE beside old SETNX clients: who held it goes with it.
--
-- KEYS lock, queue, waiters, fence, holder     ARGV token
-- RETURNS as RELEASE
--
-- Keeps: only a lock that holds our token is touched, as ever. What was written over it may be somebody's.

local answer = ask()
if ours then redis.call('DEL', H) end
return answer
