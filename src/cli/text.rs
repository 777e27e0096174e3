//! The prose after the options of `--help`: exit statuses and examples. The manual pages have the same as sections, and
//! more (`man/*.in`).
//!
//! No line is longer than 78 columns. `docs.rs` parses a term, two spaces and a text as an item of a list, and takes
//! lines indented by four more spaces verbatim.

pub const AFTER_HELP: &str = "\
Exit status:
  0         Success. `run`: the command itself exited with 0
  1         `status`: a lock named on the command line is free. `check`:
            there are warnings
  2, 3      `status` with --max-age, --max-held or --max-waiting: a limit is
            exceeded; it is not known whether one is
  64        Usage error: the command line is invalid
  69        The server cannot be reached, does not answer in time, or is
            temporarily unavailable
  70        nxlock itself failed
  75        Somebody else holds the lock: nxlock did not wait for it, was not
            granted it in time, or was superseded (`run`, `acquire`; -E sets
            another status); or the run has been done (--unless-done)
  76        The lock is not, or no longer, yours. `run`: the lock was lost
            while the command ran, whatever the command returned
  77        The server refuses access: wrong password, no permission
  78        Configuration error: no server named, a bad URL or configuration
            file, a key of another type, a damaged local record
  124       `run`: the command reached its time limit
  126, 127  `run`: the command cannot be executed, or was not found
  other     `run`: the command's own status; 128+N if signal N killed it

Examples:
  Set the server once, for all examples below:
      export NXLOCK_SERVER=redis://cache:6379

  Or, to lock only between processes of this machine:
      export NXLOCK_SERVER=local:

  Run a deploy that does not overlap any other deploy:
      nxlock run deploy -- ./deploy.sh

  Show who holds which lock:
      nxlock status";

pub const RUN_HELP: &str = "\
Exit status:
  64        Usage error: the command line is invalid
  69        The server cannot be reached, does not answer in time, or is
            temporarily unavailable; the command did not start
  70        nxlock itself failed
  75        Somebody else holds the lock: nxlock did not wait for it, was not
            granted it in time, or was superseded; or the run has been done
            (--unless-done). The command did not start (-E sets another
            status)
  76        The lock was lost while the command ran, whatever the command
            returned
  77        The server refuses access: wrong password, no permission
  78        Configuration error: no server named, a bad URL or configuration
            file, a key of another type, a damaged local record
  124       The command reached its time limit
  126, 127  The command cannot be executed, or was not found
  other     The command's own status; 128+N if signal N killed it

Examples:
  Wait as long as it takes:
      nxlock run deploy -- ./deploy.sh --env production

  Run a cron job on one of many hosts, without mail from the others:
      nxlock -q run nightly -n -E 0 --at-least 5m -- ./nightly.sh

  Wait at most ten minutes, and run at most one hour:
      nxlock run report --wait 10m --time-limit 1h -- ./report.sh

  Run a pipeline, and show others a reason while it holds the lock:
      nxlock run dump --reason 'before 4.2' -c './dump.sh | gzip > dump.gz'

  Run at most four at a time, each with a GPU of its own:
      nxlock run --slots 4 gpu -c 'CUDA_VISIBLE_DEVICES=$NXLOCK_SLOT train'

  Read together with others; the writer leaves --shared out:
      nxlock run --shared report -- ./read-it

  Share a key with old SETNX scripts (see nxlock-setnx(7)):
      nxlock run --setnx-compat --key lock.foo -- ./deploy.sh";

pub const ACQUIRE_HELP: &str = "\
Exit status:
  0   The lock is yours; its token is on stdout
  64  Usage error: the command line is invalid, or process PID does not
      exist, or it ended while nxlock waited for the lock
  69  The server cannot be reached, does not answer in time, or is
      temporarily unavailable
  70  nxlock itself failed; it released the lock
  75  Somebody else holds the lock: nxlock did not wait for it, was not
      granted it in time, or was superseded (-E sets another status)
  77  The server refuses access: wrong password, no permission
  78  Configuration error: no server named, a bad URL or configuration file,
      a key of another type, a damaged local record

