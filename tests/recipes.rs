//! The recipes of nxlock-recipes(7) do what it says: the tests take their lines from the page and run them.

use std::fs;
use std::path::Path;
use std::process::Command;

use nix::sys::signal::Signal;

use crate::alarms;
use crate::readme::{put, ran, shell, workplace};
use crate::support::turns::queue_of;
use crate::support::{Nxlock, Redis, Running, eventually, may_unshare, name_of, program, send};

/// Returns the verbatim blocks under a heading of the page.
pub fn under(heading: &str) -> Vec<String> {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("man/nxlock-recipes.7");
    let page = fs::read_to_string(page).expect("there is a page");
    let section = page.split(".SH ").find(|section| section.trim_start_matches('"').starts_with(heading));
    // Adjacent blocks count as one, with an empty line in between.
    let section = section.expect("there is a section").replace(".EE\n.RE\n.PP\n.RS 4\n.EX\n", "\n");
    let blocks = section.split(".EX\n").skip(1);
    let unescaped = |text: &str| text.replace("\\-", "-").replace("\\(aq", "'").replace("\\&", "").replace("\\e", "\\");
    blocks.filter_map(|block| Some(unescaped(block.split_once(".EE\n")?.0))).collect()
}

/// Returns what follows a word at the beginning of a line.
#[track_caller]
fn after<'a>(block: &'a str, word: &str) -> &'a str {
    block.lines().find_map(|line| line.trim_start().strip_prefix(word)).unwrap_or_else(|| panic!("{word}: {block}"))
}

/// Returns the lines that are indented deeper after a line, as YAML nests them.
fn nested(block: &str, key: &str) -> String {
    let depth = |line: &str| line.len() - line.trim_start().len();
    let mut lines = block.lines().skip_while(|line| line.trim() != key);
    let above = lines.next().map_or(0, depth);
    lines.take_while(|line| depth(line) > above).map(|line| format!("{}\n", line.trim_start())).collect()
}

#[test]
fn a_cron_job_runs_on_one_of_the_hosts_and_is_mailed_where_there_is_no_server() {
    let [crontab, mailed] = under("CRON").try_into().unwrap();
    let redis = Redis::start();
    let directory = workplace();
    let job = crontab.lines().last().unwrap().split_whitespace().skip(6).collect::<Vec<_>>().join(" ");
    for _host in 0..2 {
        shell(&redis, directory.path(), &job).run().exits(0).says_nothing();
    }
    assert_eq!(ran(directory.path()), "nightly-import nightly\n");
    redis.delete("lock:nightly");
    let nowhere = "redis://127.0.0.1:1";
    let done = shell(&redis, directory.path(), &job).env("NXLOCK_SERVER", nowhere).run().exits(69);
    done.prints("").says(mailed.trim_end().replace("redis://cache:6379", nowhere).as_str());
}

#[test]
fn a_nightly_job_is_done_by_the_first_host_that_can() {
    let [crontab, history] = under("A NIGHTLY").try_into().unwrap();
    let redis = Redis::start();
    let directory = workplace();
    let job = crontab.lines().last().unwrap().split_whitespace().skip(6).collect::<Vec<_>>().join(" ");
    // It fails on the first host.
    let broken = job.replace("nightly-import", "false");
    shell(&redis, directory.path(), &broken).run().exits(1).says_nothing();
    for _host in 0..3 {
        shell(&redis, directory.path(), &job).run().exits(0).says_nothing();
    }
    assert_eq!(ran(directory.path()), "nightly-import nightly\n");
    let shown = shell(&redis, directory.path(), &history).run().exits(0).text();
    assert!(shown.contains("done") && shown.contains("failed (1)") && shown.lines().count() == 3, "{shown}");
}

/// Returns the words of a crontab's last line, and the settings before it, as a script.
fn crontab(lines: &str) -> String {
    let (settings, job) = lines.trim_end().rsplit_once('\n').unwrap();
    let settings = settings.lines().filter(|line| !line.starts_with("NXLOCK_SERVER="));
    let settings: String = settings.map(|line| format!("{line}\n")).collect();
    settings + &job.split_whitespace().skip(6).collect::<Vec<_>>().join(" ")
}

