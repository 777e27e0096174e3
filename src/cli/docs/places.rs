//! What the manual says of the places where locks live, in the form that `prose.rs` describes.

pub const SERVERS: &str = "\
Where the locks live is a URL, given by --server, the environment or a configuration file. There is no default: two hosts \
that each lock in a place of their own would both run.

redis://[[user]:password@]host[:port][/db]  A server over TCP. The port is 6379 and the database 0 \
unless told otherwise. A user's password may come from elsewhere: see CONFIGURATION.
rediss://...  The same by TLS.
unix:///path[?db=N][&user=U][&pass=P]  The same by a Unix socket. `redis+unix:` is another name of it.
redis+sentinel://[[user]:password@]host[:port][,host[:port]].../MASTER[/db]  The master that these sentinels name. The port is 26379 \
unless told otherwise. rediss+sentinel: speaks to them and to the master by TLS.
redis+cluster://[[user]:password@]host[:port][,host[:port]]...  A Redis Cluster, of which these are some nodes. rediss+cluster: is by TLS.
local:, local:/path/to/directory  This machine alone, without a server: see LOCAL LOCKS.
three or more servers  Masters that know nothing of each other: see SEVERAL SERVERS.

`redis:` may be written `valkey:`. In a password every character but letters, digits and \
`-._~` is best written as `%` and two hexadecimal digits. On a network that is not yours, use TLS.

The server must be a master: Redis 6.2 or later, or one that behaves like it. It needs `maxmemory-policy noeviction`, or enough \
memory: a server that evicts keys evicts locks. Where EVAL is not known or not permitted, nxlock compares by WATCH \
and MULTI, but there is no queue and no fence: every waiter polls. Where \
channels are not permitted, or no second connection is possible, there is a queue, and its waiters poll.";

pub const REACHING: &str = "\
TLS  The server's certificate must be of an authority in --tls-ca, or else among the system's, and be made out to the host that the URL names; there is no \
way around that. The system's are where SSL_CERT_FILE or SSL_CERT_DIR says, or where OpenSSL looks. --tls-cert and --tls-key are shown to a server that \
asks for a client's certificate; an encrypted key is of no use. What cannot be trusted is an error (69) at once.
Sentinel  With each new connection the sentinels are asked for the master, one after the other until one answers, and the master is asked whether it is one. \
A server that is lost, or that turns out to be a replica, is asked for anew, while waiting and while a command runs: after a failover a holder whose lock was \
replicated goes on, and one whose lock was not is told so, and its command stopped. Who waits is served by the new master, in the order of their \
tickets. One sentinel that hangs costs its share of --server-timeout. The password is for the master; a sentinel is given it only if it asks for one.
Cluster  A lock and what belongs to it share one slot, and the node that has it is found by its redirections. Waiters listen to that node, and move with the slot, in their order. While a slot is being \
moved, its locks are taken, renewed and given back as ever, but who waits for one polls and may be overtaken, and `status` tells neither who waits nor \
the fence; with --setnx-compat a lock is not taken until the slot has arrived. Bring a move that has begun to its end (`redis-cli --cluster fix`): \
calling it off with `CLUSTER SETSLOT ... STABLE` makes the cluster lose the keys that the new node already has. A lock among them can be taken by somebody \
else at once, and its holder learns of that at its next renewal: within a second if the last one was answered by the new node, within ten otherwise. \
`status` without names asks every master. There are no databases but 0.
Replicas  --min-replicas N asks the master to WAIT until N replicas have a grant; if they have not within half of --server-timeout (and a quarter of the ttl), the lock is given back, \
and it is an error (69). It makes a lock that is lost in a failover less likely, and not impossible: a replica that has it need not be the one that is promoted. \
`min-replicas-to-write` in the server's configuration stops a master that was cut off from granting any.";

pub const SEVERAL: &str = "\
With three or more servers a lock is held by who has it in more than half of them (Redlock), so that it outlives the loss of the rest:

    nxlock -s redis://a -s redis://b -s redis://c run deploy -- ./deploy.sh

-s is repeated, or NXLOCK_SERVER has several URLs with white space or commas between them. An odd number is best: of four, one may be away, as of \
three. Two are refused, since neither can outvote the other; so are several databases of one server, and a directory. A server that is reached at several addresses is known by its \
run_id, has the vote of one of them, and fails at the others: an error (78) where the rest is no majority, and told by `check`. One that does not permit INFO cannot be \
told from another.

