-- The number in a fence key. Precedes queue.lua, raise.lua and moving_fence.lua, and does nothing by itself.

-- Returns the number of a fence; nothing if another program wrote what no fence is, or one above which Lua does not count
-- any more: 2^53 - 1 is the last.
local function fence_in(value)
  local n = type(value) == 'string' and string.find(value, '^%d+$') and tonumber(value)
  return n and n < 9007199254740991 and n or nil
end