#[test]
fn monitoring_is_told_of_a_job_that_has_not_succeeded() {
    let [icinga, nagios, cron, ping, _, _] = under("MONITORING").try_into().unwrap();
    let redis = Redis::start();
    let directory = workplace();
    let run = |script: &str| shell(&redis, directory.path(), script).run();
    // What the two systems call.
    let quoted = |line: &str| line.split('"').nth(1).map(str::to_owned);
    let options: Vec<String> = icinga.lines().filter_map(quoted).filter(|word| word.starts_with("--")).collect();
    assert_eq!(options, ["--max-age", "--max-held", "--max-waiting"]);
    let words: Vec<&str> = after(&icinga, "command = ").split('"').skip(1).step_by(2).collect();
    let value = after(&icinga, "vars.nxlock_max_age = ").trim_matches('"');
    let name = after(&icinga, "vars.nxlock_name = ").trim_matches('"');
    let of_icinga = format!("{} {name} {} {value}", words.join(" "), options[0]).replace("/usr/local/bin/", "");
    let mut of_nagios = after(&nagios, "command_line").trim().replace("/usr/local/bin/", "");
    of_nagios = of_nagios.replace(" -s redis://cache:6379", "");
    for (at, word) in after(&nagios, "check_command").split('!').skip(1).enumerate() {
        of_nagios = of_nagios.replace(&format!("$ARG{}$", at + 1), word);
    }
    assert_eq!(of_icinga, of_nagios);
    let says = |status: i32, begin: &str| {
        let done = run(&of_icinga).exits(status).says_nothing();
        assert!(done.text().starts_with(begin), "{}", done.both());
    };
    let calls = "curl() { echo \"$*\" >> calls; }\n";
    let pings = || run(&format!("{calls}{}\ntail -n 1 calls", crontab(&ping))).exits(0).text();
    says(3, "UNKNOWN: nightly ");
    assert!(pings().contains("/your-uuid/3\n"));
    run("nxlock run nightly --record -- false").exits(1);
    says(2, "CRITICAL: nightly ");
    let mailed = run(&crontab(&cron)).text();
    assert!(mailed.starts_with("CRITICAL: nightly has never succeeded"), "{mailed}");
    assert!(pings().contains("--data-raw CRITICAL: nightly") && pings().contains("/your-uuid/2\n"));
    run("nxlock run nightly --record -- true").exits(0);
    says(0, "OK: nightly ");
    run(&crontab(&cron)).exits(0).prints("").says_nothing();
    assert!(pings().contains("/your-uuid/0\n"));
}

#[test]
fn prometheus_reads_the_metrics_and_the_rules() {
    let [_, _, _, _, textfile, rules] = under("MONITORING").try_into().unwrap();
    let redis = Redis::start();
    let directory = workplace();
    shell(&redis, directory.path(), "nxlock run nightly --record -- true").run().exits(0);
    let script = crontab(&textfile).replace("/var/lib/prometheus/node-exporter", ".");
    shell(&redis, directory.path(), &script).run().exits(0).prints("").says_nothing();
    let file = directory.path().join("nxlock.prom");
    let text = fs::read_to_string(&file).unwrap();
    alarms::is_open_metrics(&text);
    // Nothing replaces it if the server is gone, and nothing is left beside it.
    shell(&redis, directory.path(), &script).env("NXLOCK_SERVER", "redis://127.0.0.1:1").run().exits(0).says_nothing();
    assert_eq!(fs::read_to_string(&file).unwrap(), text);
    let files = fs::read_dir(directory.path()).unwrap().flatten().map(|entry| entry.file_name().into_string().unwrap());
    assert_eq!(files.filter(|name| name.starts_with("nxlock.")).collect::<Vec<_>>(), ["nxlock.prom"]);
    // Every rule is about a metric that there is.
    let is_of_a_name = |c: char| c.is_ascii_lowercase() || c == '_';
    let exprs: Vec<&str> = rules.lines().filter_map(|line| line.trim().strip_prefix("expr: ")).collect();
    assert_eq!(exprs.len(), 4);
    for name in
        exprs.iter().flat_map(|expr| expr.split(|c| !is_of_a_name(c))).filter(|word| word.starts_with("nxlock_"))
    {
        assert!(text.contains(&format!("# TYPE {name} gauge\n")), "{name}");
    }
    put(directory.path(), "rules.yml", &rules);
    let rules = directory.path().join("rules.yml");
    alarms::promtool(&["check", "rules", rules.to_str().unwrap()], "");
    let series = |name: &str, lock: &str, values: &str| {
        format!("- series: '{name}{{name=\"{lock}\",prefix=\"lock:\"}}'\n        values: '{values}'\n      ")
    };
    let inputs = series("nxlock_last_success_timestamp_seconds", "nightly", "0x1800")
        + &series("nxlock_held_seconds", "deploy", "0+60x1800")
        + &series("nxlock_waiters", "deploy", "6x1800")
        + "- series: 'node_textfile_mtime_seconds{file=\"/var/lib/prometheus/node-exporter/nxlock.prom\"}'\n        \
           values: '0+60x60 3600x1800'\n      ";
    let alert = |name: &str, at: &str, fires: bool| {
        let labels = if fires { "\n          - {}" } else { " []" };
        format!("- eval_time: {at}\n        alertname: {name}\n        exp_alerts:{labels}\n      ")
            .replace("- {}", &fired(name))
    };
    let cases = alert("NightlyHasNotSucceeded", "25h", false)
        + &alert("NightlyHasNotSucceeded", "27h", true)
        + &alert("LockHeldTooLong", "59m", false)
        + &alert("LockHeldTooLong", "70m", true)
        + &alert("TooManyWait", "4m", false)
        + &alert("TooManyWait", "6m", true)
        + &alert("MetricsOfLocksAreOld", "65m", false)
        + &alert("MetricsOfLocksAreOld", "75m", true);
    let tests = format!(
        "rule_files: [rules.yml]\nevaluation_interval: 1m\ntests:\n  - interval: 1m\n    input_series:\n      {inputs}\n    \
         alert_rule_test:\n      {cases}\n"
    );
    put(directory.path(), "tests.yml", &tests);
    alarms::promtool(&["test", "rules", directory.path().join("tests.yml").to_str().unwrap()], "");
}

