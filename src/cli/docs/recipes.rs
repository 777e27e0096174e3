//! nxlock-recipes(7): complete recipes for cron, systemd, pipelines and containers, and for moving from another lock.
//! In the form that `prose.rs` describes; `tests/recipes.rs` runs what can be run.

use super::prose::Section;

const ABOUT: &str = "\
Each recipe is complete: copy it, and change the names. All of them find the server by NXLOCK_SERVER; you can set \
`server` in /etc/nxlock/config.toml instead (see CONFIGURATION in nxlock(1)). On a new host, `nxlock check` shows \
whether the host is ready for them.";

const CRON: &str = "\
Install /etc/cron.d/nightly, the same file on every host; one of them runs the job:

    PATH=/usr/local/bin:/usr/bin:/bin
    NXLOCK_SERVER=redis://cache:6379
    0 3 * * *  app  nxlock -q run nightly -n -E 0 --at-least 5m --time-limit 4h -- nightly-import

-n  A host that does not get the lock at once does not wait for it: nothing is left to do tonight.
-E 0  And this counts as success.
-q  nxlock does not report it either, so cron sends no mail. nxlock still reports failures: an unreachable server \
(69), a lost lock (76), the time limit (124).
--at-least 5m  The name stays locked for five minutes, even if the job takes a second: the clock of another host may \
be behind.
--time-limit 4h  nxlock stops a job that hangs before it blocks the job of the next night.

If the server cannot be reached, cron on every host mails this, and no host runs the job:

    nxlock: cannot acquire \"nightly\" at redis://cache:6379: connection refused; see whether it runs, and whether the address is right

If a job must run even then, do not use a lock for it.";

const SYSTEMD: &str = "\
A job, as nightly.service on every host:

    [Unit]
    Description=Nightly import, on one host of the fleet
    Wants=network-online.target
    After=network-online.target

    [Service]
    Type=oneshot
    Environment=NXLOCK_SERVER=redis://cache:6379
    ExecStart=/usr/bin/nxlock run nightly -n --at-least 5m -- /usr/local/bin/nightly-import
    SuccessExitStatus=75 143 SIGTERM
    KillMode=mixed
    TimeoutStopSec=30s

With nightly.timer next to it:

    [Unit]
    Description=Nightly import

    [Timer]
    OnCalendar=*-*-* 03:00:00
    AccuracySec=1s

    [Install]
    WantedBy=timers.target

With `KillMode=mixed`, systemd leaves it to nxlock to stop the command and to release the lock after that; \
TimeoutStopSec must be longer than --kill-after (5s). After `systemctl stop`, nxlock exits with 143 (128 + 15) if \
its command died of the TERM that nxlock forwarded, and dies of TERM itself if no command runs yet. \
SuccessExitStatus= counts both, and a busy lock (75), as success. Do not set Persistent=: a host that was off at \
three would run the job when it starts. Do not set RandomizedDelaySec beyond --at-least.

A daemon of which one instance runs, and which another host takes over when that instance dies, as worker.service on \
every host:

    [Service]
    Environment=NXLOCK_SERVER=redis://cache:6379
    ExecStart=/usr/bin/nxlock run worker --ttl 10s -- /usr/local/bin/worker
    Restart=always
    RestartSec=1s
    SuccessExitStatus=143
    KillMode=mixed

    [Install]
    WantedBy=multi-user.target

All hosts wait in the queue, and `nxlock status worker` shows it. After a crash of the holder's host, the next host \
gets the lock when the lease ends, after 10s at most; after `systemctl stop`, it gets the lock at once, and the unit \
has not failed: nxlock exits with 143 if the worker died of TERM, and dies of TERM itself while it waits in the \
queue, which systemd counts as a clean exit of a daemon. A host that loses the lock stops its worker (76), and joins \
the end of the queue a second later. The journal has:

    nxlock[4711]: nxlock: \"worker\" is lost: it could not be renewed in time: cannot renew \"worker\" ...; stopping the command";

