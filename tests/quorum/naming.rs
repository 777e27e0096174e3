use crate::quorum::unreachable_for;
use crate::support::{Authority, Five, Nxlock, Redis};

#[test]
fn two_servers_cannot_outvote_each_other() {
    let done = Nxlock::new(["-s", "redis://a", "-s", "redis://b", "run", "job", "--", "echo", "ran"]).run();
    done.exits(64).prints("").says("2 servers can't outvote each other").says("name 1, or 3 or more");
    Nxlock::new(["status"]).env("NXLOCK_SERVER", "redis://a,redis://b").run().exits(64).says("outvote");
}

#[test]
fn a_server_has_one_vote_and_a_directory_none() {
    for servers in ["redis://a redis://b redis://a", "redis://a redis://b redis://a/3"] {
        Nxlock::new(["status"]).env("NXLOCK_SERVER", servers).run().exits(64).says("named twice");
    }
    for servers in ["redis://a redis://b local:", "local:/a redis://b redis://c", "local:/a local:/b local:/c"] {
        Nxlock::new(["status"]).env("NXLOCK_SERVER", servers).run().exits(64).says("cannot be one of several");
    }
}

/// Returns how many of the servers hold the lock of a call.
fn holding(servers: &[Redis]) -> usize {
    servers.iter().filter(|redis| redis.exists("lock:job")).count()
}

#[test]
fn servers_are_named_by_options_on_either_side_of_the_verb_or_by_the_variable() {
    let five = Five::start();
    let [a, b, c, ..] = five.each().each_ref().map(Redis::url);
    let all = five.each();
    let three = [a.as_str(), &b, &c];
    let calls = [
        Nxlock::new(["-s", &a, "-s", &b, "acquire", "-s", &c, "job", "--ttl", "1m"]),
        Nxlock::new(["acquire", "job", "--ttl", "1m", "--server", &three.join(" ")]),
        Nxlock::new(["acquire", "job", "--ttl", "1m"]).env("NXLOCK_SERVER", three.join(",")),
        Nxlock::new(["acquire", "job", "--ttl", "1m"]).env("NXLOCK_SERVER", three.join(", \n")),
    ];
    for call in calls {
        let token = call.run().exits(0).token();
        // The third grant may come a moment later; the two servers that were not named have none.
        assert_eq!((holding(&all[..3]) >= 2, holding(&all[3..])), (true, 0));
        let words = ["-s", &a, "-s", &b, "-s", &c, "release", "job", &token];
        Nxlock::new(words).run().exits(0);
        assert_eq!(holding(all), 0);
    }
}

#[test]
fn the_command_that_breaks_a_lock_names_all_the_servers() {
    let five = Five::start();
    let [a, b, c, ..] = five.each().each_ref().map(Redis::url);
    let servers = ["-s", &a, "-s", &b, "-s", &c];
    let call = |args: &[&str]| Nxlock::new(servers.iter().chain(args).copied());
    call(&["acquire", "job", "--ttl", "1m"]).run().exits(0);
    let refused = call(&["run", "job", "-n", "--", "true"]).run().exits(75);
    refused.says(&format!("nxlock -s {a} -s {b} -s {c} release job --break"));
    let id = call(&["--json", "status", "job"]).run().json()[0]["holder"]["id"].as_str().unwrap().to_owned();
    call(&["release", "job", "--break", &id]).run().exits(0);
}

#[test]
fn of_an_even_number_more_than_half_decide() {
    let mut five = Five::start();
    let four = five.each()[..4].iter().map(Redis::url).collect::<Vec<_>>().join(" ");
    let call = |args: &[&str]| five.nxlock(args.iter().copied()).env("NXLOCK_SERVER", &four);
    call(&["run", "job", "--", "true"]).run().exits(0);
    five.each_mut()[0].kill();
    let call = |args: &[&str]| five.nxlock(args.iter().copied()).env("NXLOCK_SERVER", &four);
    call(&["run", "job", "--", "true"]).run().exits(0);
    five.each_mut()[1].kill();
    let call = |args: &[&str]| five.nxlock(args.iter().copied()).env("NXLOCK_SERVER", &four);
    let refused = || call(&["run", "job", "-n", "--server-timeout", "300ms", "--", "echo", "ran"]);
    unreachable_for("2 of 4 servers answered", refused).prints("");
}

#[test]
fn a_server_that_is_named_by_several_addresses_has_one_vote() {
    let (one, other) = (Redis::on_tcp(&[]), Redis::start());
    let (ip, name) = (format!("redis://127.0.0.1:{}", one.port()), format!("redis://localhost:{}", one.port()));
    let all = [one.url(), ip.clone(), name.clone()].join(" ");
    for verb in [&["run", "job", "--", "echo", "ran"][..], &["acquire", "job", "--ttl", "1m"], &["status", "job"]] {
        let done = Nxlock::new(verb.iter().copied()).env("NXLOCK_SERVER", &all).run().exits(78).prints("");
        done.says("it is the same server as ").says("name each server once");
        assert!(!one.exists("lock:job"), "nothing is left there");
    }
    let done = Nxlock::new(["check"]).env("NXLOCK_SERVER", &all).run().exits(78);
    assert_eq!(done.text().matches("it is the same server as ").count(), 2, "{}", done.both());
    // The other servers are a majority without it.
    let third = Redis::start();
    let four = [ip, other.url(), name, third.url()].join(" ");
    Nxlock::new(["run", "job", "--", "echo", "ran"]).env("NXLOCK_SERVER", &four).run().exits(0).prints("ran\n");
    let done = Nxlock::new(["check"]).env("NXLOCK_SERVER", &four).run().exits(1);
    assert!(done.text().contains("it is the same server as "), "{}", done.both());
}

#[test]
fn servers_that_do_not_tell_who_they_are_are_taken_for_several() {
    let five = Five::start();
    for redis in five.each() {
        redis.ask::<()>(&["ACL", "SETUSER", "default", "-info"]);
    }
    five.nxlock(["run", "job", "--", "echo", "ran"]).run().exits(0).prints("ran\n").says_nothing();
    let done = five.nxlock(["check"]).run().exits(1);
    let said = "nor whether it is another server than the others";
    assert_eq!(done.text().matches(said).count(), 5, "{}", done.both());
    for redis in five.each() {
        redis.ask::<()>(&["ACL", "SETUSER", "default", "+info"]);
    }
}
