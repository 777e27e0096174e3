-- Tells who holds the lock, for RECORD and HISTORY. Follows runs.lua, and does nothing by itself.
--
-- KEYS lock, holder, shares

local value, holder = redis.pcall('GET', KEYS[1]), redis.pcall('GET', KEYS[2])

-- Returns whether WHO holds the lock.
local function holds(who)
  if type(value) ~= 'string' then return false end
  if value == who or holder == who then return true end
  if string.sub(value, 1, 11) ~= 'nx1:shared:' then return false end
  local ends = redis.pcall('ZSCORE', KEYS[3], who)
  return type(ends) == 'string' and tonumber(ends) > us / 1000
end