const GITHUB: &str = "\
One step under a lock; the pipeline waits for its turn:

    jobs:
      deploy:
        runs-on: self-hosted
        env:
          NXLOCK_SERVER: ${{ secrets.NXLOCK_SERVER }}
        steps:
          - uses: actions/checkout@v4
          - run: exec nxlock run production --wait 30m --reason \"run $GITHUB_RUN_ID\" -- ./deploy.sh

With `exec`, nxlock becomes the step's own process: when a job is cancelled, the runner signals only that process, \
by INT and soon TERM, and kills the rest. nxlock then stops the command and releases the lock.

A lock across several steps, released whatever happens to them:

          - run: |
              token=$(nxlock acquire production --ttl 1h --wait 30m --reason \"run $GITHUB_RUN_ID\")
              echo \"::add-mask::$token\"
              echo \"NXLOCK_TOKEN=$token\" >> \"$GITHUB_ENV\"
          - run: ./migrate.sh
          - run: ./deploy.sh
          - if: always() && env.NXLOCK_TOKEN != ''
            run: nxlock release production

Nothing renews such a lock, and nothing stops a step when the lock ends: the ttl must be longer than all steps \
together, and if a runner is lost, the lock keeps others out for as long. `--while-pid \"$PPID\" --lost-signal none` \
in place of --ttl holds the lock for as long as the runner's own process lives: see KEEPER in nxlock-acquire(1). One \
step with `nxlock run` has neither problem, and is stopped if the lock is lost. A step that waits for its turn says \
so in the log from time to time:

    nxlock: waiting for \"production\": held by runner@ci-2, pid 4711 for 2m 10s, lease 24s, we are next; waited 1m 30s

GitHub's own `concurrency:` does the same within one repository, but cancels all waiting runs except the newest.";

const GITLAB: &str = "\
With NXLOCK_SERVER as a masked variable of the project:

    deploy:
      script:
        - nxlock run production --wait 30m --reason \"job $CI_JOB_ID\" -- ./deploy.sh

Across several lines of `script`, which share a shell with before_script, but not with after_script:

    deploy:
      before_script:
        - (umask 077; nxlock acquire production --ttl 1h --wait 30m > \"$CI_PROJECT_DIR.token\")
      script:
        - ./migrate.sh
        - ./deploy.sh
      after_script:
        - nxlock release production - < \"$CI_PROJECT_DIR.token\"

`resource_group:` does the same within one project.";

const JENKINS: &str = "\
With the URL as a secret text with the ID nxlock-server:

    pipeline {
      agent any
      environment { NXLOCK_SERVER = credentials('nxlock-server') }
      stages {
        stage('Deploy') {
          steps {
            sh 'nxlock run production --wait 30m --reason \"$BUILD_TAG\" -- ./deploy.sh'
          }
        }
      }
    }

If the build is aborted, Jenkins sends TERM to nxlock and to all processes that it runs; nxlock stops the rest, and \
releases the lock.";

const KUBERNETES: &str = "\
`concurrencyPolicy: Forbid` keeps a CronJob from overlapping itself in one cluster. Across clusters, or together \
with jobs elsewhere:

    apiVersion: batch/v1
    kind: CronJob
    metadata:
      name: nightly
    spec:
      schedule: \"0 3 * * *\"
      concurrencyPolicy: Forbid
      jobTemplate:
        spec:
          backoffLimit: 0
          template:
            spec:
              restartPolicy: Never
              terminationGracePeriodSeconds: 30
              containers:
                - name: import
                  image: registry.example/import
                  command: [nxlock, run, nightly, -n, -E, \"0\", --at-least, 5m, --, nightly-import]
                  env:
                    - name: NXLOCK_SERVER
                      valueFrom:
                        secretKeyRef: {name: nxlock, key: server}

The binary is static, so one COPY adds it to any image. nxlock may be the container's first process: it reaps the \
processes that its command leaves, and stops the command on TERM. terminationGracePeriodSeconds must be longer than \
--kill-after (5s).";

const FLOCK: &str = "\
With `-s local:`, only the name of the lock changes; with a server in its place, the same lines work for a fleet.

`flock /run/lock/x command`  `nxlock run x -- command`
`flock -n ... command`  `nxlock run x -n -- command`, which exits with 75. `-n -E 1` is the equivalent of flock.
`flock -w 10 ... command`  `nxlock run x --wait 10s -- command`
`flock /run/lock/x -c 'a | b'`  `nxlock run x -c 'a | b'`
`exec 9> /run/lock/x; flock 9`  `eval \"$(nxlock acquire x --while-pid $$ --export || echo exit $?)\"`
`flock -u 9`  `nxlock release x`
`flock -o`  Always so: nxlock holds the lock, and the command does not inherit it.
`flock -s`  nxlock has no shared locks.

The differences: TERM to nxlock stops the command, while TERM to flock ends flock and leaves the command running \
with the lock. Processes that the command leaves running do not keep the lock; with --descendants wait they do. \
Waiters are served in their order.

While some hosts still use flock, use both, flock inside, and drop flock when all hosts have changed:

    nxlock run x -- flock /run/lock/x command";

const CRONLOCK: &str = "\
Instead of

    CRONLOCK_HOST=cache CRONLOCK_KEY=nightly CRONLOCK_GRACE=40 CRONLOCK_TIMEOUT=3600 cronlock nightly-import

write

    NXLOCK_SERVER=redis://cache nxlock run nightly -n -E 200 --at-least 40s --time-limit 1h -- nightly-import

CRONLOCK_GRACE  --at-least. CRONLOCK_GRACE defaults to 40s; --at-least has no default.
CRONLOCK_RELEASE  Not needed. nxlock renews a lock while the command runs; the lock of a host that died ends after \
30s (--ttl), not after a day.
CRONLOCK_TIMEOUT  --time-limit, which stops everything that the command has started.
Exit statuses  200 (busy) becomes 75, or the value of -E; 201 (no server) becomes 69; 202 (time limit) becomes 124.
CRONLOCK_KEY  CRONLOCK_KEY defaults to a digest of the command line. An nxlock lock always has a name.

The two do not see each other's locks: change all hosts between two runs.";

const CONSUL: &str = "\
Instead of

    consul lock -try=10s -child-exit-code -shell=false service/worker ./worker
    etcdctl lock worker ./worker

write

    nxlock run worker --wait 10s -- ./worker
    nxlock run worker -- ./worker

nxlock always passes the command's exit status on, and uses no shell unless -c asks for one. If the lock is lost, \
nxlock stops the command and exits with 76. CONSUL_LOCK_HELD and ETCD_LOCK_KEY become NXLOCK_NAME and NXLOCK_KEY, \
ETCD_LOCK_REV becomes NXLOCK_FENCE. There is no `-n`: a lock has at most one holder. A lock that must survive the \
loss of one server needs three: SEVERAL SERVERS in nxlock(1).";

const REDIS_CLI: &str = "\
Instead of

    token=$(openssl rand -hex 16)
    [ \"$(redis-cli set deploy-lock \"$token\" NX PX 600000)\" = OK ] || exit 1
    ./deploy.sh
    redis-cli eval \"$COMPARE_AND_DELETE\" 1 deploy-lock \"$token\"

write

    nxlock run --key deploy-lock -n -- ./deploy.sh

With --key, both use the same key, byte for byte, so that old and new scripts exclude each other while both exist; \
nxlock-status(1) shows the value of an old one as `foreign`. Nothing can protect the key from a script that deletes \
without comparing, or writes without NX: nxlock notices at its next renewal that its lock is lost. For scripts that \
lock by SETNX and a time, see OLD LOCKS in nxlock(1).

When no old script is left, drop --key, and the name gets the usual prefix:

    nxlock run deploy -n -- ./deploy.sh";

pub const RECIPES: [Section; 11] = [
    ("DESCRIPTION", ABOUT),
    ("CRON ON SEVERAL HOSTS", CRON),
    ("SYSTEMD", SYSTEMD),
    ("GITHUB ACTIONS", GITHUB),
    ("GITLAB CI", GITLAB),
    ("JENKINS", JENKINS),
    ("KUBERNETES", KUBERNETES),
    ("FROM FLOCK", FLOCK),
    ("FROM CRONLOCK", CRONLOCK),
    ("FROM CONSUL LOCK AND ETCDCTL LOCK", CONSUL),
    ("FROM REDIS-CLI", REDIS_CLI),
];
