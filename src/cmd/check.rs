//! Checks the setup: which settings are in force, and whether the server is fit to keep locks.

use super::{Wants, open, redis_url};
use crate::cli::config::{Origin, Setting, Settings};
use crate::cli::{GlobalArgs, given};
use crate::error::Error;
use crate::report::{Checked, CheckedServer, Report};
use crate::retry;
use crate::store::{Credentials, Finding, ProbedServer, Target};

pub fn check(global: &GlobalArgs, settings: Settings) -> Report {
    let named = server_named(global);
    let wants = Wants { min_replicas: settings.min_replicas, ..Wants::default() };
    let servers = match open(global, global.prefix.clone(), wants) {
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
    Report::Checked(Checked { settings: told(settings.list, global), servers })
}

/// Returns the only finding of a server that could not be probed.
fn failed(url: Option<String>, error: &Error) -> CheckedServer {
    CheckedServer { url, findings: vec![Finding::of_error("server", error)] }
}

/// Returns the settings to show: without secrets, and with the server in REDIS_URL.
fn told(list: Vec<Setting>, global: &GlobalArgs) -> Vec<Setting> {
    let password = password(&list, global);
    let mut told: Vec<Setting> = Vec::with_capacity(list.len() + 1);
    for setting in list {
        if setting.name != "server" {
            told.push(setting);
            continue;
        }
        let given = setting.value.filter(|url| !url.trim().is_empty());
        let origin = match (&given, redis_url()) {
            (Some(_), _) => setting.origin,
            (None, Some(_)) => Origin::Environment("REDIS_URL".into()),
            (None, None) => Origin::Default,
        };
        told.push(Setting { name: setting.name, value: server_named(global).as_deref().map(shown), origin });
        told.extend(password.iter().map(|origin| Setting {
            name: "password".into(),
            value: None,
            origin: origin.clone(),
        }));
    }
    told
}

/// Returns where the server's password comes from.
fn password(list: &[Setting], global: &GlobalArgs) -> Option<Origin> {
    let origin = |name: &str| list.iter().find(|setting| setting.name == name).map(|setting| setting.origin.clone());
    if given(global.password_file.as_ref()).is_some() {
        return origin("password-file");
    }
    let credentials = Credentials::default();
    let target = Target::choose(global.servers(), redis_url().as_deref(), &credentials);
    if target.is_ok_and(|target| target.has_login()) {
        let by_url = global.servers().next().is_none();
        return if by_url { Some(Origin::Environment("REDIS_URL".into())) } else { origin("server") };
    }
    let variable = "REDISCLI_AUTH";
    std::env::var(variable).is_ok_and(|text| !text.is_empty()).then(|| Origin::Environment(variable.into()))
}

fn server_named(global: &GlobalArgs) -> Option<String> {
    let servers = global.servers().collect::<Vec<_>>().join(" ");
    Some(servers).filter(|servers| !servers.is_empty()).or_else(redis_url)
}

/// Returns a URL without its password; nothing of one that cannot be parsed, since any part may be a password.
fn shown(url: &str) -> String {
    Target::shown([url]).map(|urls| urls.join(" ")).unwrap_or_else(|| "(a URL that cannot be used)".into())
}
