-- One key of a lock, while its keys are moving from one node of a cluster to another (moving.rs).
--
-- KEYS the lock for acquire, renew and release; its fence for fence; its waiters, or its terms, for own and withdraw
-- ARGV operation, field, value, field, value ...
--      acquire   token, ttl                 as SET NX does, regardless of waiters
--      renew     token, ttl, how
--      release   token                      wakes no waiter, and reserves the lock for none
--      fence     ttl                        one for the holder, higher than all before it
--      own       token, ttl                 lets the holder noted beside SETNX clients count so long; 0: deletes it
--      withdraw  field, value               deletes a request to a holder to give up
-- RETURNS field, value, field, value ... as lock.lua; with granted, `had` is 1 if the lock was the token's already
--
-- Work: a constant number of commands.
--
-- Keeps: changes only what contains the token. Never creates a lock, but for acquire, whose grant counts only once a fence
-- follows. A fence never falls, and outlives its lock.

local K, operation, arg = KEYS[1], ARGV[1], {}
for i = 2, #ARGV, 2 do arg[ARGV[i]] = ARGV[i + 1] end
local token, ttl = arg.token, tonumber(arg.ttl)
local time = redis.call('TIME')
local us = tonumber(time[1]) * 1000000 + tonumber(time[2])
local function digits(n) return string.format('%.0f', n) end

if operation == 'fence' then
  local fence = redis.pcall('GET', K)
  local n = type(fence) == 'string' and string.find(fence, '^%d+$') and tonumber(fence)
  fence = digits(math.max((n and n < 2 ^ 53 - 1 and n or 0) + 1, us))
  redis.call('SET', K, fence, 'PX', digits(math.max(86400000, 10 * ttl)))
  return { 'verdict', 'raised', 'fence', fence }
end

if operation == 'own' then
  local number, identity = string.match(redis.call('HGET', K, 'owner') or '', '^%d+|(%d+)|(.*)$')
  if number == token and ttl > 0 then
    redis.call('HSET', K, 'owner', digits(math.floor(us / 1000) + ttl) .. '|' .. token .. '|' .. identity)
    if redis.call('PTTL', K) < ttl then redis.call('PEXPIRE', K, digits(ttl)) end
  elseif number == token then
    redis.call('HDEL', K, 'owner')
  end
  return { 'verdict', 'kept' }
end

if operation == 'withdraw' then
  if redis.call('HGET', K, arg.field) == arg.value then redis.call('HDEL', K, arg.field) end
  return { 'verdict', 'withdrawn' }
end

local value, left = redis.call('GET', K), redis.call('PTTL', K)
if value == token then
  if operation == 'release' then
    redis.call('DEL', K)
    return { 'verdict', 'released' }
  elseif arg.how == 'prolong' and left > ttl then
    return { 'verdict', 'longer', 'left', digits(left) }
  end
  -- As in lock.lua, a request that is late brings the end no nearer, and a holder is told of the next change.
  redis.call('PEXPIRE', K, digits(operation == 'acquire' and math.max(ttl, left) or ttl))
  if operation == 'renew' then redis.call('GET', K) end
  return { 'verdict', operation == 'acquire' and 'granted' or 'kept', 'had', '1' }
elseif operation == 'acquire' and not value then
  redis.call('SET', K, token, 'PX', digits(ttl))
  return { 'verdict', 'granted', 'had', '0' }
end
return { 'verdict', 'not_yours', 'value', value or '', 'pttl', digits(left), 'now', digits(us) }
