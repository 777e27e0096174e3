//! Passwords from files and variables, and that nxlock never shows one.

use std::fs::{self, Permissions};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::thread;

use super::Home;
use crate::support::{Nxlock, Redis, Terminal, eventually_some};

#[test]
fn a_password_comes_from_a_file_then_the_url_then_a_variable() {
    let redis = Redis::with_password("s3cret");
    let home = Home::new();
    let (right, wrong) = (home.file("right", "s3cret\nand more\n"), home.file("wrong", "other"));
    let (right, wrong) = (right.to_str().unwrap(), wrong.to_str().unwrap());
    let url = redis.url();
    let call = |server: &str, args: &[&str]| {
        home.call(["status"].into_iter().chain(args.iter().copied())).env("NXLOCK_SERVER", server)
    };
    call(&url, &["--password-file", right]).run().exits(0).says_nothing();
    call(&url, &[]).env("NXLOCK_PASSWORD_FILE", right).run().exits(0).says_nothing();
    call(&url, &[]).env("REDISCLI_AUTH", "s3cret").run().exits(0).says_nothing();
    call(&format!("{url}?pass=wrong"), &["--password-file", right]).run().exits(0);
    call(&format!("{url}?pass=s3cret"), &["--password-file", wrong]).run().exits(77);
    call(&format!("{url}?pass=s3cret"), &[]).env("REDISCLI_AUTH", "wrong").run().exits(0);
    call(&format!("{url}?pass=wrong"), &[]).env("REDISCLI_AUTH", "s3cret").run().exits(77);
    call(&url, &["--password-file", right]).env("NXLOCK_PASSWORD_FILE", wrong).run().exits(0);
    call(&url, &[]).env("NXLOCK_PASSWORD_FILE", "").env("REDISCLI_AUTH", "").run().exits(77);
    let configured = Home::configured(&format!("server = {url:?}\npassword-file = {right:?}\n"));
    configured.call(["status"]).run().exits(0).says_nothing();
    configured.call(["status"]).env("NXLOCK_PASSWORD_FILE", wrong).run().exits(77);
    configured.call(["status"]).env("NXLOCK_PASSWORD_FILE", "").run().exits(0);
}

#[test]
fn a_user_in_the_url_logs_in_with_a_password_from_elsewhere() {
    let redis = Redis::on_tcp(&[]);
    redis.ask::<()>(&["ACL", "SETUSER", "bob", "on", ">s3cret", "~*", "&*", "+@all"]);
    redis.ask::<()>(&["ACL", "SETUSER", "default", "off"]);
    redis.leave_as_it_is();
    let home = Home::new();
    let file = home.file("password", "s3cret\r\n");
    let tcp = format!("redis://bob@127.0.0.1:{}", redis.port());
    let unix = format!("{}?user=bob", redis.url());
    for url in [&tcp, &unix] {
        let call = || home.call(["run", "job", "--", "true"]).env("NXLOCK_SERVER", url);
        call().env("REDISCLI_AUTH", "s3cret").run().exits(0).says_nothing();
        call().env("NXLOCK_PASSWORD_FILE", &file).run().exits(0).says_nothing();
        call().run().exits(78).says("there is no password");
    }
}

#[test]
fn a_password_file_is_one_line_that_nobody_else_reads() {
    let redis = Redis::with_password("s3 cret");
    let home = Home::new();
    let status = |file: &Path| redis_status(&redis, file);
    for text in ["s3 cret", "s3 cret\n", "s3 cret\r\n", "s3 cret\nnot this\n"] {
        status(&home.file("good", text)).run().exits(0).says_nothing();
    }
    for text in ["", "\n", "\r\n", "\ns3 cret\n"] {
        let file = home.file("empty", text);
        status(&file).run().exits(78).says(file.to_str().unwrap()).says("empty").never_says("s3 cret");
    }
    let open = home.file("open", "s3 cret\n");
    for mode in [0o640, 0o604, 0o644] {
        fs::set_permissions(&open, Permissions::from_mode(mode)).unwrap();
        let warned = status(&open).run().exits(0).says(&format!("chmod 600 {}", open.display()));
        warned.never_says("s3 cret");
    }
    let closed = home.file("closed", "s3 cret\n");
    fs::set_permissions(&closed, Permissions::from_mode(0o000)).unwrap();
    status(&closed).minding_permissions().run().exits(78).says("permission denied").says(closed.to_str().unwrap());
    let long = home.file("long", "x".repeat(64 * 1024 + 1));
    status(&long).run().exits(78).says("longer than 64 KiB").says(long.to_str().unwrap());
    let tilde = status(Path::new("~/password")).in_directory(home.path()).run();
    tilde.exits(78).says("no such file").says("`~` is not expanded");
    status(Path::new("/no/such/file")).run().exits(78).says("/no/such/file").says("no such file");
    // A local lock needs no password.
    home.call(["-s", "local:/tmp", "check", "--password-file", "/no/such/file"]).run().exits(0);
}