/// Returns what a rule's alert looks like, in the YAML of promtool(1).
fn fired(alert: &str) -> String {
    if alert == "MetricsOfLocksAreOld" {
        let file = "/var/lib/prometheus/node-exporter/nxlock.prom";
        let summary = "the metrics of locks are 15m 0s old";
        return format!("- {{exp_labels: {{file: {file}}}, exp_annotations: {{summary: {summary}}}}}");
    }
    let (lock, summary) = match alert {
        "NightlyHasNotSucceeded" => ("nightly", "nightly has not succeeded for more than 26 hours"),
        "LockHeldTooLong" => ("deploy", "deploy has been held for 1h 10m 0s"),
        _ => ("deploy", "6 wait for deploy"),
    };
    format!("- {{exp_labels: {{name: {lock}, prefix: 'lock:'}}, exp_annotations: {{summary: {summary}}}}}")
}

/// Waits until a call is in the queue of a lock.
#[track_caller]
fn waits(redis: &Redis, name: &str, call: &Running) {
    eventually("it is in the queue", || queue_of(redis, name).contains(&call.pid()));
}

#[test]
fn each_job_of_a_pool_has_a_slot_of_its_own_and_whoever_works_on_all_waits_for_them() {
    let [job, all] = under("A POOL OF GPUS OR DATABASES").try_into().unwrap();
    let redis = Redis::start();
    let directory = workplace();
    let step = "echo \"up ${CUDA_VISIBLE_DEVICES-all}\"; while ! [ -e go ]; do sleep 0.01; done";
    put(directory.path(), "train", step);
    put(directory.path(), "upgrade-drivers", "echo 'up all'");
    let start = |script: &str| shell(&redis, directory.path(), &format!("exec {script}")).start();
    let mut jobs: Vec<_> = (0..4).map(|_| start(job.trim_end())).collect();
    let mut slots: Vec<String> = jobs.iter_mut().map(|job| job.line("up ")).collect();
    slots.sort();
    assert_eq!(slots, ["0", "1", "2", "3"]);
    let upgrade = start(all.trim_end());
    waits(&redis, "gpu", &upgrade);
    assert_eq!(upgrade.stdout(), "");
    put(directory.path(), "go", "");
    jobs.into_iter().for_each(|job| drop(job.finish().exits(0)));
    upgrade.finish().exits(0).prints("up all\n");
}

#[test]
fn reports_run_side_by_side_and_a_migration_alone() {
    let [report, migrate] = under("READERS AND A MIGRATION")
        .join("\n")
        .lines()
        .filter(|line| !line.is_empty())
        .map(str::to_owned)
        .collect::<Vec<_>>()
        .try_into()
        .unwrap();
    let redis = Redis::start();
    let directory = workplace();
    put(directory.path(), "report", "echo up; while ! [ -e go ]; do sleep 0.01; done");
    put(directory.path(), "migrate", "echo migrated");
    let start = |script: &str| shell(&redis, directory.path(), &format!("exec {script}")).start();
    let mut reports = [start(&report), start(&report)];
    reports.iter_mut().for_each(|report| drop(report.line("up")));
    let migration = start(&migrate);
    waits(&redis, "schema", &migration);
    let late = start(&report);
    waits(&redis, "schema", &late);
    assert_eq!((migration.stdout(), late.stdout()), (String::new(), String::new()));
    put(directory.path(), "go", "");
    reports.into_iter().for_each(|report| drop(report.finish().exits(0)));
    migration.finish().exits(0).prints("migrated\n");
    late.finish().exits(0).prints("up\n");
}

#[test]
fn of_a_fleet_three_at_a_time_run_and_all_in_the_end() {
    let [backup] = under("THREE HOSTS AT A TIME").try_into().unwrap();
    let redis = Redis::start();
    let directory = workplace();
    put(directory.path(), "backup", "echo up; while ! [ -e go ]; do sleep 0.01; done");
    let start = || shell(&redis, directory.path(), &format!("exec {}", backup.trim_end())).start();
    let mut first: Vec<_> = (0..3).map(|_| start()).collect();
    first.iter_mut().for_each(|host| drop(host.line("up")));
    let later: Vec<_> = (0..2).map(|_| start()).collect();
    later.iter().for_each(|host| waits(&redis, "backup", host));
    assert!(later.iter().all(|host| host.stdout().is_empty()));
    put(directory.path(), "go", "");
    first.into_iter().chain(later).for_each(|host| drop(host.finish().exits(0)));
}

