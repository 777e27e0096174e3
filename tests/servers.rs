//! Naming a server, logging in, and keeping the password secret.

use crate::support::{Nxlock, Redis, unused_port};

/// Calls nxlock without a server in the environment.
fn call<const N: usize>(args: [&str; N]) -> Nxlock {
    Nxlock::new(args)
}

#[test]
fn with_no_server_named_nothing_is_locked_anywhere() {
    for args in [&["run", "job", "--", "echo", "ran"][..], &["status"], &["acquire", "job", "--ttl", "1m"]] {
        let done = Nxlock::new(args.to_vec()).run().exits(78).prints("").never_says("ran");
        done.says("-s redis://").says("NXLOCK_SERVER=").says("REDIS_URL=");
    }
    // An empty variable names no server.
    call(["status"]).env("NXLOCK_SERVER", "").env("REDIS_URL", "").run().exits(78).says("NXLOCK_SERVER");
}

#[test]
fn the_flag_goes_before_nxlock_server_before_redis_url() {
    let redis = Redis::start();
    let (right, wrong) = (redis.url(), "unix:///no/such/socket");
    call(["-s", &right, "status"]).env("NXLOCK_SERVER", wrong).env("REDIS_URL", wrong).run().exits(0);
    call(["status", "--server", &right]).env("NXLOCK_SERVER", wrong).run().exits(0);
    call(["status"]).env("NXLOCK_SERVER", &right).env("REDIS_URL", wrong).run().exits(0);
    call(["status"]).env("REDIS_URL", &right).run().exits(0);
    call(["status"]).env("NXLOCK_SERVER", "").env("REDIS_URL", &right).run().exits(0);
    call(["-s", wrong, "status", "--server-timeout", "200ms"]).env("NXLOCK_SERVER", &right).run().exits(69);
}

#[test]
fn one_socket_has_several_spellings() {
    let redis = Redis::start();
    let socket = redis.socket().display().to_string();
    for scheme in ["unix", "redis+unix", "valkey+unix", "UNIX"] {
        call(["-s", &format!("{scheme}://{socket}"), "status"]).run().exits(0).says_nothing();
    }
    for url in ["unix://relative/path", "http://host", "host:6379", "redis://", "redis://host:port", "redis://h/x"] {
        call(["-s", url, "status"]).run().exits(78).says("cannot be used").says("redis://");
    }
}

#[test]
fn a_server_is_reached_over_tcp_by_name_and_address() {
    let redis = Redis::on_tcp(&[]);
    let port = redis.port();
    for url in ["redis://127.0.0.1", "redis://localhost", "valkey://127.0.0.1"] {
        let url = format!("{url}:{port}");
        let token = call(["-s", &url, "acquire", "job", "--ttl", "1m"]).run().exits(0).token();
        assert_eq!(redis.value("lock:job"), Some(token.clone()));
        call(["-s", &url, "release", "job", &token]).run().exits(0);
        call(["-s", &url, "run", "job", "--", "true"]).run().exits(0);
    }
}

#[test]
fn each_database_has_its_own_locks() {
    let redis = Redis::on_tcp(&[]);
    let tcp = format!("redis://127.0.0.1:{}/3", redis.port());
    let unix = format!("{}?db=4", redis.url());
    let three = call(["-s", &tcp, "acquire", "job", "--ttl", "1m", "-n"]).run().exits(0).token();
    let four = call(["-s", &unix, "acquire", "job", "--ttl", "1m", "-n"]).run().exits(0).token();
    redis.nxlock(["status", "job"]).run().exits(1);
    call(["-s", &format!("{}?db=3", redis.url()), "release", "job", &three]).run().exits(0);
    call(["-s", &unix, "release", "job", &four]).run().exits(0);
    call(["-s", &format!("{}?db=999", redis.url()), "status", "job"]).run().says("out of range").exits(78);
}

const PASSWORD: &str = "s3cret/Pw:@% é";
/// The same, percent-encoded for a URL.
const ENCODED: &str = "s3cret%2FPw%3A%40%25%20%C3%A9";

