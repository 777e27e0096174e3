//! Whether several servers are fit to vote on locks: each is examined as if it were alone. What ails a minority
//! keeps nobody from a lock.

use std::time::Duration;

use super::super::distinct::Distinct;
use super::super::examine::{Examination, Examined, Finding, Verdict};
use super::super::server::Server;
use super::{Endpoint, Limit, Moment, Prefix, Store};

pub fn examine(endpoints: &[Endpoint], prefix: &Prefix, timeout: Duration) -> Examination {
    let mut servers: Vec<Examined> = Vec::with_capacity(endpoints.len());
    let distinct = Distinct::default();
    for endpoint in endpoints {
        let mut server = Server::new(endpoint.clone(), prefix.clone(), timeout, 0).among(&distinct);
        match server.examine(Limit::until(Moment::now() + timeout)) {
            Ok(examination) => servers.extend(examination.servers),
            Err(trouble) => {
                let findings = vec![Finding::of_trouble("server", &trouble)];
                servers.push(Examined { url: endpoint.to_string(), findings });
            }
        }
    }
    let is_obstacle = |finding: &Finding| matches!(finding.verdict, Verdict::Obstacle(..));
    let fit = servers.iter().filter(|server| !server.findings.iter().any(is_obstacle)).count();
    if fit > endpoints.len() / 2 {
        servers.iter_mut().flat_map(|server| &mut server.findings).for_each(to_warning);
    }
    Examination { servers }
}

fn to_warning(finding: &mut Finding) {
    if let Verdict::Obstacle(_, remedy) = &mut finding.verdict {
        let others = "the others are a majority: mend it before another one fails";
        let remedy = if remedy.is_empty() { others.to_owned() } else { format!("{remedy}; {others}") };
        finding.verdict = Verdict::Warning(remedy);
    }
}
