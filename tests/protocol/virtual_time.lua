-- Stands for the server around a script: the time is the last argument, in us, and all that depends on it, on who
-- subscribes and on who is told is kept in keys of its own. Returns the script's reply, and what is in the keys then.

local command = redis.call
local vus = tonumber(ARGV[#ARGV])
local vms = math.floor(vus / 1000)
local function text(n) return string.format('%.0f', n) end
local function forget(key) if command('EXISTS', key) == 0 then command('HDEL', '__ends', key) end end

command('DEL', '__said')
local ends = command('HGETALL', '__ends')
for i = 1, #ends, 2 do
  if tonumber(ends[i + 1]) < vms then
    command('DEL', ends[i])
    command('HDEL', '__ends', ends[i])
  end
end

local instead = {}
function instead.TIME() return { text(math.floor(vus / 1e6)), text(vus % 1e6) } end
function instead.PTTL(key)
  if command('EXISTS', key) == 0 then return -2 end
  local at = command('HGET', '__ends', key)
  return at and tonumber(at) - vms or -1
end
function instead.PEXPIRE(key, ms)
  if command('EXISTS', key) == 0 then return 0 end
  if tonumber(ms) > 0 then
    command('HSET', '__ends', key, text(vms + tonumber(ms)))
  else
    command('DEL', key)
    command('HDEL', '__ends', key)
  end
  return 1
end
function instead.SET(key, value, px, ms)
  command('SET', key, value)
  command('HDEL', '__ends', key)
  if px then command('HSET', '__ends', key, text(vms + tonumber(ms))) end
  return { ok = 'OK' }
end
function instead.PUBSUB(_, ...)
  local counts = {}
  for _, channel in ipairs({ ... }) do
    counts[#counts + 1] = channel
    counts[#counts + 1] = command('SISMEMBER', '__ears', channel)
  end
  return counts
end
function instead.PUBLISH(channel, word)
  if command('SISMEMBER', '__ears', channel) == 0 then return 0 end
  -- What a holder is told makes it ask, and changes nothing.
  if string.find(channel, ':holder:', 1, true) then return 1 end
  command('RPUSH', '__said', channel .. ' ' .. word)
  return 1
end
local function call(name, ...)
  if instead[name] then return instead[name](...) end
  local reply = command(name, ...)
  if name == 'DEL' or name == 'ZREM' or name == 'HDEL' then
    for _, key in ipairs(name == 'DEL' and { ... } or { (...) }) do forget(key) end
  end
  return reply
end
local redis = { call = call, error_reply = redis.error_reply }
function redis.pcall(...)
  local ok, reply = pcall(call, ...)
  if ok or type(reply) == 'table' then return reply end
  return { err = tostring(reply) }
end

local function script()
--SCRIPT
end

local reply = script()
local function all(name, key, ...)
  local found = command(name, key, ...)
  return found or ''
end
local P = '{lock:x}:'
return { reply, all('GET', 'lock:x'), all('GET', P .. 'fence'), all('ZRANGE', P .. 'shares', 0, -1, 'WITHSCORES'),
  all('HGETALL', P .. 'terms'), all('ZRANGE', P .. 'queue', 0, -1, 'WITHSCORES'), all('HGETALL', P .. 'waiters'),
  all('HGETALL', P .. 'newest'), all('HGETALL', P .. 'runs'), all('HGETALL', '__ends'), all('LRANGE', '__said', 0, -1) }
