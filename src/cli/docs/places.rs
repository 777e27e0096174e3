//! The manual on servers, local locks, configuration, keys and permissions, in the form that `prose.rs` describes.

pub const SERVERS: &str = "\
A URL names the place where the locks live; --server, the environment or a configuration file gives it. There is no \
default: two hosts that each lock in a place of their own would both run.

redis://[[user]:password@]host[:port][/db]  A server over TCP. The default port is 6379, the default database 0. The \
user's password may come from elsewhere: see CONFIGURATION.
rediss://...  The same over TLS.
unix:///path[?db=N][&user=U][&pass=P]  The same over a Unix socket. `redis+unix:` is another name for it.
redis+sentinel://[[user]:password@]host[:port][,host[:port]].../MASTER[/db]  The master that these sentinels name. \
The default port is 26379. rediss+sentinel: uses TLS to the sentinels and to the master.
redis+cluster://[[user]:password@]host[:port][,host[:port]]...  A Redis Cluster; the hosts are some of its nodes. \
rediss+cluster: uses TLS.
local:, local:/path/to/directory  This machine only, without a server: see LOCAL LOCKS.
three or more servers  Independent masters: see SEVERAL SERVERS.

`redis:` may be written `valkey:`. In a password, it is best to write every character except letters, digits and \
`-._~` as `%` and two hexadecimal digits. On a network that is not yours, use TLS.

The server must be a master: Redis 6.2 or later, or a compatible server. It needs `maxmemory-policy noeviction`, or \
enough memory: a server that evicts keys evicts locks. If the server does not know or does not permit EVAL, nxlock \
compares with WATCH and MULTI, but there is no queue and no fence: every waiter polls. If it does not permit \
channels, or a second connection is not possible, there is a queue, and its waiters poll.";

pub const REACHING: &str = "\
TLS  The server's certificate must come from an authority in --tls-ca, or else from one of the system's, and must be \
issued for the host that the URL names; this check cannot be turned off. nxlock finds the system's authorities by \
SSL_CERT_FILE or SSL_CERT_DIR, or where OpenSSL looks. It presents --tls-cert and --tls-key to a server that asks \
for a client certificate; it cannot use an encrypted key. A certificate that cannot be trusted is an error (69) at \
once.
Sentinel  For each new connection, nxlock asks the sentinels for the master, one after the other until one answers, \
and asks the master whether it is one. If it loses the server, or the server turns out to be a replica, it asks the \
sentinels again, while it waits and while a command runs: after a failover, a holder whose lock was replicated \
continues; a holder whose lock was not replicated is told so, and its command is stopped. The new master serves the \
waiters in the order of their tickets. A sentinel that hangs costs its share of --server-timeout. The password is \
for the master; nxlock sends it to a sentinel only if the sentinel asks for one.
Cluster  A lock and its companion keys share one hash slot, and nxlock finds the slot's node by the redirects of the \
cluster. Waiters subscribe at that node, and move with the slot, in their order. While a slot is being moved, nxlock \
acquires, renews and releases its locks as usual, but their waiters poll and may be overtaken, and `status` shows \
neither the waiters nor the fence; with --setnx-compat, nxlock does not acquire a lock until the slot has arrived. \
Complete every move that has begun (`redis-cli --cluster fix`): if you cancel it with `CLUSTER SETSLOT ... STABLE`, \
the cluster loses the keys that the new node already has. Somebody else can acquire such a lock at once, and its \
holder learns of that at its next renewal: within a second if the new node answered the last one, within ten \
otherwise. `status` without names asks every master. The only database is 0.
Replicas  With --min-replicas N, nxlock asks the master to WAIT until N replicas have a grant; if they do not have \
it within half of --server-timeout or a quarter of the ttl, whichever is shorter, nxlock releases the lock and fails \
(69). This makes the loss of a lock in a failover less likely, not impossible: the replica that is promoted may be \
another than those that have the lock. With `min-replicas-to-write` in its configuration, a master that was cut off \
grants no locks.";

pub const SEVERAL: &str = "\
With three or more servers, the holder of a lock is the claim that has it in more than half of them (Redlock), so \
that the lock survives the loss of the others:

    nxlock -s redis://a -s redis://b -s redis://c run deploy -- ./deploy.sh

Repeat -s, or list several URLs in NXLOCK_SERVER, separated by whitespace or commas. An odd number is best: four \
servers tolerate the loss of one, as three do. nxlock refuses two servers, since neither can outvote the other, and \
also several databases of one server, and a directory. It recognises a server with several addresses by its run_id: \
the server votes at one of the addresses and fails at the others, which is an error (78) if the rest is no majority, \
and which `check` reports. nxlock cannot recognise a server that does not permit INFO.

