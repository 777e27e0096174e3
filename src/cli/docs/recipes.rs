//! nxlock-recipes(7): whole lines for cron, systemd, pipelines and containers, and for those who come from another
//! lock. In the form that `prose.rs` describes; `tests/recipes.rs` runs what can be run.

use super::prose::Section;

const ABOUT: &str = "\
Each recipe is complete: copy it, and change the names. All of them find the server by NXLOCK_SERVER, which may as well stand as `server` \
in /etc/nxlock/config.toml (see CONFIGURATION in nxlock(1)). `nxlock check` on a new host tells whether it is fit for them.";

const CRON: &str = "\
/etc/cron.d/nightly, the same file on every host; one of them runs the job:

    PATH=/usr/local/bin:/usr/bin:/bin
    NXLOCK_SERVER=redis://cache:6379
    0 3 * * *  app  nxlock -q run nightly -n -E 0 --at-least 5m --time-limit 4h -- nightly-import

-n  Who does not get the lock at once does not wait for it: there is nothing left to do tonight.
-E 0  And that is a success.
-q  It is not told either, and so there is no mail. What went wrong is: an unreachable server (69), a lost lock (76), the time limit (124).
--at-least 5m  The name stays locked for five minutes, even if the job takes a second: the clock of another host may be behind.
--time-limit 4h  A job that hangs is stopped before it stands in the way of the next night's.

If the server cannot be reached, every host mails this, and none runs:

    nxlock: cannot acquire \"nightly\" at redis://cache:6379: connection refused; see whether it runs, and whether the address is right

A job that has to run even then is not one for a lock.";

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

With nightly.timer beside it:

    [Unit]
    Description=Nightly import

    [Timer]
    OnCalendar=*-*-* 03:00:00
    AccuracySec=1s

    [Install]
    WantedBy=timers.target

`KillMode=mixed` leaves it to nxlock to stop what it runs, and to give the lock back after that; TimeoutStopSec has to be longer than \
--kill-after (5s). After `systemctl stop`, nxlock exits with 143 (128 + 15) if its command died of the TERM that nxlock passed on, and dies of TERM \
itself if no command runs yet. SuccessExitStatus= counts both, and a busy lock (75), as success. No Persistent=: a host that was off at three would run the job when it starts. No RandomizedDelaySec beyond --at-least.

A daemon of which one runs, and another host takes over when that one dies, as worker.service on every host:

    [Service]
    Environment=NXLOCK_SERVER=redis://cache:6379
    ExecStart=/usr/bin/nxlock run worker --ttl 10s -- /usr/local/bin/worker
    Restart=always
    RestartSec=1s
    SuccessExitStatus=143
    KillMode=mixed

    [Install]
    WantedBy=multi-user.target

All hosts wait in line, and `nxlock status worker` shows it. After a crash of its host the next has the lock when the lease ends, after 10s \
at most; after `systemctl stop` at once, and the unit has not failed: nxlock exits with 143 if the worker died of TERM, and dies of TERM itself while it waits in line, \
which systemd counts as a clean exit of a daemon. Whoever loses the lock is stopped (76), and stands at the end of the line again a second later. The journal has:

    nxlock[4711]: nxlock: \"worker\" is lost: it could not be renewed in time: cannot renew \"worker\" ...; stopping the command";

const GITHUB: &str = "\
One step under a lock; a pipeline that waits for its turn:

    jobs:
      deploy:
        runs-on: self-hosted
        env:
          NXLOCK_SERVER: ${{ secrets.NXLOCK_SERVER }}
        steps:
          - uses: actions/checkout@v4
          - run: exec nxlock run production --wait 30m --reason \"run $GITHUB_RUN_ID\" -- ./deploy.sh

With `exec`, nxlock is the step's own process: a runner tells that alone when a job is cancelled, by INT and soon TERM, and kills the rest. \
Then the command is stopped, and the lock given back.

