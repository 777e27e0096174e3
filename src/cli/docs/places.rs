//! What the manual says of the places where locks live, in the form that `prose.rs` describes.

pub const SERVERS: &str = "\
Where the locks live is a URL, given by --server or the environment. There is no default: two hosts \
that each lock in a place of their own would both run.

redis://[[user]:password@]host[:port][/db]  A server over TCP. The port is 6379 and the database 0 \
unless told otherwise.
unix:///path[?db=N][&user=U][&pass=P]  The same by a Unix socket. `redis+unix:` is another name of it.
local:, local:/path/to/directory  This machine alone, without a server: see LOCAL LOCKS.

`redis:` may be written `valkey:`. In a password every character but letters, digits and \
`-._~` is best written as `%` and two hexadecimal digits. TLS is not offered yet: on a network that is \
not yours, use a tunnel.

The server must be a master: Redis 6.2 or later, or one that behaves like it. It needs `maxmemory-policy noeviction`, or enough \
memory: a server that evicts keys evicts locks. Where EVAL is not known or not permitted, nxlock compares by other means \
(WATCH and MULTI, or SET IFEQ and DELEX where they are known), but there is no queue and no fence: every waiter polls. Where \
channels are not permitted, there is a queue, and its waiters poll.";

pub const LOCAL: &str = "\
With `local:` a directory keeps the locks, and there is no server: with the same options, answers and exit statuses, \
so that a script grows from one host to a fleet by another URL. Whoever uses the same directory on the same machine agrees.

local:  One directory for each user, /tmp/nxlock-UID, whatever HOME, TMPDIR and the XDG variables say: cron and a login shell \
meet there. It is made with the mode 0700. If it belongs to somebody else, is a symbolic link or open to others, it is refused. \
A service that has a /tmp of its own (PrivateTmp= of systemd) does not meet the others: name a directory.
local:/path/to/directory  This directory, made if it is missing. Whoever may write in it shares its locks: its files get its group, \
and may be written by those who may write in the directory.

A network file system is refused where it is recognised: locks of two machines would not meet there. Containers \
of one machine that share the directory share its locks.

A holder that was killed frees its lock at once, if it was started by `run` in the same pid namespace as those who ask. As long as \
something lives that its command has left behind, known by the token in its NXLOCK_HELD, the lock stays, at most until the \
lease ends. What has cleared its environment or changed its user is not known. In every other case the lock ends with its lease.

Leases are counted on the clock that goes on while the machine sleeps. After a reboot nothing is held, and a step of the wall \
clock means nothing. A waiter sleeps until the one ahead of it has gone; the first in line until the lock changes hands. One that \
was stopped (SIGSTOP) when it was its turn costs the others its grace of 1s and up to 2s more.

The files are `KEY.lock`, who has the lock, and `KEY.line`, who waits; `/`, `%` and `~` in a key are written as %2F, %25 and %7E, and \
a long one ends in a checksum. They are text, to be read and not to be changed. What is damaged, is not nxlock's or comes from a newer \
nxlock is left as it is, and is an error (78) that names the file. Files of locks that nobody has used for a day are removed when others \
are made.";

pub const KEYS: &str = "\
lock:NAME  The lock: a string whose value is the holder's token, with an expiry. --prefix replaces \
`lock:`. The key alone decides. A program that uses plain `SET lock:NAME VALUE NX PX TTL` on it excludes \
nxlock and is excluded by it; whatever value the key has, it is held.
{lock:NAME}:fence  A counter that rises with every grant. It lasts for a day after its last use, or for \
ten times the ttl if that is longer, and then ends by itself.
{lock:NAME}:queue, {lock:NAME}:waiters  Who waits, in order. They are there while somebody does, and end by themselves \
if all waiters die. Losing them costs the waiters time, and never lets two have the lock.
lock:NAME:wake:ID  The channel on which a waiter is called.

A token is `nx1:`, 26 random characters, and behind colons user and host, pid, time and reason. Whoever has it \
can release the lock. The first eight of the random characters are the ID that `status` shows.";

pub const PERMISSIONS: &str = "\
What each verb asks of a server with access control lists, if the prefix is `lock:`. A database other than 0 needs `+select` as well.

run, acquire, release  `~lock:* ~{lock:*}:* &lock:* +eval +get +set +del +time +pttl +pexpire +zadd +zrem +zrange +zrank +zscore \
+zcard +hget +hset +hdel +publish +pubsub|numsub +subscribe`; and `+type` for --break
renew  `~lock:* ~{lock:*}:* +eval +get +time +pttl +pexpire`
status  `~lock:* ~{lock:*}:* &lock:* +eval +get +time +pttl +type +zrange +hget +pubsub|numsub`; and `+scan` if no name is given

A user for all of them:

    ACL SETUSER nxlock on >PASSWORD ~lock:* ~{lock:*}:* &lock:*
        +eval +get +set +del +time +pttl +pexpire +type +scan
        +zadd +zrem +zrange +zrank +zscore +zcard +hget +hset +hdel
        +publish +pubsub|numsub +subscribe

This is one line. A user without `+eval` needs `~lock:* +get +set +del +pttl +pexpire +type +watch +multi +exec`. SCAN shows a \
user every key's name in the database, whatever keys it may use.";
