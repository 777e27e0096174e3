//! A nested run of the same name would wait for itself.

use serde_json::Value;

use crate::support::turns::{acquire, queue, release};
use crate::support::{Authority, Done, text_of};

fn within_job(authority: &impl Authority, script: &str) -> Done {
    authority.nxlock(["run", "job", "-c", script]).run()
}

const HELD: &str = "\"job\" is already held by this script";

pub fn asking_again_within_a_run_fails_at_once(authority: &impl Authority) {
    for again in [
        "nxlock run job -- echo ran",
        "nxlock run job -w 1h -- echo ran",
        "nxlock run job -n -- echo ran",
        "nxlock run job --no-queue -- echo ran",
        "nxlock acquire job --ttl 1m",
        "nxlock acquire job --ttl 1m -w 1h",
    ] {
        // The script's status is that of its last command.
        within_job(authority, again).exits(75).prints("").says(HELD);
        within_job(authority, &format!("{again}; echo went on")).exits(0).prints("went on\n").says(HELD);
    }
}

pub fn the_status_for_it_can_be_chosen_too(authority: &impl Authority) {
    within_job(authority, "nxlock run job -E 9 -- echo ran").exits(9).prints("").says(HELD);
    within_job(authority, "nxlock acquire job --ttl 1m -E 0").exits(0).prints("").says(HELD);
}

pub fn another_name_within_a_run_works(authority: &impl Authority) {
    let script = "nxlock run other -c 'echo $NXLOCK_NAME' && nxlock acquire third --ttl 1m > token \
                  && nxlock release third - < token && rm token && echo $NXLOCK_NAME";
    let call = authority.nxlock(["run", "job", "-c", script]).in_directory(&authority.directory());
    call.run().exits(0).prints("other\njob\n").says_nothing();
}

pub fn two_levels_down_both_names_are_known(authority: &impl Authority) {
    for again in ["job", "inner"] {
        let script = format!("nxlock run inner -c 'nxlock run {again} -- echo ran'");
        let done = within_job(authority, &script).exits(75).prints("");
        done.says(&format!("\"{again}\" is already held by this script"));
    }
    within_job(authority, "nxlock run inner -c 'nxlock run third -- echo ran'").exits(0).prints("ran\n");
    // After the inner run has ended, the outer run still holds its lock.
    within_job(authority, "nxlock run inner true; nxlock run job -- echo ran").exits(75).prints("").says(HELD);
}

pub fn a_program_is_told_that_it_is_nested(authority: &impl Authority) {
    let done = within_job(authority, "nxlock --json acquire job --ttl 1m").exits(75);
    let document = done.json();
    assert_eq!((&document["outcome"], &document["nested"]), (&Value::from("held"), &Value::from(true)), "{document}");
    let done = within_job(authority, "nxlock --json run job -- echo ran").exits(75).prints("");
    let document: Value = serde_json::from_str(done.stderr.trim()).unwrap();
    assert_eq!(document["nested"], true, "{document}");
    let done = within_job(authority, "nxlock run other -c 'nxlock --json run job -n true'").exits(75);
    let document: Value = serde_json::from_str(done.stderr.trim()).unwrap();
    assert_eq!(document["nested"], true, "{document}");
    // A conflict that is not nested is reported as such.
    authority
        .nxlock(["run", "other", "-c", "nxlock acquire job --ttl 1m >token"])
        .in_directory(&authority.directory())
        .run();
    let document = authority.nxlock(["--json", "acquire", "job", "--ttl", "1m", "-n"]).run().exits(75).json();
    assert_eq!(document["nested"], false, "{document}");
    release(authority, text_of(&authority.directory().join("token")).trim());
}

pub fn what_stands_in_the_variable_is_believed_only_if_it_holds_the_lock(authority: &impl Authority) {
    let token = acquire(authority, "1m");
    let old = authority.nxlock(["acquire", "other", "--ttl", "1m"]).run().token();
    authority.nxlock(["release", "other", &old]).run().exits(0);
    for held in ["", " ", "nonsense", &old, &format!("{old} \u{e9}")] {
        let call = authority.nxlock(["run", "job", "-n", "--", "echo", "ran"]).env("NXLOCK_HELD", held);
        call.run().exits(75).prints("").never_says("already held by this script").says("held by somebody else");
    }
    // A script that ran `acquire` may set the variable itself.
    let call = authority.nxlock(["run", "job", "--", "echo", "ran"]).env("NXLOCK_HELD", format!("{old} {token}"));
    call.run().exits(75).prints("").says(HELD);
    assert!(queue(authority).is_empty(), "nobody stood in line for it");
    release(authority, &token);
}
