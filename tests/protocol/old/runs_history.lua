-- HISTORY: returns the runs that were recorded. Only reads. Follows runs.lua and runs_holding.lua.
--
-- KEYS lock, holder, shares, runs
-- RETURNS {ended, vanished}
--   ended     the lines of the runs that have ended, the last first, '' if there are none
--   vanished  {note, who, note, who ...} of the runs that have not, and do not hold the lock
--
-- Work: in proportion to the lines, of which there are 1000 at most, and one command for each note of a run.

local all = redis.pcall('HGETALL', R)
local damaged = damage(all)
if damaged then return damaged end
local found, lines, vanished = {}, {}, {}
for i = 1, #all, 2 do
  found[all[i]] = all[i + 1]
  lines[#lines + 1] = tonumber(string.match(all[i], '^line:(%d+)$'))
end
for i = 1, #all, 2 do
  local who = string.match(all[i], '^run:(.*)$')
  -- If it has ended, it has asked once more since.
  if who and not found['of:' .. who] and not holds(who) then
    vanished[#vanished + 1] = all[i + 1]
    vanished[#vanished + 1] = who
  end
end
table.sort(lines, function(a, b) return a > b end)
for i, number in ipairs(lines) do lines[i] = found['line:' .. digits(number)] end
return { table.concat(lines, '\n'), vanished }