All are asked at once, and a majority that answers decides: the others are given four times as long as it took, where they could make a difference. Who is silent \
for a quarter of a second is not waited for any more, and asked again each second. With a majority away no lock is granted, none is renewed, and the exit status is 69. \
A server that lost the lock gets it again at the next renewal, but has no vote on that renewal.

There is no queue with several servers, and --no-queue means nothing more: who waits asks again at random moments. They are 50 ms apart at most, or fifty times as long as an answer takes, and \
up to 1s while the same holder is seen. One server is asked first, one that has voted for the holder, and the others if it is free there, or after a second in any case. \
Of those who come at the same moment and split the votes, who has most of them keeps them and asks for the others, and the others give theirs up; if nobody gets a majority, \
they ask again, also with -n, for --server-timeout at most. Each attempt has a token of its own, and so an ID: what comes late of one cannot undo another.

The fence rises with every grant here as well: the highest number that the granting majority gives is written to a majority, where the votes still stand, before the command starts.

The servers must be masters on machines of their own, without replicas: a failover to a replica that has not heard of a lock counts as a vote twice, and voids \
the whole argument. So does a server that comes back empty while a lock is held: let it write with `appendfsync always`, or keep \
it away after a restart for as long as the longest ttl in use. A server's clock that jumps ends its vote early.

`status` shows `contested` where no majority agrees, and `unknown` where those that do not answer could decide; the holder is \
then whoever has the most votes. If a server was slow when the lock was asked for, that server alone may show the lock until \
its ttl ends.";

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

A `run` that was killed frees its lock when its guard has killed the command and all that it started (see nxlock(7)). The kernel tells who holds a lock, \
in whatever namespace: nxlock and its guard, or a keeper, have a byte of the record locked (F_OFD_SETLK, fcntl_locking(2)); a file system that has \
no such locks is refused (78). If the keeper of `acquire --while-pid` was killed, the lock stays until its process has ended as well, if that can be seen. \
In every other case the lock ends with its lease.

Leases are counted on the clock that goes on while the machine sleeps. After a reboot nothing is held, and a step of the wall \
clock means nothing. A waiter sleeps until the one ahead of it has gone; the first in line until the lock changes hands. One that \
was stopped (SIGSTOP) when it was its turn costs the others its grace of 1s and up to 2s more.

The files are `KEY.lock`, who has the lock, and `KEY.line`, who waits; `/`, `%` and `~` in a key are written as %2F, %25 and %7E, and \
a long one ends in a checksum. They are text, to be read and not to be changed. What is damaged, is not nxlock's or comes from a newer \
nxlock is left as it is, and is an error (78) that names the file. Files of locks that nobody has used for a day are removed when others \
are made.";

pub const CONFIGURATION: &str = "\
What is the same for every call, or for every host, can stand in a file. Of the command line, the environment, the user's \
file and the machine's, the first that says something of an option is heard. Where there is no HOME, as under some cron daemons, and where \
HOME is a directory that this user may not look into, there is only the machine's. --config and NXLOCK_CONFIG name a file \
that is read in the place of both, and must be there.

The file is TOML. Its keys are the long names of options, without tables; durations and texts are strings, numbers and `true` are written as \
such. For every verb: server (a string, or an array of them), prefix, password-file, tls-ca, tls-cert, tls-key, server-timeout, json, quiet, \
verbose, color. For `run` and `acquire`: wait, no-wait, no-queue, conflict-exit-code, reason, min-replicas, events, setnx-compat, setnx-margin. For `run`: ttl, at-least, \
time-limit, kill-after, on-lost, descendants. A relative path is relative to the file's directory. A variable that is empty counts as \
unset, except NXLOCK_PREFIX.

    # /etc/nxlock/config.toml
    server = \"redis://nxlock@cache:6379\"
    password-file = \"password\"        # /etc/nxlock/password
    server-timeout = \"5s\"
    wait = \"10m\"
    min-replicas = 1

An option that was given says no to its opposite in a file: -n to `wait`, --wait to `no-wait`, -v to `quiet`, -q to `verbose`, \
--export to `json`; NXLOCK_SERVER and REDIS_URL to `server`. A file that cannot be read, a key that is not known and a value \
that is not admitted are errors (78) of every verb, since locks might be somewhere else than it says. `nxlock check` shows what is in force, \
and where from.