/// Returns the exit statuses that a unit counts as success, without 0 and the names of signals.
fn successes(unit: &str) -> Vec<i32> {
    after(unit, "SuccessExitStatus=").split_whitespace().filter_map(|status| status.parse().ok()).collect()
}

#[test]
fn a_unit_of_systemd_that_is_stopped_has_not_failed() {
    let [job, _timer, daemon, _said] = under("SYSTEMD").try_into().unwrap();
    for (unit, program) in [(&job, "nightly-import"), (&daemon, "worker")] {
        let redis = Redis::start();
        let directory = workplace();
        put(directory.path(), program, "echo works; exec sleep 600");
        let start = format!("exec {}", after(unit, "ExecStart=").replace("/usr/local/bin/", ""));
        let mut running = shell(&redis, directory.path(), &start).start();
        running.line("works");
        // KillMode=mixed: only nxlock gets the signal.
        running.signal(Signal::SIGTERM);
        let status = running.finish().status.code();
        assert!(status.is_some_and(|status| successes(unit).contains(&status)), "{status:?}: {unit}");
        if unit.contains("--at-least") {
            redis.delete("lock:nightly");
        }
    }
}

#[test]
fn a_job_of_systemd_that_is_stopped_before_its_command_runs_has_not_failed() {
    let blocks = under("SYSTEMD");
    let redis = Redis::start();
    let directory = workplace();
    // The server does not reply yet.
    redis.hang();
    let start = format!("exec {}", after(&blocks[0], "ExecStart=").replace("/usr/local/bin/", ""));
    let asking = shell(&redis, directory.path(), &start).env("NXLOCK_SERVER_TIMEOUT", "20s").start();
    eventually("it asks", || hears_term(asking.pid()));
    asking.signal(Signal::SIGTERM);
    asking.finish().dies_of(Signal::SIGTERM);
    redis.resume();
    // systemd counts this as success of a daemon by itself, but not of a job (Type=oneshot): systemd.service(5).
    assert!(after(&blocks[0], "SuccessExitStatus=").split_whitespace().any(|status| status == "SIGTERM"));
    assert_eq!(ran(directory.path()), "");
}

/// Returns whether nxlock handles TERM: the signal is blocked, and nxlock reads it.
fn hears_term(pid: i32) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let blocked = status.lines().find_map(|line| line.strip_prefix("SigBlk:")).unwrap_or_default();
    u64::from_str_radix(blocked.trim(), 16).is_ok_and(|mask| mask & 1 << (Signal::SIGTERM as u64 - 1) != 0)
}

#[test]
fn a_unit_of_systemd_takes_a_lock_that_another_host_has_for_a_success() {
    let blocks = under("SYSTEMD");
    let redis = Redis::start();
    let directory = workplace();
    let start = after(&blocks[0], "ExecStart=").replace("/usr/local/bin/", "");
    shell(&redis, directory.path(), &start).run().exits(0);
    let successes = successes(&blocks[0]);
    let busy = shell(&redis, directory.path(), &start).run().status.code();
    assert!(successes.contains(&busy.unwrap()), "{busy:?}");
    assert_eq!(ran(directory.path()), "nightly-import nightly\n");
    redis.delete("lock:nightly");
}

#[test]
fn a_daemon_runs_on_one_host_and_then_on_the_next() {
    let blocks = under("SYSTEMD");
    let redis = Redis::start();
    let directory = workplace();
    put(directory.path(), "worker", "echo $$ >> workers; exec sleep 600");
    let start = format!("exec {}", after(&blocks[2], "ExecStart=").replace("/usr/local/bin/", ""));
    let workers = || fs::read_to_string(directory.path().join("workers")).unwrap_or_default().lines().count();
    let first = shell(&redis, directory.path(), &start).start();
    eventually("the first works", || workers() == 1);
    let mut second = shell(&redis, directory.path(), &start).start();
    second.says("we are next");
    first.signal(Signal::SIGTERM);
    first.finish().exits(143);
    eventually("the second works", || workers() == 2);
    second.signal(Signal::SIGTERM);
    second.finish().exits(143);
}

