-- Beside old SETNX clients: their lock is a key without expiry, whose value is the time at which it ends. Follows one
-- of nxlock's scripts, whose body is `ask()` here, and precedes what is done around that.
--
-- The last of KEYS, holder   string  'nx1:', the token that holds the lock, ':', and its owner. It is set with
--                                    the lock, extended with it, expires no later, and is deleted with it.
--
-- While it exists, a lease of ours is valid by the server's clock, whatever the lock's key holds: the SETNX client
-- that loses a race overwrites the winner's value with its own time by GETSET, which removes the expiry.

local K, H, token = KEYS[1], KEYS[#KEYS], ARGV[1]

-- Returns the time at which an old lock ends, in ms: 10 digits of seconds or 13 of ms, decimals or not. Nothing else is
-- a time: a count, a process id, a 1 say nothing of an end, and a value with an expiry has another.
local function ends(value)
  local whole = value and string.match(value, '^([1-9]%d+)%.?%d*$')
  local scale = whole and ({ [10] = 1000, [13] = 1 })[#whole]
  return scale and redis.call('PTTL', K) == -1 and tonumber(value) * scale
end

-- Any other value in the record's place is somebody else's.
local held = redis.pcall('GET', H)
local begin = 'nx1:' .. token .. ':'
local ours = type(held) == 'string' and string.sub(held, 1, #begin) == begin

-- Returns the ttl of the record: it expires a little before the lock, never after it.
local function beside(ms) return string.format('%.0f', math.max(1, ms - 2)) end