#[test]
fn a_password_is_percent_decoded() {
    let redis = Redis::with_password(PASSWORD);
    let url = format!("{}?pass={ENCODED}", redis.url());
    call(["-s", &url, "run", "job", "--", "true"]).run().exits(0).says_nothing();
}

/// Starts a server with a user that may do everything.
fn with_users() -> Redis {
    let redis = Redis::on_tcp(&[]);
    let all = ["ACL", "SETUSER", "deploy@ci", "on", &format!(">{PASSWORD}"), "~*", "&*", "+@all"];
    redis.ask::<()>(&all);
    redis
}

#[test]
fn a_user_of_an_acl_logs_in_over_either_kind_of_connection() {
    let redis = with_users();
    let tcp = format!("redis://deploy%40ci:{ENCODED}@127.0.0.1:{}", redis.port());
    let unix = format!("{}?user=deploy%40ci&pass={ENCODED}&db=2", redis.url());
    for url in [&tcp, &unix] {
        call(["run", "job", "-c", "nxlock status job"]).env("NXLOCK_SERVER", url).run().exits(0).says_nothing();
    }
}

#[test]
fn a_password_where_none_is_wanted_is_said_to_be_that() {
    let redis = Redis::on_tcp(&[]);
    let url = format!("redis://:{ENCODED}@127.0.0.1:{}", redis.port());
    let done = call(["-s", &url, "status"]).run().exits(77).says("password").never_says("s3cret");
    // The hint is about the URL, not about the server's version.
    done.never_says("6.2");
}

#[test]
fn no_password_is_ever_shown() {
    let redis = with_users();
    let port = redis.port();
    let good = format!("redis://deploy%40ci:{ENCODED}@127.0.0.1:{port}");
    let wrong = format!("redis://deploy%40ci:s3cret-wrong@127.0.0.1:{port}/1");
    let dead = format!("redis://deploy:s3cret@127.0.0.1:{}", unused_port());
    let misread = [
        "redis://s3cret@h",
        "redis://:s3cret#x@h",
        "redis://h?password=s3cret",
        "redis://h/s3cret",
        "redis://u:s3cret@h:port",
        "s3cret",
        "http://u:s3cret@h",
        "redis://:s3cret@h redis://:s3cret@i",
        "redis://:s3cret@[::1",
    ];
    let urls = [good.as_str(), &wrong, &dead].into_iter().chain(misread);
    for url in urls {
        for options in [&[][..], &["-v"], &["--json"], &["-v", "--json"], &["-q"]] {
            for verb in [
                &["run", "job", "-n", "-c", "env | grep -v ^NXLOCK_SERVER="][..],
                &["acquire", "job", "--ttl", "100ms", "-n"],
                &["release", "job", "x"],
                &["renew", "job", "x", "--ttl", "1s"],
                &["status"],
                &["status", "--server-timeout", "x"],
            ] {
                let args = options.iter().chain(verb).copied();
                let call = Nxlock::new(args).env("NXLOCK_SERVER", url).env("NXLOCK_SERVER_TIMEOUT", "100ms");
                let done = call.run();
                for secret in ["s3cret", PASSWORD, ENCODED] {
                    assert!(!done.both().contains(secret), "{options:?} {verb:?}:\n{}", done.both());
                }
            }
        }
        // As an option, the URL is neither repeated in an error nor passed to the command.
        let done = call(["-s", url, "run", "job", "-n", "--server-timeout", "100ms", "--", "env"]).run();
        assert!(!done.both().contains("s3cret"), "{}", done.both());
        call(["-s", url, "run", "job", "--no-such-option"]).run().exits(64).never_says("s3cret");
        call(["-s", url, "-s", url, "status"]).run().never_says("s3cret");
    }
    for help in ["--help", "-h"] {
        for verb in ["run", "acquire", "renew", "release", "status"] {
            let call = call([verb, help]).env("NXLOCK_SERVER", &good).env("NXLOCK_TOKEN", "nx1:s3cret");
            call.run().exits(0).never_says("s3cret");
        }
    }
    redis.ask::<()>(&["DEL", "lock:job"]);
}
