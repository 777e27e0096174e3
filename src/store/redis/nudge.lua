-- NUDGE: the first in line that lives is told to look again.
--
-- KEYS lock, queue, waiters, fence     ARGV '' (nobody in line asks)
-- RETURNS {1}
--
-- Keeps: the lock as it was. Losing it costs the first in line time, as losing any word does.

front('n')
return { 1 }