/// Each step runs in a shell of its own that ends at the first command that fails.
#[test]
fn the_steps_of_a_github_job_share_a_lock() {
    let [step, action, steps, _said, newest, preview] = under("GITHUB").try_into().unwrap();
    let version = env!("CARGO_PKG_VERSION");
    assert_eq!(after(&action, "- uses: "), format!("nxlock/nxlock/.github/actions/lock@v{version}"));
    let redis = Redis::start();
    let directory = workplace();
    put(directory.path(), "migrate.sh", "echo \"${0##*/}\" >> ran");
    let files = [("GITHUB_RUN_ID", "42"), ("GITHUB_ENV", "env"), ("GITHUB_SHA", "4f2e")];
    let run = |script: &str, variables: &str| {
        let set = format!("set -e\nexport {} {variables}\n{script}", files.map(|(n, v)| format!("{n}={v}")).join(" "));
        shell(&redis, directory.path(), &set).run()
    };
    run(after(&step, "- run: "), "").exits(0);
    run(&nested(&steps, "- run: |"), "").exits(0);
    let token = fs::read_to_string(directory.path().join("env")).unwrap();
    assert!(redis.value("lock:production").is_some_and(|value| token.trim_end().ends_with(&value)), "{token}");
    run("./migrate.sh", &token).exits(0);
    run("./deploy.sh", &token).exits(0);
    run(after(&steps, "run: nxlock").replace(" release", "nxlock release").as_str(), &token).exits(0);
    assert_eq!(ran(directory.path()), "deploy.sh production\nmigrate.sh\ndeploy.sh \n");
    assert!(!redis.exists("lock:production"));
    let token = redis.nxlock(["acquire", "production", "--ttl", "1h"]).run().exits(0).token();
    let start =
        || shell(&redis, directory.path(), &format!("export GITHUB_SHA=4f2e\n{}", after(&newest, "- run: "))).start();
    let older = start();
    waits(&redis, "production", &older);
    let newer = start();
    older.finish().exits(0).says("superseded by").says(": 4f2e");
    redis.nxlock(["release", "production", &token]).run().exits(0);
    newer.finish().exits(0);
    assert!(ran(directory.path()).ends_with("deploy.sh \ndeploy.sh production\n"), "{}", ran(directory.path()));
    // A newer preview stops the one that runs.
    put(directory.path(), "preview.sh", "[ -e again ] || { touch again; exec sleep 600; }; echo previewed >> ran");
    let start = || {
        let script = format!("export GITHUB_REF_NAME=main\n{}", after(&preview, "- run: "));
        shell(&redis, directory.path(), &script).start()
    };
    let older = start();
    eventually("the older preview runs", || directory.path().join("again").exists());
    let newer = start();
    older.finish().exits(143).says("superseded by");
    newer.finish().exits(0);
    assert!(ran(directory.path()).ends_with("previewed\n"), "{}", ran(directory.path()));
}

#[test]
fn a_colleague_who_sleeps_is_asked_for_the_lock() {
    let [commands] = under("A COLLEAGUE").try_into().unwrap();
    let redis = Redis::start();
    let directory = workplace();
    let words = ["run", "migrate", "--reason", "backfill", "--", "sleep", "600"];
    let sleeps = redis.nxlock(words).start();
    let status = || redis.nxlock(["--json", "status", "migrate"]).run().json();
    eventually("it has the lock", || status()[0]["holder"]["pid"] == sleeps.pid());
    let id = status()[0]["holder"]["id"].as_str().unwrap().to_owned();
    let done = shell(&redis, directory.path(), &commands.replace("--ask ID", &format!("--ask {id}"))).run();
    assert!(done.exits(0).text().contains("backfill"));
    sleeps.finish().exits(143).says(": fix for the outage, Bob; stopping the command");
}

#[test]
fn a_hotfix_goes_first_and_its_holder_is_asked() {
    let [both] = under("A HOTFIX FIRST").try_into().unwrap();
    let (first, asks) = both.split_once("\n\n").unwrap();
    let redis = Redis::start();
    let directory = workplace();
    put(directory.path(), "deploy.sh", "echo \"$1\" >> ran");
    let deploys = redis.nxlock(["run", "production", "--", "sleep", "600"]).start();
    let status = || redis.nxlock(["--json", "status", "production"]).run().json();
    eventually("it has the lock", || status()[0]["holder"]["pid"] == deploys.pid());
    let id = status()[0]["holder"]["id"].as_str().unwrap().to_owned();
    let others: Vec<Running> =
        (0..2).map(|_| shell(&redis, directory.path(), "nxlock run production -- ./deploy.sh other").start()).collect();
    eventually("they wait", || queue_of(&redis, "production").len() == 2);
    let hotfix = shell(&redis, directory.path(), first).start();
    eventually("it is ahead", || status()[0]["queue"][0]["reason"] == "hotfix for #77");
    let asks = asks.lines().last().unwrap().replace("--ask ID", &format!("--ask {id}"));
    shell(&redis, directory.path(), &asks).run().exits(0);
    deploys.finish().exits(143).says("the hotfix for #77, Bob");
    hotfix.finish().exits(0);
    others.into_iter().for_each(|other| _ = other.finish().exits(0));
    assert_eq!(ran(directory.path()), "hotfix\nother\nother\n");
}

