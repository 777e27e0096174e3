-- Beside old SETNX clients: their lock is a key without expiry, whose value is the time at which it ends.
-- Stands behind a script of ours, whose body is `ask()` here, and before what is done around that.
--
-- The last of KEYS, holder   string  'nx1:', the token that holds the lock, ':', and who that is. It is set with
--                                    the lock, extended with it, ends no later than it, and goes with it.
--
-- So while it is there, a lease of ours is valid by the server's clock, whatever the lock's key holds: the
-- SETNX client that loses a race writes its own time over the winner's value by GETSET, and ends its expiry.

local K, H, token = KEYS[1], KEYS[#KEYS], ARGV[1]

-- The time at which an old lock ends, in ms: 10 digits of seconds or 13 of ms, decimals or not. Nothing else is
-- a time: a count, a process id, a 1 say nothing of an end, and a value with an expiry has another.
local function ends(value)
  local whole = value and string.match(value, '^([1-9]%d+)%.?%d*$')
  local scale = whole and ({ [10] = 1000, [13] = 1 })[#whole]
  return scale and redis.call('PTTL', K) == -1 and tonumber(value) * scale
end

-- Whatever else may stand in the record's place is somebody's, and none of ours.
local held = redis.pcall('GET', H)
local begin = 'nx1:' .. token .. ':'
local ours = type(held) == 'string' and string.sub(held, 1, #begin) == begin

-- Ends a little before the lock, never after it.
local function beside(ms) return string.format('%.0f', math.max(1, ms - 2)) end
