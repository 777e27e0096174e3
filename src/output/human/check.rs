//! The report of `check` for people: a table of settings, and one of findings for each server.

use anstyle::Style;

use crate::log::{BAD, DOUBTFUL, FAINT};
use crate::output::table::aligned;
use crate::report::{Checked, CheckedServer, Origin, Setting};
use crate::store::{Finding, Verdict};
use crate::text::{self, clean};

pub fn text(checked: &Checked) -> String {
    let head = ["SETTING", "VALUE", "FROM"].map(str::to_owned);
    let lines: Vec<_> = std::iter::once(head).chain(checked.settings.iter().map(setting)).collect();
    let servers: String = checked.servers.iter().map(server).collect();
    format!("{}{servers}\n{}\n", aligned(&lines), outcome(checked))
}

fn setting(setting: &Setting) -> [String; 3] {
    let value = match &setting.value {
        Some(value) if value.is_empty() => "''".to_owned(),
        Some(value) => clean(value),
        None if matches!(setting.origin, Origin::Default) => "-".to_owned(),
        // It is secret.
        None => "(set)".to_owned(),
    };
    let from = match &setting.origin {
        Origin::Flag => "flag".to_owned(),
        Origin::Environment(variable) => format!("environment {variable}"),
        Origin::File(location) => format!("{}:{}", text::path(&location.path), location.line),
        Origin::Default => "default".to_owned(),
    };
    [setting.name.clone(), value, from]
}

fn server(server: &CheckedServer) -> String {
    let mut text = server.url.as_ref().map_or_else(|| "\n".to_owned(), |url| format!("\n{url}\n"));
    let topic = server.findings.iter().map(|finding| finding.topic.len()).max().unwrap_or(0);
    for finding in &server.findings {
        let (style, verdict, hint) = verdict(finding);
        text += &format!("  {style}{verdict:<8}{style:#}  {:<topic$}  {}\n", finding.topic, finding.found);
        for line in hint.lines() {
            text += &format!("  {:<8}  {:<topic$}  {FAINT}{line}{FAINT:#}\n", "", "");
        }
    }
    text
}

fn verdict(finding: &Finding) -> (Style, &'static str, &str) {
    match &finding.verdict {
        Verdict::Fine => (Style::new(), "fine", ""),
        Verdict::Warning(hint) => (DOUBTFUL, "warning", hint),
        Verdict::Obstacle(_, hint) => (BAD, "obstacle", hint),
    }
}

fn outcome(checked: &Checked) -> String {
    let warnings = match checked.warnings() {
        0 => String::new(),
        1 => ", with 1 warning".to_owned(),
        n => format!(", with {n} warnings"),
    };
    match checked.obstacle() {
        Some(_) => format!("{BAD}unfit{BAD:#} to keep locks"),
        None => format!("fit to keep locks{warnings}"),
    }
}
