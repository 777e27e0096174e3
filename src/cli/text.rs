//! The prose after the options of `--help`: exit statuses and examples. The manual pages have the same as sections, and
//! more (`docs/prose.rs`).
//!
//! No line is longer than 78 columns. `docs.rs` parses a term, two spaces and a text as an item of a list, and lines
//! indented by four more spaces literally.

pub const AFTER_HELP: &str = "\
Exit status:
  0         Done. `run`: the command's own 0
  1         `status`: a lock that was named is free. `check`: warnings
  64        Usage: the command line makes no sense
  69        The server cannot be reached, does not answer in time, or is not
            willing to just now
  70        A failure of nxlock's own
  75        Held by somebody else: not waited for, or not granted in time
            (`run`, `acquire`; -E chooses another number)
  76        Not, or no longer, your lock. `run`: lost while the command ran,
            whatever the command returned
  77        The server refuses: wrong password, no permission
  78        Configuration: no server named, a bad URL or configuration file,
            a key of another type, a damaged local record
  124       `run`: the time limit was reached
  126, 127  `run`: the command cannot be executed, or is not there
  other     `run`: the command's own status; 128+N if signal N killed it

Examples:
  Name the server once, for everything below:
      export NXLOCK_SERVER=redis://cache:6379

  Or, where only processes of this machine are to agree:
      export NXLOCK_SERVER=local:

  Run a deploy that no other deploy overlaps:
      nxlock run deploy -- ./deploy.sh

  See who holds what:
      nxlock status";

pub const RUN_HELP: &str = "\
Exit status:
  64        Usage: the command line makes no sense
  69        The server cannot be reached, does not answer in time, or is not
            willing to just now; nothing was started
  70        A failure of nxlock's own
  75        Held by somebody else: not waited for, or not granted in time;
            nothing was started (-E chooses another number)
  76        The lock was lost while the command ran, whatever the command
            returned
  77        The server refuses: wrong password, no permission
  78        Configuration: no server named, a bad URL or configuration file,
            a key of another type, a damaged local record
  124       The time limit was reached
  126, 127  The command cannot be executed, or is not there
  other     The command's own status; 128+N if signal N killed it

Examples:
  Wait for as long as it takes:
      nxlock run deploy -- ./deploy.sh --env production

  A cron job on many hosts, of which one is to run; no mail from the others:
      nxlock -q run nightly -n -E 0 --at-least 5m -- ./nightly.sh

  Wait for ten minutes at most, and run for no longer than an hour:
      nxlock run report --wait 10m --time-limit 1h -- ./report.sh

  A pipeline, and a word to those who find it locked:
      nxlock run dump --reason 'before 4.2' -c './dump.sh | gzip > dump.gz'

  Beside scripts that still lock by SETNX and a time (OLD LOCKS in nxlock(1)):
      nxlock run --setnx-compat --key lock.foo -- ./deploy.sh";

pub const ACQUIRE_HELP: &str = "\
Exit status:
  0   The lock is yours; its token is on stdout
  64  Usage: the command line makes no sense; there is no process PID, or it
      ended while the lock was waited for
  69  The server cannot be reached, does not answer in time, or is not willing
      to just now
  70  A failure of nxlock's own; the lock was given back
  75  Held by somebody else: not waited for, or not granted in time (-E
      chooses another number)
  77  The server refuses: wrong password, no permission
  78  Configuration: no server named, a bad URL or configuration file,
      a key of another type, a damaged local record

