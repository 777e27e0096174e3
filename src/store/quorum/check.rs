//! Checks whether several servers are fit to vote on locks: each is probed as if it were alone. Obstacles on a minority
//! are warnings, since they prevent no lock.

use super::{Endpoint, Limit, Moment, Store};
use crate::store::StoreOptions;
use crate::store::probe::{Finding, Probed, ProbedServer, Verdict};
use crate::store::redis::Server;
use crate::store::redis::distinct::Distinct;

pub fn probe(endpoints: &[Endpoint], options: &StoreOptions) -> Probed {
    let mut servers: Vec<ProbedServer> = Vec::with_capacity(endpoints.len());
    let distinct = Distinct::default();
    for endpoint in endpoints {
        let mut server = Server::new(endpoint.clone(), options.clone()).with_distinct(&distinct);
        match server.probe(Limit::until(Moment::now() + options.timeout)) {
            Ok(probed) => servers.extend(probed.servers),
            Err(error) => {
                let findings = vec![Finding::of_error("server", &error)];
                servers.push(ProbedServer { url: endpoint.to_string(), findings });
            }
        }
    }
    let is_obstacle = |finding: &Finding| matches!(finding.verdict, Verdict::Obstacle(..));
    let fit = servers.iter().filter(|server| !server.findings.iter().any(is_obstacle)).count();
    if fit > endpoints.len() / 2 {
        servers.iter_mut().flat_map(|server| &mut server.findings).for_each(to_warning);
    }
    Probed { servers }
}

fn to_warning(finding: &mut Finding) {
    if let Verdict::Obstacle(_, hint) = &mut finding.verdict {
        let others = "the others are a majority: mend it before another one fails";
        let hint = if hint.is_empty() { others.to_owned() } else { format!("{hint}; {others}") };
        finding.verdict = Verdict::Warning(hint);
    }
}