#[test]
fn a_command_prints_the_password_on_its_first_line() {
    let redis = Redis::with_password("s3cret");
    let home = Home::new();
    let call =
        |args: &[&str]| home.call(["status"].into_iter().chain(args.iter().copied())).env("NXLOCK_SERVER", redis.url());
    let file = home.file("password", "s3cret\n");
    let file = file.to_str().unwrap();
    // It has no input, and its stderr is nobody's business if it succeeds.
    for text in
        ["echo s3cret", "printf 's3cret\\r\\nmore'", "read x || echo s3cret; echo done >&2", "echo s3cret; sleep 60 &"]
    {
        call(&["--password-command", text]).run().exits(0).says_nothing();
        call(&[]).env("NXLOCK_PASSWORD_COMMAND", text).run().exits(0).says_nothing();
    }
    call(&["--password-command", "echo wr0ng"]).run().exits(77).says("WRONGPASS").never_says("wr0ng");
    call(&["--password-command", "echo s3cret"]).env("REDISCLI_AUTH", "wr0ng").run().exits(0);
    call(&["--password-command", "echo s3cret"])
        .env("NXLOCK_SERVER", format!("{}?pass=wr0ng", redis.url()))
        .run()
        .exits(0);
    call(&["--password-command", ""]).env("REDISCLI_AUTH", "s3cret").run().exits(0);
    // A local lock needs no password.
    home.call(["-s", "local:/tmp", "check", "--password-command", "exit 1"]).run().exits(0);
    let both = call(&["--password-command", "echo s3cret", "--password-file", file]).run().exits(64);
    both.says("--password-file").says("--password-command");
    call(&["--password-command", "echo s3cret"]).env("NXLOCK_PASSWORD_FILE", file).run().exits(64);
    call(&["--password-command", "echo s3cret"]).env("NXLOCK_PASSWORD_FILE", "").run().exits(0);
    // One that is typed goes before the other in a file, and a file has one of them.
    let configured = Home::configured(&format!("server = {:?}\npassword-command = 'echo s3cret'\n", redis.url()));
    configured.call(["status"]).run().exits(0).says_nothing();
    configured.call(["status", "--password-file", "/no/such/file"]).run().exits(78).says("/no/such/file");
    let confused = Home::configured("password-file = 'x'\npassword-command = 'echo s3cret'\n");
    confused.call(["status"]).run().exits(78).says("conflicts with `password-file`");
}

#[test]
fn a_command_that_prints_no_password_is_an_error_with_what_it_says() {
    let redis = Redis::with_password("s3cret");
    let within = |timeout: &str, text: &str| {
        let call = Nxlock::new(["run", "job", "-w", "1m", "--server-timeout", timeout, "--", "echo", "ran"]);
        call.env("NXLOCK_SERVER", redis.url()).env("NXLOCK_PASSWORD_COMMAND", text).run().exits(78).prints("")
    };
    let call = |text: &str| within("10s", text);
    call("echo s3cret; echo no vault >&2; exit 3").says("exited with status 3: no vault").never_says("s3cret");
    call("echo s3cret; kill -9 $$").says("signal 9").never_says("s3cret");
    call("echo no vault >&2").says("printed nothing: no vault");
    call("echo; echo s3cret").says("its first line is empty").never_says("s3cret");
    call("printf '\\377'").says("not UTF-8");
    call("no-such-command").says("status 127").says("--password-command");
    // On a busy machine it may not come to say so within a second.
    let asking = eventually_some("it says what it does", || {
        let done = within("1s", "echo s3cret; echo asking >&2; sleep 600").says("did not end within");
        Some(done.never_says("s3cret")).filter(|done| done.stderr.contains("asking"))
    });
    asking.says("asking");
}