#[test]
fn a_freeze_refuses_every_deploy_with_its_reason_and_is_given_back() {
    let [freeze, release] = under("A FREEZE").try_into().unwrap();
    let redis = Redis::start();
    let directory = workplace();
    let day = std::time::Duration::from_secs(24 * 3600);
    let date = humantime::format_rfc3339_seconds(crate::support::wall() + 3 * day).to_string();
    let freeze = freeze.replace("2026-11-30", date.split('T').next().unwrap());
    shell(&redis, directory.path(), &freeze).run().exits(0).says_nothing();
    let refused = shell(&redis, directory.path(), "nxlock run production -n -- ./deploy.sh x").run().exits(75);
    refused.says("freeze until Monday, ask Ann");
    shell(&redis, directory.path(), &release).run().exits(0);
    shell(&redis, directory.path(), "nxlock run production -n -- ./deploy.sh x").run().exits(0);
}

#[test]
fn a_migration_has_both_databases_or_neither() {
    let [migration] = under("SEVERAL DATABASES").try_into().unwrap();
    let redis = Redis::start();
    let directory = workplace();
    put(directory.path(), "move-rows", "nxlock status db/orders db/stock > /dev/null && echo both >> ran");
    let job = redis.nxlock(["acquire", "db/stock", "--ttl", "1h"]).run().exits(0).token();
    shell(&redis, directory.path(), &migration.replace("--reason", "-n --reason")).run().exits(75).says("db/stock");
    redis.nxlock(["release", "db/stock", &job]).run().exits(0);
    shell(&redis, directory.path(), &migration).run().exits(0).says_nothing();
    assert_eq!(ran(directory.path()), "both\n");
}

#[test]
fn a_freeze_of_all_waits_for_the_deploys_that_run_and_keeps_others_out() {
    let [deploy, freeze] = under("DEPLOYS AND A FREEZE").try_into().unwrap();
    let redis = Redis::start();
    let directory = workplace();
    put(directory.path(), "deploy", "echo up $1; read x; echo $1 >> ran");
    put(directory.path(), "fail-over", "echo fail-over >> ran");
    let deploys = |service: &str| {
        let (reader, writer) = std::io::pipe().unwrap();
        let call = shell(&redis, directory.path(), &deploy.replace("api", service)).stdin_from(reader);
        (call.start(), writer)
    };
    let (mut api, goes_on) = deploys("api");
    api.line("up api");
    let (mut web, web_goes_on) = deploys("web");
    web.line("up web");
    let frozen = shell(&redis, directory.path(), &freeze).start();
    eventually("the freeze waits", || queue_of(&redis, "prod").len() == 1);
    let late = deploy.replace("api", "db").replace("-- ", "-n -- ");
    shell(&redis, directory.path(), &late).run().exits(75).prints("");
    drop((goes_on, web_goes_on));
    api.finish().exits(0);
    web.finish().exits(0);
    frozen.finish().exits(0);
    assert_eq!(ran(directory.path()).lines().last(), Some("fail-over"));
}

#[test]
fn an_agent_is_known_to_the_others_by_its_name() {
    let [build, who] = under("AGENTS").try_into().unwrap();
    let redis = Redis::start();
    let directory = workplace();
    let build = build.replace("NXLOCK_SERVER=local: ", "").replace("make test", "sh -c 'echo up; read x'");
    let (reader, writer) = std::io::pipe().unwrap();
    let mut builds =
        shell(&redis, directory.path(), &format!("AGENT=4 TASK='#77'\n{build}")).stdin_from(reader).start();
    builds.line("up");
    let who = who.replace(" | jq -r '.[0].holder | .as, .reason'", "");
    let seen = shell(&redis, directory.path(), &who).run().exits(0).json();
    assert_eq!((&seen[0]["holder"]["as"], &seen[0]["holder"]["reason"]), (&"agent 4".into(), &"#77".into()), "{seen}");
    drop(writer);
    builds.finish();
}

#[test]
fn a_script_of_a_gitlab_job_runs_under_a_lock() {
    let [line, include] = under("GITLAB").try_into().unwrap();
    let redis = Redis::start();
    let directory = workplace();
    let script = format!("set -e\nexport CI_JOB_ID=42\n{}", nested(&line, "script:").trim_start_matches("- "));
    shell(&redis, directory.path(), &script).run().exits(0);
    assert_eq!(ran(directory.path()), "deploy.sh production\n");
    // What it includes is in the repository; `pipelines` runs it.
    let file = after(&include, "- remote: ").split_once(&format!("/v{}/", env!("CARGO_PKG_VERSION"))).unwrap().1;
    let text = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(file)).unwrap();
    for word in [after(&include, "extends: "), "LOCK", "LOCK_WAIT"] {
        assert!(text.contains(&format!("{word}:")), "{word}");
    }
}