Examples:
  Guard a script from this line to its end, whatever ends it:
      eval \"$(nxlock acquire deploy --while-pid $$ --export || echo exit $?)\"
      ./first-half.sh && ./second-half.sh

  Guard part of a script, and clean up if the lock is lost meanwhile:
      trap 'rm -rf ./half-done; exit 1' USR1
      eval \"$(nxlock acquire deploy --while-pid $$ --lost-signal USR1 \\
          --export || echo exit $?)\"
      ./deploy.sh
      nxlock release \"$NXLOCK_NAME\"

  Hold a lock across steps of a CI job, as in GitHub Actions, where each step
  is a shell of its own and a child of the runner, which lives as long as the
  job:
      - run: nxlock acquire prod --while-pid $PPID --lost-signal none > token
      - run: ./deploy.sh
      - run: nxlock release prod - < token
        if: always()

  Hold a lock without a keeper, for a time known in advance:
      vars=$(nxlock acquire deploy --ttl 10m --export) || exit
      eval \"$vars\"
      ./first-half.sh || exit
      nxlock renew \"$NXLOCK_NAME\" --ttl 10m || exit
      ./second-half.sh
      nxlock release \"$NXLOCK_NAME\"

  Keep the token in a file that only you can read:
      (umask 077; nxlock acquire import --ttl 1h > import.token)
      nxlock release import - < import.token";

pub const RENEW_HELP: &str = "\
Exit status:
  0   The lock expires a full ttl from now, or later if its holder renews it
  64  Usage error: the command line is invalid
  69  The server cannot be reached, does not answer in time, or is
      temporarily unavailable
  70  nxlock itself failed
  76  The lock is not, or no longer, yours; nxlock changed nothing
  77  The server refuses access: wrong password, no permission
  78  Configuration error: no server named, a bad URL or configuration file,
      a damaged local record

Examples:
  Between steps of a script that has NXLOCK_TOKEN from `acquire --export`:
      nxlock renew deploy --ttl 10m || exit

  With the token in a file:
      nxlock renew import - --ttl 1h < import.token";

pub const RELEASE_HELP: &str = "\
Exit status:
  0   The lock was released, or broken; with --ask, its holder is asked, or
      with --wait has given up
  64  Usage error: the command line is invalid, or there is no token
  69  The server cannot be reached, does not answer in time, or is
      temporarily unavailable
  70  nxlock itself failed
  75  The holder cannot be asked, or has not given up in time (--ask)
  76  The lock is not, or no longer, yours; with --ask and --break, the
      holder has changed. nxlock changed nothing
  77  The server refuses access: wrong password, no permission
  78  Configuration error: no server named, a bad URL or configuration file,
      a damaged local record

Examples:
  In a script that has NXLOCK_TOKEN from `acquire --export`:
      nxlock release deploy

  With the token in a file:
      nxlock release import - < import.token

  Ask a holder to give up, by the ID that `status` shows, and wait for that:
      nxlock release deploy --ask y4x7ywod --reason 'fix for #77' --wait 1m

  Break the lock of a holder that cannot be asked:
      nxlock release deploy --break y4x7ywod";

pub const STATUS_HELP: &str = "\
Exit status:
  0   All locks named on the command line are held; or none was named; or
      --watch, --history or --metrics was given. With --max-age, --max-held
      or --max-waiting: no limit is exceeded
  1   A lock named on the command line is free
  2   A limit is exceeded
  3   It is not known whether a limit is exceeded, whatever the reason but a
      usage error
  64  Usage error: the command line is invalid
  69  The server cannot be reached, does not answer in time, or is
      temporarily unavailable: who holds the locks is unknown
  70  nxlock itself failed
  77  The server refuses access: wrong password, no permission
  78  Configuration error: no server named, a bad URL or configuration file,
      a damaged local record

Examples:
  List every lock under the prefix:
      nxlock status

  The same as a live view:
      nxlock status --watch

  Print a line of JSON whenever the holder or the waiters of a lock change:
      nxlock --json status --watch deploy

  Test whether a deploy is running:
      nxlock -q status deploy && echo 'somebody deploys'

  Alarm, as a plug-in of Nagios, if a nightly job has not succeeded today:
      nxlock status nightly --max-age 26h

  Print holder and reason for a program:
      nxlock --json status deploy | jq -r '.[0].holder | .host, .reason'

  Show an old lock by its key:
      nxlock status --key lock.foo";

pub const CHECK_HELP: &str = "\
Exit status:
  0   The server is fit to keep locks
  1   The server is fit, but something endangers locks: see the warnings
  64  Usage error: the command line is invalid
  69  The server cannot be reached, does not answer in time, or is
      temporarily unavailable
  70  nxlock itself failed
  77  The server refuses access: wrong password, no permission
  78  Configuration error: no server named, a bad URL or configuration file,
      a server that is too old

Examples:
  Check the setup of a new host:
      nxlock check

  Check what a cron job would find, with its environment:
      env -i HOME=\"$HOME\" PATH=/usr/bin:/bin nxlock check

  Print only warnings and obstacles, for a program:
      nxlock --json check | jq '.servers[].findings[] | select(.remedy)'";