#[test]
fn a_command_for_the_password_is_not_shown_itself() {
    let redis = Redis::with_password("s3cret");
    let home = Home::new();
    let command = "echo s3cret";
    let call = |args: &[&str]| {
        let args = args.iter().copied().chain(["--password-command", command]);
        home.call(args).env("NXLOCK_SERVER", redis.url())
    };
    for options in [&["check"][..], &["--json", "check"], &["-v", "check"]] {
        let done = call(options).run().never_says("s3cret");
        assert!(done.both().contains("password-command"), "{}", done.both());
    }
    let token = call(&["acquire", "job", "--ttl", "1m"]).run().exits(0).token();
    let refused = home.call(["run", "job", "-n", "--password-command", command, "--", "true"]);
    let refused = refused.env("NXLOCK_SERVER", redis.url()).run().exits(75);
    refused.says("release job --break").never_says("s3cret");
    call(&["release", "job", &token]).run().exits(0);
}

fn redis_status(redis: &Redis, file: &Path) -> Nxlock {
    Nxlock::new(["status"]).env("NXLOCK_SERVER", redis.url()).env("NXLOCK_PASSWORD_FILE", file)
}

#[test]
fn no_password_is_shown_wherever_it_comes_from() {
    let redis = Redis::on_tcp(&["--requirepass", "s3cret"]);
    redis.leave_as_it_is();
    let home = Home::new();
    let file = home.file("password", "s3cret\n");
    let url = format!("redis://127.0.0.1:{}", redis.port());
    let with = format!("redis://:s3cret@127.0.0.1:{}", redis.port());
    let config = home.file("nx.toml", format!("server = {with:?}\n"));
    let config = config.to_str().unwrap();
    for options in [&[][..], &["-v"], &["--json"], &["-v", "--json"]] {
        for verb in [&["check"][..], &["run", "job", "-n", "--", "true"], &["status", "--no-such-option"]] {
            let args = || options.iter().chain(verb).copied();
            for call in [
                home.call(args()).env("NXLOCK_SERVER", &url).env("REDISCLI_AUTH", "s3cret"),
                home.call(args()).env("NXLOCK_SERVER", &url).env("NXLOCK_PASSWORD_FILE", &file),
                home.call(args()).env("REDIS_URL", &with),
                home.call(["--config", config].into_iter().chain(args())),
                home.call(["-s", &with].into_iter().chain(args())),
            ] {
                call.run().never_says("s3cret");
            }
        }
    }
    // Nor is it passed on: the command that a refusal gives for breaking the lock does not contain it.
    let token = home.call(["--config", config, "acquire", "job", "--ttl", "1m"]).run().exits(0).token();
    let done =
        home.call(["-s", &url, "run", "job", "-n", "--", "true"]).env("NXLOCK_PASSWORD_FILE", &file).run().exits(75);
    done.never_says("s3cret").says(&format!("nxlock -s {url} --password-file {} release job --break", file.display()));
    home.call(["--config", config, "release", "job", &token]).run().exits(0);
}

#[test]
fn a_password_without_its_colon_is_not_shown() {
    let home = Home::new();
    let url = "redis://s3cret@127.0.0.1:1";
    let file = home.file("nx.toml", format!("server = '{url}'\n"));
    let file = file.to_str().unwrap();
    for options in [&[][..], &["-v"], &["--json"]] {
        let args = |more: &[&'static str]| [options, more].concat();
        for call in [
            home.call(args(&["check"])).env("NXLOCK_SERVER", url),
            home.call(args(&["check"])).env("REDIS_URL", url),
            home.call(["--config", file].into_iter().chain(args(&["check"]))),
            home.call(["-s", url].into_iter().chain(args(&["check"]))),
            home.call(["-s", url].into_iter().chain(args(&["status"]))),
        ] {
            let done = call.run().exits(78).never_says("s3cret");
            assert!(done.both().contains("there is no password"), "{}", done.both());
        }
    }
}

#[test]
fn a_url_that_is_no_option_is_not_repeated_with_its_password() {
    let home = Home::new();
    for url in ["redis://:s3cret@h", "rediss://bob:s3cret@h/1", "redis+unix:///s?pass=s3cret", "redis://s3cret@h"] {
        let option = format!("--server-url={url}");
        for args in [
            &[url, "status"][..],
            &["status", "--", "a", "-x", url],
            &["check", url],
            &[&option, "status"],
            &["run", "--ttl", url, "job", "--", "true"],
            &["run", "--on-lost", url, "job", "--", "true"],
            &["run", "--no-such", url, "job", "--", "true"],
            &["renew", "job", "token", url],
        ] {
            home.call(args.iter().copied()).run().never_says("s3cret");
        }
    }
    home.call(["redis://:s3cret@h", "status"]).run().exits(64).says("redis://***@h");
}

/// Serves the same reply to every request, except that a login succeeds if `lets_in`. Returns the port.
fn says_to_all(reply: &'static str, lets_in: bool) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let answer = move |mut client: TcpStream| {
        let mut buffer = [0; 1 << 16];
        while let Ok(n @ 1..) = client.read(&mut buffer) {
            let heard = String::from_utf8_lossy(&buffer[..n]).into_owned();
            for request in heard.split("\r\n").filter(|line| line.starts_with('*')) {
                let is_login = lets_in && request.len() == 2 && heard.contains("AUTH");
                let said = if is_login { "+OK\r\n" } else { reply };
                if client.write_all(said.as_bytes()).is_err() {
                    return;
                }
            }
        }
    };
    // The thread ends with the test process.
    thread::spawn(move || listener.incoming().flatten().for_each(|client| _ = thread::spawn(move || answer(client))));
    port
}

