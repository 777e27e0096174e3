-- NUDGE: tells the first live waiter to ask again. Follows queue.lua.
--
-- KEYS lock, queue, waiters, fence     ARGV '' (no waiter asks)
-- RETURNS {1}
--
-- Work: that of `front` in queue.lua.
--
-- Keeps: the lock unchanged. Losing the message costs the first waiter time, as losing any message does.

front('n')
return { 1 }