#[test]
fn the_stages_of_a_jenkins_pipeline_share_a_lock_until_its_end() {
    let [_, pipeline] = under("JENKINS").try_into().unwrap();
    let redis = Redis::start();
    let directory = workplace();
    put(directory.path(), "migrate.sh", "echo \"${0##*/}\" >> ran");
    // The steps in the order in which they stand: the text between single quotes.
    let steps: Vec<&str> = pipeline.split('\'').skip(1).step_by(2).filter(|text| text.contains([' ', '/'])).collect();
    let [acquire, migrate, deploy, release] = steps.try_into().unwrap();
    let token = shell(&redis, directory.path(), &format!("BUILD_TAG=42; {acquire}")).run().exits(0).token();
    let step = |step: &str| shell(&redis, directory.path(), step).env("NXLOCK_TOKEN", &token).run().exits(0);
    step(migrate);
    step(deploy);
    assert!(redis.exists("lock:production"));
    step(release);
    assert!(!redis.exists("lock:production"));
    assert_eq!(ran(directory.path()), "migrate.sh\ndeploy.sh \n");
    // A build that was not granted it.
    shell(&redis, directory.path(), release).run().exits(0);
}

#[test]
fn a_step_of_buildkite_runs_under_a_lock_and_ends_by_its_cancellation() {
    let [pipeline] = under("BUILDKITE").try_into().unwrap();
    let redis = Redis::start();
    let directory = workplace();
    let step = format!("export BUILDKITE_BUILD_URL=url\n{}", after(&pipeline, "command: "));
    shell(&redis, directory.path(), &step).run().exits(0);
    assert_eq!(ran(directory.path()), "deploy.sh production\n");
    put(directory.path(), "deploy.sh", "echo deploys; exec sleep 600");
    let mut step = shell(&redis, directory.path(), &step).start();
    step.line("deploys");
    step.signal(Signal::SIGTERM);
    step.finish().exits(143);
    assert!(!redis.exists("lock:production"));
}

#[test]
fn a_jenkins_stage_and_a_container_run_under_a_lock() {
    let redis = Redis::start();
    let directory = workplace();
    let [pipeline, _] = under("JENKINS").try_into().unwrap();
    let step = after(&pipeline, "sh '").trim_end_matches('\'');
    shell(&redis, directory.path(), &format!("BUILD_TAG=42; {step}")).run().exits(0);
    let [job] = under("KUBERNETES").try_into().unwrap();
    let command = after(&job, "command: [").trim_end_matches(']').replace(',', "");
    shell(&redis, directory.path(), &command).run().exits(0);
    assert_eq!(ran(directory.path()), "deploy.sh production\nnightly-import nightly\n");
    redis.delete("lock:nightly");
}

/// Of the file that a pipeline downloads, only the one with the checksum is installed.
#[test]
fn a_pipeline_installs_the_release_that_was_meant() {
    let [github, gitlab, _signature] = under("INSTALLING").try_into().unwrap();
    let (redis, directory) = (Redis::start(), workplace());
    let name = format!("nxlock-{}-x86_64-unknown-linux-musl", env!("CARGO_PKG_VERSION"));
    let package = format!(
        "mkdir -p r/{name}/man bin; echo 'echo \"runs: $*\"' > r/{name}/nxlock; chmod 755 r/{name}/nxlock
         echo page > r/{name}/man/nxlock.1; tar -czf release.tar.gz -C r {name}"
    );
    shell(&redis, directory.path(), &package).run().exits(0);
    let sum = shell(&redis, directory.path(), "sha256sum release.tar.gz | cut -d' ' -f1").run().exits(0).text();
    let install = |script: &str, sum: &str| {
        let here = directory.path().display();
        let script = script.replace("/usr/local/bin", "bin").replace("/tmp/nxlock", "nxlock");
        let set = format!("set -e\nexport RUNNER_TEMP=. HOME={here} GITHUB_PATH=path NXLOCK=x NXLOCK_SHA256={sum}\n")
            + "curl() { while [ \"$1\" != -o ]; do shift; done; cp release.tar.gz \"$2\"; }\n";
        shell(&redis, directory.path(), &(set + &script)).run()
    };
    let scripts = [
        (nested(&github, "run: |"), ".local/bin/nxlock"),
        (format!("\n{}", nested(&gitlab, "before_script:")).replace("\n- ", "\n"), "bin/nxlock"),
    ];
    for (script, installed) in scripts {
        let zeroes = after(&github, "NXLOCK_SHA256: ");
        assert_eq!(zeroes.len(), 64);
        install(&script, zeroes).exits(1);
        assert!(!directory.path().join(installed).exists());
        install(&script, sum.trim()).exits(0);
        let found = shell(&redis, directory.path(), &format!("sh {installed} status; ls $(dirname {installed})")).run();
        found.exits(0).prints("runs: status\nnxlock\n");
    }
}