Examples:
  Guard a script from here to its end, whatever ends it:
      eval \"$(nxlock acquire deploy --while-pid $$ --export || echo exit $?)\"
      ./first-half.sh && ./second-half.sh

  Guard a stretch of it, and clean up if the lock is lost meanwhile:
      trap 'rm -rf ./half-done; exit 1' USR1
      eval \"$(nxlock acquire deploy --while-pid $$ --lost-signal USR1 \\
          --export || echo exit $?)\"
      ./deploy.sh
      nxlock release \"$NXLOCK_NAME\"

  Over several steps of a CI job, as GitHub Actions has them: each is a shell
  of its own, and a child of the runner, which lives as long as the job:
      - run: nxlock acquire prod --while-pid $PPID --lost-signal none > token
      - run: ./deploy.sh
      - run: nxlock release prod - < token
        if: always()

  Without a keeper, for as long as is known before:
      vars=$(nxlock acquire deploy --ttl 10m --export) || exit
      eval \"$vars\"
      ./first-half.sh || exit
      nxlock renew \"$NXLOCK_NAME\" --ttl 10m || exit
      ./second-half.sh
      nxlock release \"$NXLOCK_NAME\"

  Keep the token in a file that nobody else can read:
      (umask 077; nxlock acquire import --ttl 1h > import.token)
      nxlock release import - < import.token";

pub const RENEW_HELP: &str = "\
Exit status:
  0   The lock ends a full ttl from now, or later if its holder renews it
  64  Usage: the command line makes no sense
  69  The server cannot be reached, does not answer in time, or is not willing
      to just now
  70  A failure of nxlock's own
  76  Not, or no longer, your lock; nothing was touched
  77  The server refuses: wrong password, no permission
  78  Configuration: no server named, a bad URL or configuration file,
      a damaged local record

Examples:
  Between two steps of a script that set NXLOCK_TOKEN by `acquire --export`:
      nxlock renew deploy --ttl 10m || exit

  With the token from a file:
      nxlock renew import - --ttl 1h < import.token";

pub const RELEASE_HELP: &str = "\
Exit status:
  0   The lock was given back, or broken
  64  Usage: the command line makes no sense, or there is no token
  69  The server cannot be reached, does not answer in time, or is not willing
      to just now
  70  A failure of nxlock's own
  76  Not, or no longer, your lock; with --break, the holder has changed.
      Nothing was touched
  77  The server refuses: wrong password, no permission
  78  Configuration: no server named, a bad URL or configuration file,
      a damaged local record

Examples:
  In a script that set NXLOCK_TOKEN by `acquire --export`:
      nxlock release deploy

  With the token from a file:
      nxlock release import - < import.token

  Break a lock whose holder is dead, by the ID that `status` shows:
      nxlock release deploy --break y4x7ywod";

pub const STATUS_HELP: &str = "\
Exit status:
  0   Every lock that was named is held; or none was named; or it was watched
  1   A lock that was named is free
  64  Usage: the command line makes no sense
  69  The server cannot be reached, does not answer in time, or is not willing
      to just now: it is not known who holds what
  70  A failure of nxlock's own
  77  The server refuses: wrong password, no permission
  78  Configuration: no server named, a bad URL or configuration file,
      a damaged local record

Examples:
  Every lock under the prefix:
      nxlock status

  The same on a screen that is kept up to date:
      nxlock status --watch

  A line of JSON for each change of who holds a lock or waits for it:
      nxlock --json status --watch deploy

  Whether a deploy is under way:
      nxlock -q status deploy > /dev/null && echo 'somebody deploys'

  Holder and reason, for a program:
      nxlock --json status deploy | jq -r '.[0].holder | .host, .reason'

  An old lock by its key:
      nxlock status --key lock.foo";

pub const CHECK_HELP: &str = "\
Exit status:
  0   The server is fit to keep locks
  1   It is, and something there endangers them: see the warnings
  64  Usage: the command line makes no sense
  69  The server cannot be reached, does not answer in time, or is not willing
      to just now
  70  A failure of nxlock's own
  77  The server refuses: wrong password, no permission
  78  Configuration: no server named, a bad URL or configuration file,
      a server that is too old

Examples:
  Whether a host that is new is set up well:
      nxlock check

  What a cron job would be told, with its environment:
      env -i HOME=\"$HOME\" PATH=/usr/bin:/bin nxlock check

  The warnings and obstacles alone, for a program:
      nxlock --json check | jq '.servers[].findings[] | select(.remedy)'";
