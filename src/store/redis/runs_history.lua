-- HISTORY: returns the runs that were recorded. Only reads. Follows runs.lua and runs_holding.lua.
--
-- KEYS lock, holder, shares, runs
-- RETURNS {ended, vanished}
--   ended     the lines of the runs that have ended, '' if there are none
--   vanished  {note, who, note, who ...} of the runs that have not, and do not hold the lock

local all = redis.pcall('HGETALL', R)
local damaged = damage(all)
if damaged then return damaged end
local lines, vanished = redis.call('HGET', R, 'ended') or '', {}
local ended_lines = lines .. '\n'
for i = 1, #all, 2 do
  local who = string.match(all[i], '^run:(.*)$')
  -- If it has ended, it has asked once more since.
  if who and not holds(who) and not string.find(ended_lines, '|' .. who .. '\n', 1, true) then
    vanished[#vanished + 1] = all[i + 1]
    vanished[#vanished + 1] = who
  end
end
return { lines, vanished }