nxlock asks all servers at once, and a majority of answers decides: if the other servers could make a difference, \
nxlock gives them four times as long as the majority took. It stops waiting for a server that is silent for a \
quarter of a second, and asks that server again each second. Without a majority, nxlock grants and renews no lock, \
and the exit status is 69. A server that lost the lock gets it again at the next renewal, but has no vote on that \
renewal.

There is no queue with several servers, and --no-queue changes nothing: a waiter asks again at random intervals. \
They are at most 50 ms, or fifty times as long as an answer takes, and up to 1s while the waiter sees the same \
holder. It first asks one server, one that has voted for the holder, and the others if the lock is free there, or \
after a second in any case. If several claims come at the same moment and split the votes, the claim with the most \
votes keeps them and asks for the others, and the other claims give theirs up; if no claim gets a majority, all ask \
again, even with -n, for at most --server-timeout. Each attempt has a token of its own, and so its own ID: a late \
request of one attempt cannot undo another.

The fence also rises with every grant: before the command starts, nxlock writes the highest number that the granting \
majority gives to a majority whose votes are still valid.

The servers must be masters on machines of their own, without replicas: after a failover to a replica that does not \
have a lock yet, one server votes twice, and the whole argument is void. The same is true if a server comes back \
empty while a lock is held: let it write with `appendfsync always`, or keep it away after a restart for as long as \
the longest ttl in use. If a server's clock jumps, its vote ends early.

`status` shows `contested` if no majority agrees, and `unknown` if the servers that do not answer could decide; the \
holder it shows is then the claim with the most votes. If a server was slow when the lock was asked for, that server \
alone may show the lock until its ttl ends.";

pub const LOCAL: &str = "\
With `local:`, the locks live in a directory, without a server. Options, answers and exit statuses are the same, so \
that a script moves from one host to a fleet by another URL. All processes that use the same directory on the same \
machine agree.

local:  One directory for each user, /tmp/nxlock-UID, regardless of HOME, TMPDIR and the XDG variables: cron and a \
login shell share it. nxlock creates it with mode 0700. nxlock refuses it if it belongs to another user, is a \
symbolic link or is open to others. A service with a /tmp of its own (PrivateTmp= of systemd) does not share it: \
name a directory.
local:/path/to/directory  This directory; nxlock creates it if it is missing. Every user who may write to it shares \
its locks: its files get its group, and users who may write to the directory may write to them.

nxlock refuses a network file system if it recognises it: two machines would not see each other's locks there. \
Containers of one machine that share the directory share its locks.

If a `run` is killed, its lock is free when its guard has killed the command and everything it started (see \
nxlock(7)). The kernel tells who holds a lock, in every namespace: nxlock and its guard, or a keeper, lock a byte of \
the record (F_OFD_SETLK, fcntl_locking(2)); nxlock refuses a file system without such locks (78). If the keeper of \
`acquire --while-pid` is killed, the lock is free when its process has ended as well, if nxlock can see that. In \
every other case the lock ends with its lease.

nxlock counts leases on the clock that keeps running while the machine sleeps. After a reboot no lock is held, and a \
step of the wall clock has no effect. A waiter sleeps until the one ahead of it has gone; the first in the queue, \
until the lock changes hands. A waiter that was stopped (SIGSTOP) when its turn came costs the others its grace \
period of 1s and up to 2s more.

The files are `KEY.lock`, which has the holder, and `KEY.line`, which has the waiters; `/`, `%` and `~` in a key \
become %2F, %25 and %7E, and a long file name ends in a checksum. The files are text: read them, but do not change \
them. nxlock leaves a file as it is if the file is damaged, is not nxlock's or comes from a newer nxlock, and fails \
(78) with the file's name. When nxlock creates files, it removes those of locks that nobody has used for a day.";

pub const CONFIGURATION: &str = "\
Settings that are the same for every call, or for every host, can be in a file. An option takes its value from the \
first of these that sets it: the command line, the environment, the user's file, the machine's file. Without HOME, \
as under some cron daemons, or if this user may not search the directory HOME, there is only the machine's file. \
--config and NXLOCK_CONFIG name a file that replaces both; it must exist.

The file is TOML. Its keys are the long names of options, without tables; durations and texts are strings, numbers \
and `true` are TOML numbers and booleans. For every verb: server (a string, or an array of them), prefix, \
password-file, tls-ca, tls-cert, tls-key, server-timeout, json, quiet, verbose, color. For `run` and `acquire`: \
wait, no-wait, no-queue, conflict-exit-code, reason, min-replicas, events, setnx-compat, setnx-margin. For `run`: \
ttl, at-least, time-limit, kill-after, on-lost, descendants. A relative path is relative to the file's directory. An \
empty variable counts as unset, except NXLOCK_PREFIX.

    # /etc/nxlock/config.toml
    server = \"redis://nxlock@cache:6379\"
    password-file = \"password\"        # /etc/nxlock/password
    server-timeout = \"5s\"
    wait = \"10m\"
    min-replicas = 1