The password is the first line of the file that --password-file names, or else what the URL has, or else REDISCLI_AUTH. \
If others may read that file, there is a warning.

A configuration, a password file and the files of --tls-ca, --tls-cert and --tls-key are read only if they, and every directory \
and symbolic link on the way to them, belong to the effective user or to root, and nobody else may write to them: no others, and no group but one in which the owner is alone by /etc/passwd and /etc/group, without an ACL. \
The way begins at /, for a relative path at the working directory. A directory with the sticky bit, as /tmp, may be anybody's to write to. Anything else is an error (78) that names what it is, so that root with the HOME of another user, as under \
`sudo -E`, does not do what that user's file says. Where a user namespace has no number for the owner of /, as in some containers without root, no file is read by its path. \
What the caller has opened is not judged: /dev/stdin, /dev/fd/N, /proc/self/fd/N and `<(...)`, named by --config, --password-file or --tls-ca and the like.";

pub const FILES: &str = "\
$XDG_CONFIG_HOME/nxlock/config.toml, ~/.config/nxlock/config.toml  The user's configuration: the second where XDG_CONFIG_HOME is not set.
/etc/nxlock/config.toml  The machine's configuration.
/tmp/nxlock-UID  The locks of `local:`.";

pub const KEYS: &str = "\
lock:NAME  The lock: a string whose value is the holder's token, with an expiry. --prefix replaces \
`lock:`. The key alone decides. A program that uses plain `SET lock:NAME VALUE NX PX TTL` on it excludes \
nxlock and is excluded by it; whatever value the key has, it is held.
{lock:NAME}:fence  A counter that rises with every grant. It lasts for a day after its last use, or for \
ten times the ttl if that is longer, and then ends by itself.
{lock:NAME}:queue, {lock:NAME}:waiters  Who waits, in order. They are there while somebody does, and end by themselves \
if all waiters die. Losing them costs the waiters time, and never lets two have the lock.
{lock:NAME}:holder  Who holds it, where --setnx-compat makes the token a bare number: the token, and what else a token tells. It is good only for the value that it names, and ends with the lock.
lock:NAME:wake:ID  The channel on which a waiter is called.

A token is `nx1:`, 26 random characters, and behind colons user and host, pid, time and reason; the token of an `acquire` \
without --while-pid ends in `:lease`. Whoever has it can release the lock. The first eight of the random characters are the ID that `status` shows.";

pub const PERMISSIONS: &str = "\
What each verb asks of a server with access control lists, if the prefix is `lock:`. A database other than 0 needs `+select` as well.

run, acquire, release  `~lock:* ~{lock:*}:* &lock:* +eval +get +set +del +time +pttl +pexpire +zadd +zrem +zrange +zrank +zscore \
+zcard +hget +hset +hdel +publish +pubsub|numsub +subscribe`; and `+type` for --break
renew  `~lock:* ~{lock:*}:* +eval +get +time +pttl +pexpire`; and, to tell the first in line at once of an expiry that moves nearer, \
`&lock:* +zrange +zrem +hget +hdel +publish +pubsub|numsub`
status  `~lock:* ~{lock:*}:* &lock:* +eval +get +time +pttl +type +zrange +hget +pubsub|numsub`; and `+scan` if no name is given
Sentinel  `+role` at the master; at a sentinel with users, `+sentinel|get-master-addr-by-name`
Cluster  `+cluster|slots +cluster|myid +asking`
Several servers  `+info`, to see that they are not one
--min-replicas  `+wait`
check  All of these; and `+info +config|get` to be told of all that endangers locks

A user for all of them:

    ACL SETUSER nxlock on >PASSWORD ~lock:* ~{lock:*}:* resetchannels &lock:*
        +eval +get +set +del +time +pttl +pexpire +type +scan
        +zadd +zrem +zrange +zrank +zscore +zcard +hget +hset +hdel
        +publish +pubsub|numsub +subscribe

This is one line. A user without `+eval` needs `~lock:* +get +set +del +pttl +pexpire +type +watch +multi +exec`. SCAN shows a \
user every key's name in the database, whatever keys it may use.";
