//! Whether all is set up so that locks can be kept: which settings are in force, and what the server is like.

use super::{Wants, open, redis_url};
use crate::cli::{Everywhere, given};
use crate::config::{Origin, Setting, Settings};
use crate::report::{Checked, CheckedServer, Report};
use crate::store::{Access, Examined, Finding, Target, Trouble};
use crate::wait;

pub fn check(everywhere: &Everywhere, settings: Settings) -> Report {
    let named = server_named(everywhere);
    let wants = Wants { min_replicas: settings.min_replicas, ..Wants::default() };
    let servers = match open(everywhere, everywhere.prefix.clone(), wants) {
        Err(trouble) => vec![failed(named.as_deref().map(shown), &trouble)],
        Ok(mut store) => {
            let examined = wait::insist(everywhere.server_timeout, |limit| store.examine(limit));
            match examined {
                Err(trouble) => vec![failed(named.as_deref().map(shown), &trouble)],
                Ok(examination) => {
                    let server = |one: Examined| CheckedServer { url: Some(one.url), findings: one.findings };
                    examination.servers.into_iter().map(server).collect()
                }
            }
        }
    };
    Report::Checked(Checked { settings: told(settings.list, everywhere), servers })
}

/// Nothing else could be found out.
fn failed(url: Option<String>, trouble: &Trouble) -> CheckedServer {
    CheckedServer { url, findings: vec![Finding::of_trouble("server", trouble)] }
}

/// What is shown of settings: no secrets, and what REDIS_URL names.
fn told(list: Vec<Setting>, everywhere: &Everywhere) -> Vec<Setting> {
    let password = password(&list, everywhere);
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
        told.push(Setting { name: setting.name, value: server_named(everywhere).as_deref().map(shown), origin });
        told.extend(password.iter().map(|origin| Setting {
            name: "password".into(),
            value: None,
            origin: origin.clone(),
        }));
    }
    told
}

/// Where the password comes from that a server is given.
fn password(list: &[Setting], everywhere: &Everywhere) -> Option<Origin> {
    let origin = |name: &str| list.iter().find(|setting| setting.name == name).map(|setting| setting.origin.clone());
    if given(everywhere.password_file.as_ref()).is_some() {
        return origin("password-file");
    }
    let access = Access::default();
    let target = Target::choose(everywhere.servers(), redis_url().as_deref(), &access);
    if target.is_ok_and(|target| target.has_login()) {
        let by_url = everywhere.servers().next().is_none();
        return if by_url { Some(Origin::Environment("REDIS_URL".into())) } else { origin("server") };
    }
    let variable = "REDISCLI_AUTH";
    std::env::var(variable).is_ok_and(|text| !text.is_empty()).then(|| Origin::Environment(variable.into()))
}

fn server_named(everywhere: &Everywhere) -> Option<String> {
    let servers = everywhere.servers().collect::<Vec<_>>().join(" ");
    Some(servers).filter(|servers| !servers.is_empty()).or_else(redis_url)
}

/// A URL without its password; nothing of one that cannot be understood, since anything in it may be one.
fn shown(url: &str) -> String {
    Target::shown([url]).map(|urls| urls.join(" ")).unwrap_or_else(|| "(a URL that cannot be used)".into())
}