A lock over several steps, given back whatever becomes of them:

          - run: |
              token=$(nxlock acquire production --ttl 1h --wait 30m --reason \"run $GITHUB_RUN_ID\")
              echo \"::add-mask::$token\"
              echo \"NXLOCK_TOKEN=$token\" >> \"$GITHUB_ENV\"
          - run: ./migrate.sh
          - run: ./deploy.sh
          - if: always() && env.NXLOCK_TOKEN != ''
            run: nxlock release production

Nothing renews such a lock, and nothing stops a step when it ends: the ttl has to be longer than all steps together, and a runner that is \
lost keeps others out for as long. `--while-pid \"$PPID\" --lost-signal none` in place of --ttl keeps it for as long as the runner's own process lives: see KEEPER in \
nxlock-acquire(1). One step with `nxlock run` has neither problem, and is stopped if the lock is lost. What waits for its turn says so in the log, now and then:

    nxlock: waiting for \"production\": held by runner@ci-2, pid 4711 for 2m 10s, lease 24s, we are next; waited 1m 30s

GitHub's own `concurrency:` does the same within one repository, but cancels all waiting runs but the newest.";

const GITLAB: &str = "\
With NXLOCK_SERVER among the project's variables, masked:

    deploy:
      script:
        - nxlock run production --wait 30m --reason \"job $CI_JOB_ID\" -- ./deploy.sh

Over several lines of `script`, which share a shell with before_script, but not with after_script:

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
With the URL as a secret text of the name nxlock-server:

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

An abort sends TERM to nxlock and to all that it runs; it stops what is left, and gives the lock back.";

const KUBERNETES: &str = "\
`concurrencyPolicy: Forbid` keeps a CronJob from overlapping itself in one cluster. Between clusters, or with what runs elsewhere:

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

The binary is static, so one COPY puts it into any image. It may be the container's first process: it reaps what its command leaves, and stops \
it on TERM. terminationGracePeriodSeconds has to be longer than --kill-after (5s).";

const FLOCK: &str = "\
With `-s local:` nothing but the name of the lock changes; with a server in its place the same lines hold for a fleet.

`flock /run/lock/x command`  `nxlock run x -- command`
`flock -n ... command`  `nxlock run x -n -- command`, which ends with 75. `-n -E 1` is what flock does.
`flock -w 10 ... command`  `nxlock run x --wait 10s -- command`
`flock /run/lock/x -c 'a | b'`  `nxlock run x -c 'a | b'`
`exec 9> /run/lock/x; flock 9`  `eval \"$(nxlock acquire x --while-pid $$ --export || echo exit $?)\"`
`flock -u 9`  `nxlock release x`
`flock -o`  Is always so: the lock is nxlock's, and the command does not inherit it.
`flock -s`  There are no shared locks.

What is different: TERM to nxlock stops the command, where flock ends and leaves it running with the lock. What the command leaves running \
does not keep the lock; with --descendants wait it does. Who waits, waits in line.

While some hosts still use flock, have both, flock inside, and drop it when all have changed:

    nxlock run x -- flock /run/lock/x command";

const CRONLOCK: &str = "\
What was

    CRONLOCK_HOST=cache CRONLOCK_KEY=nightly CRONLOCK_GRACE=40 CRONLOCK_TIMEOUT=3600 cronlock nightly-import

is now

    NXLOCK_SERVER=redis://cache nxlock run nightly -n -E 200 --at-least 40s --time-limit 1h -- nightly-import

CRONLOCK_GRACE  --at-least. Its default is 40s; there is none here.
CRONLOCK_RELEASE  Not needed. A lock is renewed while the command runs, and ends 30s after a host that died (--ttl), not after a day.
CRONLOCK_TIMEOUT  --time-limit, which stops all that the command has started.
Exit statuses  200 (busy) is 75, or what -E says; 201 (no server) is 69; 202 (time limit) is 124.
CRONLOCK_KEY  Its default is a digest of the command line. Here every lock has a name.

The two do not see each other: change all hosts between two runs.";

const CONSUL: &str = "\
What was

    consul lock -try=10s -child-exit-code -shell=false service/worker ./worker
    etcdctl lock worker ./worker

is now

    nxlock run worker --wait 10s -- ./worker
    nxlock run worker -- ./worker

The command's exit status is always handed on, and no shell is used unless -c asks for one. A lock that is lost ends in 76, after the \
command was stopped. CONSUL_LOCK_HELD and ETCD_LOCK_KEY are NXLOCK_NAME and NXLOCK_KEY, ETCD_LOCK_REV is NXLOCK_FENCE. There is no `-n`: no more than one holder. \
A lock whose loss of one server must not matter needs three: SEVERAL SERVERS in nxlock(1).";

const REDIS_CLI: &str = "\
What was

    token=$(openssl rand -hex 16)
    [ \"$(redis-cli set deploy-lock \"$token\" NX PX 600000)\" = OK ] || exit 1
    ./deploy.sh
    redis-cli eval \"$COMPARE_AND_DELETE\" 1 deploy-lock \"$token\"

is now

    nxlock run --key deploy-lock -n -- ./deploy.sh

By --key it is the same key, byte for byte, so that old and new scripts exclude each other while they live side by side; nxlock-status(1) shows the \
value of an old one as `foreign`. Of a script that deletes without comparing, or writes without NX, nothing can protect the key: nxlock notices at its next \
renewal that its lock is lost. Scripts that lock by SETNX and a time: OLD LOCKS in nxlock(1).

Where no old script is left, drop --key, and the name gets the usual prefix:

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
