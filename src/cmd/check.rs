//! Checks the setup: which settings are in force, and whether the server is fit to keep locks.

use super::{Wants, open, redis_url};
use crate::cli::config::Settings;
use crate::cli::{GlobalArgs, given};
use crate::error::Error;
use crate::report::{Checked, CheckedServer, Origin, Report, Setting};
use crate::retry;
use crate::store::{Credentials, Finding, ProbedServer, Target};

const VARIABLE: &str = "REDISCLI_AUTH";

pub fn check(global: &GlobalArgs, settings: Settings) -> Report {
    let named = server_named(global);
    let wants = Wants { durability: settings.durability, ..Wants::default() };
    let opened = open(global, global.prefix.clone(), wants);
    let has_password = has_password(global, opened.is_ok());
    let shown = |url: &str| shown(url, has_password);
    let servers = match opened {
        Err(error) => vec![failed(named.as_deref().map(shown), &error)],
        Ok(mut store) => {
            let probed = retry::insist(global.server_timeout, |limit| store.probe(limit));
            match probed {
                Err(error) => vec![failed(named.as_deref().map(shown), &error)],
                Ok(probed) => {
                    let server = |one: ProbedServer| CheckedServer { url: Some(one.url), findings: one.findings };
                    probed.servers.into_iter().map(server).collect()
                }
            }
        }
    };
    Report::Checked(Checked { settings: shown_settings(settings.list, global, &shown), servers })
}

/// Returns the only finding of a server that could not be probed.
fn failed(url: Option<String>, error: &Error) -> CheckedServer {
    CheckedServer { url, findings: vec![Finding::of_error("server", error)] }
}

/// Returns the settings to show: without secrets, and with the server in REDIS_URL.
fn shown_settings(list: Vec<Setting>, global: &GlobalArgs, shown: &dyn Fn(&str) -> String) -> Vec<Setting> {
    let password = password(&list, global);
    let mut all: Vec<Setting> = Vec::with_capacity(list.len() + 1);
    for setting in list {
        if setting.name != "server" {
            all.push(setting);
            continue;
        }
        let given = setting.value.filter(|url| !url.trim().is_empty());
        let origin = match (&given, redis_url()) {
            (Some(_), _) => setting.origin,
            (None, Some(_)) => Origin::Environment("REDIS_URL".into()),
            (None, None) => Origin::Default,
        };
        all.push(Setting { name: setting.name, value: server_named(global).as_deref().map(shown), origin });
        all.extend(password.iter().map(|origin| Setting {
            name: "password".into(),
            value: None,
            origin: origin.clone(),
        }));
    }
    all
}

/// Returns where the server's password comes from.
fn password(list: &[Setting], global: &GlobalArgs) -> Option<Origin> {
    let origin = |name: &str| list.iter().find(|setting| setting.name == name).map(|setting| setting.origin.clone());
    if given(global.password_file.as_ref()).is_some() {
        return origin("password-file");
    }
    if global.password_command().is_some() {
        return origin("password-command");
    }
    let credentials = Credentials::default();
    let target = Target::choose(global.servers(), redis_url().as_deref(), &credentials);
    if target.is_ok_and(|target| target.has_login()) {
        let by_url = global.servers().next().is_none();
        return if by_url { Some(Origin::Environment("REDIS_URL".into())) } else { origin("server") };
    }
    by_variable().then(|| Origin::Environment(VARIABLE.into()))
}

fn server_named(global: &GlobalArgs) -> Option<String> {
    global.server_text().or_else(redis_url)
}

/// Returns whether there is a password for a URL that has none. A file that cannot be read has none.
fn has_password(global: &GlobalArgs, is_open: bool) -> bool {
    match given(global.password_file.as_ref()) {
        Some(_) => is_open,
        None => global.password_command().is_some() || by_variable(),
    }
}

fn by_variable() -> bool {
    std::env::var(VARIABLE).is_ok_and(|text| !text.is_empty())
}

/// Returns a URL without its password; nothing of one that cannot be parsed, since any part may be a password.
fn shown(url: &str, has_password: bool) -> String {
    Target::shown([url], has_password)
        .map(|urls| urls.join(" "))
        .unwrap_or_else(|| "(a URL that cannot be used)".into())
}