An option overrides its opposite in a file: -n overrides `wait`, --wait overrides `no-wait`, -v `quiet`, -q \
`verbose`, --export `json`; NXLOCK_SERVER and REDIS_URL override `server`. If a file cannot be read, or has an \
unknown key or an invalid value, every verb fails (78), since the locks might be elsewhere than the file says. \
`nxlock check` shows the settings in force and their origin.

The password is the first line of the file that --password-file names, or else the one in the URL, or else \
REDISCLI_AUTH. If others may read that file, nxlock warns.

nxlock reads a configuration file, a password file and the files of --tls-ca, --tls-cert and --tls-key only if the \
file, and every directory and symbolic link on its path, belong to the effective user or to root, and nobody else \
may write to them: no others, and no group except one whose only member is the owner by /etc/passwd and /etc/group, \
without an ACL. The path begins at /, or for a relative path at the working directory. A directory with the sticky \
bit, such as /tmp, may be writable by anybody. Anything else is an error (78) that names the culprit, so that root \
with another user's HOME, as under `sudo -E`, does not obey that user's file. If a user namespace has no number for \
the owner of /, as in some rootless containers, nxlock reads no file by its path. nxlock does not check files that \
the caller has opened: /dev/stdin, /dev/fd/N, /proc/self/fd/N and `<(...)`, named by --config, --password-file or \
--tls-ca and the like.";

pub const FILES: &str = "\
$XDG_CONFIG_HOME/nxlock/config.toml, ~/.config/nxlock/config.toml  The user's configuration: the second if \
XDG_CONFIG_HOME is not set.
/etc/nxlock/config.toml  The machine's configuration.
/tmp/nxlock-UID  The locks of `local:`.";

pub const KEYS: &str = "\
lock:NAME  The lock: a string whose value is the holder's token, with an expiry. --prefix replaces `lock:`. This key \
alone decides. A program that uses plain `SET lock:NAME VALUE NX PX TTL` on it excludes nxlock and is excluded by \
it; whatever the key's value, the lock is held.
{lock:NAME}:fence  A counter that rises with every grant. It lasts for a day after its last use, or for ten times \
the ttl if that is longer, and then expires.
{lock:NAME}:queue, {lock:NAME}:waiters  The waiters, in order. The keys exist while there are waiters, and expire if \
all waiters die. Losing them costs the waiters time, and never lets two have the lock.
{lock:NAME}:holder  The holder, if --setnx-compat makes the token a bare number: the token, and the other fields \
that a token has. It is valid only for the value that it names, and ends with the lock.
lock:NAME:wake:ID  The channel on which a waiter is woken.

A token is `nx1:`, 26 random characters, and after colons user and host, pid, time and reason; the token of an \
`acquire` without --while-pid ends in `:lease`. Anyone who has the token can release the lock. The first eight of \
the random characters are the ID that `status` shows.";

pub const PERMISSIONS: &str = "\
Permissions that each verb needs on a server with access control lists, if the prefix is `lock:`. A database other \
than 0 needs `+select` as well.

run, acquire, release  `~lock:* ~{lock:*}:* &lock:* +eval +get +set +del +time +pttl +pexpire +zadd +zrem +zrange \
+zrank +zscore +zcard +hget +hset +hdel +publish +pubsub|numsub +subscribe`; and `+type` for --break
renew  `~lock:* ~{lock:*}:* +eval +get +time +pttl +pexpire`; and, to notify the first waiter at once of an expiry \
that moves nearer, `&lock:* +zrange +zrem +hget +hdel +publish +pubsub|numsub`
status  `~lock:* ~{lock:*}:* &lock:* +eval +get +time +pttl +type +zrange +hget +pubsub|numsub`; and `+scan` if no \
name is given
Sentinel  `+role` at the master; at a sentinel with users, `+sentinel|get-master-addr-by-name`
Cluster  `+cluster|slots +cluster|myid +asking`
Several servers  `+info`, to see that no two are the same
--min-replicas  `+wait`
check  All of these; and `+info +config|get` to report everything that endangers locks

A user for all of them:

    ACL SETUSER nxlock on >PASSWORD ~lock:* ~{lock:*}:* resetchannels &lock:*
        +eval +get +set +del +time +pttl +pexpire +type +scan
        +zadd +zrem +zrange +zrank +zscore +zcard +hget +hset +hdel
        +publish +pubsub|numsub +subscribe

This is one line. A user without `+eval` needs `~lock:* +get +set +del +pttl +pexpire +type +watch +multi +exec`. \
SCAN shows a user the name of every key in the database, whatever keys the user may access.";