#[test]
fn no_password_is_shown_that_a_server_repeats() {
    let home = Home::new();
    // The second is long enough for a server to truncate it.
    for password in ["s3cret".to_owned(), "s3cret".repeat(50)] {
        let redis = Redis::on_tcp(&["--rename-command", "AUTH", ""]);
        redis.leave_as_it_is();
        let file = home.file("password", format!("{password}\n"));
        let mut servers = vec![(redis.port(), "unknown command")];
        if password == "s3cret" {
            servers.push((says_to_all("-NOAUTH who is 's3cret'?\r\n", false), "NOAUTH who is"));
            servers.push((says_to_all("-ERR who is \"s3cret\"?\r\n", true), "who is"));
        }
        for (port, said) in servers {
            for (scheme, path) in [("redis", ""), ("redis+sentinel", "/main"), ("redis+cluster", "")] {
                let server = |login: &str| format!("{scheme}://{login}127.0.0.1:{port}{path}");
                let is_asked_who = said != "unknown command" || scheme != "redis+sentinel";
                let events = home.path().join("events");
                let events = events.to_str().unwrap();
                for verb in [
                    &["check"][..],
                    &["--json", "check"],
                    &["-v", "run", "job", "-n", "--events", events, "--", "true"],
                ] {
                    let call = || home.call(["--server-timeout", "300ms"].iter().chain(verb).copied());
                    for done in [
                        call().env("NXLOCK_SERVER", server(&format!("bob:{password}@"))).run(),
                        call().env("NXLOCK_SERVER", server("bob@")).env("REDISCLI_AUTH", &password).run(),
                        call().env("NXLOCK_SERVER", server("")).env("NXLOCK_PASSWORD_FILE", &file).run(),
                    ] {
                        assert!(!done.status.success(), "{}", done.both());
                        let done = done.never_says("s3cret");
                        // The request may have timed out.
                        let is_told = done.both().contains(said) || done.both().contains("no answer");
                        assert!(!is_asked_who || is_told, "{}", done.both());
                    }
                }
                let told = fs::read_to_string(events).unwrap_or_default();
                assert!(!told.contains("s3cret"), "{told}");
            }
        }
    }
}

#[test]
fn a_person_is_told_once_that_others_can_read_a_password_among_the_arguments() {
    let redis = Redis::on_tcp(&["--requirepass", "s3cret"]);
    redis.leave_as_it_is();
    let home = Home::new();
    let with = format!("redis://:s3cret@127.0.0.1:{}", redis.port());
    let config = home.file("nx.toml", format!("server = {with:?}\n"));
    let config = config.to_str().unwrap();
    let warning = "can read the password in --server";
    let equals = format!("--server={with}");
    for args in [&["-s", &with, "status"][..], &["status", &equals], &["-s", &with, "run", "job", "--", "true"]] {
        let call = || home.call(args.iter().copied());
        let mut terminal = Terminal::start(call());
        terminal.exits(0);
        let screen = terminal.screen();
        assert_eq!(screen.matches(warning).count(), 1, "{screen}");
        assert!(["NXLOCK_SERVER", "--password-file"].iter().all(|other| screen.contains(other)), "{screen}");
        assert!(!screen.contains("s3cret"), "{screen}");
        // Nobody reads the mail that cron sends every minute.
        call().run().never_says(warning);
    }
    for call in [
        home.call(["-q", "-s", &with, "status"]),
        home.call(["status"]).env("NXLOCK_SERVER", &with),
        home.call(["status", "--config", config]),
        home.call(["-s", &with.replace(":s3cret@", ""), "status"]).env("REDISCLI_AUTH", "s3cret"),
        home.call(["-s", "local:/tmp", "status"]),
    ] {
        let mut terminal = Terminal::start(call);
        terminal.exits(0);
        assert!(!terminal.screen().contains("password"), "{}", terminal.screen());
    }
}