/// nxlock is the first process, in a root with nothing but itself and what it runs.
#[test]
fn a_container_runs_its_command_under_a_lock() {
    let [image] = under("CONTAINERS").try_into().unwrap();
    let options = ["--user", "--map-root-user", "--mount", "--pid", "--fork"];
    if !may_unshare(&options) {
        return;
    }
    let directory = workplace();
    let root = directory.path().join("root");
    for made in ["usr/local/bin", "proc", "tmp"] {
        fs::create_dir_all(root.join(made)).unwrap();
    }
    let place = after(&image, "COPY --chmod=755 nxlock ");
    // As in `write_program`.
    assert!(Command::new("cp").arg(program()).arg(root.join(&place[1..])).status().unwrap().success());
    let words = after(&image, "ENTRYPOINT ").trim_matches(['[', ']']).replace([',', '"'], "");
    // Its command is nxlock as well: there is no other program.
    let inside = |words: &[&str]| {
        let script = format!("mount -t proc proc {0}/proc && exec chroot {0} \"$@\"", root.display());
        let words = [&["unshare"], &options[..], &["sh", "-c", &script, "sh"], words].concat();
        Nxlock::by("env", words).env("NXLOCK_SERVER", "local:/tmp")
    };
    let call = |command: &[&str]| inside(&words.split(' ').chain(command.iter().copied()).collect::<Vec<_>>());
    let seen = call(&[place, "--json", "status", "nightly"]).run().exits(0).says_nothing().json();
    assert_eq!((&seen[0]["state"], &seen[0]["holder"]["pid"]), (&"held".into(), &1.into()), "{seen}");
    call(&[place, "no-such-verb"]).run().exits(64);
    // The kernel spares a first process the signals for which it has no handler.
    for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP, Signal::SIGQUIT] {
        let mut watching = inside(&[place, "status", "--watch", "nightly"]).start();
        eventually("it watches", || watching.stdout().contains("nightly"));
        let nxlock = watching.descendants().into_iter().find(|pid| name_of(*pid) == "nxlock").expect("it runs");
        send(nxlock, signal);
        eventually("it ends", || watching.has_ended());
        watching.finish().exits(128 + signal as i32);
    }
}

#[test]
fn while_some_hosts_still_use_flock_both_keep_out_each_other() {
    let [both] = under("FROM FLOCK").try_into().unwrap();
    let redis = Redis::start();
    let directory = workplace();
    put(directory.path(), "command", "echo \"${0##*/} $NXLOCK_NAME\" >> ran");
    let both = both.replace("/run/lock/x", "x.lock");
    let old = "flock x.lock sh -c 'echo > old; while ! [ -e go ]; do sleep 0.01; done'";
    let old = shell(&redis, directory.path(), old).start();
    eventually("the old one has its lock", || directory.path().join("old").exists());
    let new = shell(&redis, directory.path(), &both).start();
    eventually("the new one has its own", || redis.exists("lock:x"));
    assert_eq!(ran(directory.path()), "");
    shell(&redis, directory.path(), "nxlock -q run x -n -E 1 -- echo ran").run().exits(1).says_nothing();
    fs::write(directory.path().join("go"), "").unwrap();
    old.finish().exits(0);
    new.finish().exits(0);
    assert_eq!(ran(directory.path()), "command x\n");
}

#[test]
fn a_job_of_cronlock_is_kept_apart_by_a_line_of_its_own() {
    let [_was, is] = under("FROM CRONLOCK").try_into().unwrap();
    let redis = Redis::start();
    let directory = workplace();
    let line = is.split_once(' ').unwrap().1;
    shell(&redis, directory.path(), line).run().exits(0);
    shell(&redis, directory.path(), line).run().exits(200);
    assert_eq!(ran(directory.path()), "nightly-import nightly\n");
    redis.delete("lock:nightly");
}

/// redis-cli itself, installed with the server, runs the old script.
#[test]
fn a_script_of_redis_cli_and_nxlock_exclude_each_other_by_one_key() {
    let [was, is, _later] = under("FROM REDIS-CLI").try_into().unwrap();
    let redis = Redis::start();
    let directory = workplace();
    fs::write(directory.path().join("wait"), "").unwrap();
    let compare = "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) end";
    let socket = redis.socket();
    let was = was.replace("redis-cli ", &format!("redis-cli -s {} ", socket.display()));
    let was = format!("COMPARE_AND_DELETE=\"{compare}\"\n{was}");
    let mut old = shell(&redis, directory.path(), &was).start();
    old.line("deploying");
    shell(&redis, directory.path(), &is).run().exits(75).says("held by another program");
    fs::write(directory.path().join("go"), "").unwrap();
    old.finish().exits(0);
    fs::remove_file(directory.path().join("go")).unwrap();
    let mut new = shell(&redis, directory.path(), &is).start();
    new.line("deploying");
    shell(&redis, directory.path(), &was).run().exits(1);
    fs::write(directory.path().join("go"), "").unwrap();
    new.finish().exits(0);
    assert!(!redis.exists("deploy-lock"));
}

#[test]
fn the_example_of_a_configuration_changes_nothing() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("man/config.toml");
    // Except for the name of the file.
    let settings = |config: &Path| {
        let call = Nxlock::new(["--json", "-s", "local:/tmp", "check"]).env("NXLOCK_CONFIG", config);
        let settings = call.run().exits(0).json()["settings"].clone();
        let all = settings.as_array().unwrap().iter();
        all.filter(|setting| setting["name"] != "config").cloned().collect::<Vec<_>>()
    };
    assert_eq!(settings(&file), settings(Path::new("/dev/null")));
}
