//! The cost of reaching a lock: the same run over each kind of server, and the requests that each gets.
//!
//! `cargo bench -- topology` (with `--quick` for fewer rounds). "over true" is how much longer a call takes than the
//! command alone, spawned in the same round. All servers are on this machine: over a network, each round trip adds its
//! time.

use std::cell::RefCell;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::rig::{Contestant, Figures, Server, Table, circumstances, command, measured, now, quick, rounds, until};

const TRUE: &str = "/bin/true";

/// A kind of server: the options of nxlock, and the server processes.
struct Kind<'a> {
    name: &'static str,
    options: Vec<String>,
    servers: Vec<&'a Server>,
    /// The TCP connection takes one, the TLS handshake another; each request takes one, and of those sent to several
    /// servers at once the slowest counts.
    round_trips: u32,
}

impl Kind<'_> {
    fn run(&self) -> Command {
        let mut command = command(measured());
        command.args(&self.options).args(["run", "bench", "--", TRUE]);
        command.stdin(Stdio::null()).stdout(Stdio::null());
        command
    }
}

pub fn measure() {
    let plain = Server::start();
    println!("topology: {}", circumstances(&plain));
    let papers = Papers::make(plain.directory());
    let port = unused_port().to_string();
    let secure = Server::with(&papers.options(&port));
    let sentinel = Server::as_sentinel();
    sentinel.ask::<()>(&["SENTINEL", "MONITOR", "main", "127.0.0.1", &plain.port().to_string(), "1"]);
    let node = Server::with(&["--cluster-enabled".into(), "yes".into()]);
    node.ask::<()>(&["CLUSTER", "ADDSLOTSRANGE", "0", "16383"]);
    until("the cluster is up", || node.ask::<String>(&["CLUSTER", "INFO"]).contains("cluster_state:ok"));
    let five: Vec<Server> = (0..5).map(|_| Server::start()).collect();

    let server = |url: String| vec!["-s".to_owned(), url];
    let ca = papers.ca.display().to_string();
    let kinds = [
        Kind { name: "TCP", options: server(plain.tcp()), servers: vec![&plain], round_trips: 3 },
        Kind { name: "Unix socket", options: server(plain.unix()), servers: vec![&plain], round_trips: 2 },
        Kind {
            name: "TLS, --tls-ca",
            options: [server(format!("rediss://127.0.0.1:{port}")), vec!["--tls-ca".into(), ca]].concat(),
            servers: vec![&secure],
            round_trips: 4,
        },
        Kind {
            name: "Sentinel",
            options: server(format!("redis+sentinel://127.0.0.1:{}/main", sentinel.port())),
            servers: vec![&sentinel, &plain],
            round_trips: 6,
        },
        Kind {
            name: "Cluster, at the key's node",
            options: server(format!("redis+cluster://127.0.0.1:{}", node.port())),
            servers: vec![&node],
            round_trips: 4,
        },
        Kind {
            name: "Redlock of 5",
            options: five.iter().flat_map(|one| server(one.tcp())).collect(),
            servers: five.iter().collect(),
            round_trips: 4,
        },
    ];
    times(&kinds, if quick() { 60 } else { 500 });
    requests(&kinds, 20);
}

fn succeeds(command: &mut Command) {
    let status = command.status().expect("it starts");
    assert!(status.success(), "{command:?}: {status}");
}

fn times(kinds: &[Kind<'_>], count: usize) {
    let mut commands: Vec<(&str, Command)> = vec![("true", command(TRUE))];
    commands.extend(kinds.iter().map(|kind| (kind.name, kind.run())));
    let taken: Vec<RefCell<Figures>> = commands.iter().map(|_| RefCell::default()).collect();
    let timed = commands.iter_mut().zip(&taken).map(|((_, command), taken)| {
        Box::new(move || {
            let began = now();
            succeeds(command);
            taken.borrow_mut().add(now() - began);
        }) as Contestant<'_>
    });
    rounds(count, &mut timed.collect::<Vec<_>>());
    let figures: Vec<Figures> = taken.into_iter().map(RefCell::into_inner).collect();
    let over = |which: usize, percent| figures[which].percentile(percent) - figures[0].percentile(percent);
    let mut table = Table::new(&["ms", "round trips", "over true p10", "p50", "p90", "to TCP p10", "p50"]);
    for (which, kind) in kinds.iter().enumerate().map(|(which, kind)| (which + 1, kind)) {
        let mut cells = vec![kind.round_trips.to_string()];
        cells.extend([10, 50, 90].map(|p| format!("{:.2}", over(which, p))));
        cells.extend([10, 50].map(|p| format!("{:.2}", over(which, p) / over(1, p))));
        table.row(kind.name, &cells);
    }
    println!("\nuncontended, {count} rounds\n{}", table.text());
}

/// Prints the requests of clients to each kind of server, without the commands within scripts.
fn requests(kinds: &[Kind<'_>], count: u64) {
    const ASKED: [&str; 7] =
        ["auth", "role", "eval", "evalsha", "sentinel|get-master-addr-by-name", "cluster|slots", "select"];
    println!("at the servers, for one run:");
    for kind in kinds {
        // A sentinel cannot reset its statistics.
        let told = || {
            let stats = kind.servers.iter().map(|server| server.stats());
            let each =
                stats.map(|stats| (stats.connections, ASKED.iter().map(|command| stats.of(command)).sum::<u64>()));
            each.reduce(|one, other| (one.0 + other.0, one.1 + other.1)).unwrap_or_default()
        };
        let before = told();
        (0..count).for_each(|_| succeeds(&mut kind.run()));
        let after = told();
        // The division drops the connections of these queries, and the few of sentinels.
        let (connections, asked) = ((after.0 - before.0) / count, (after.1 - before.1) / count);
        println!("  {}: {connections} connections, {asked} requests", kind.name);
    }
}

fn unused_port() -> u16 {
    let unused = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
    unused.expect("a port").port()
}

/// A certificate for this machine, and its authority.
struct Papers {
    ca: PathBuf,
    certificate: PathBuf,
    key: PathBuf,
}

impl Papers {
    fn make(directory: &Path) -> Papers {
        let path = |name: &str| directory.join(name);
        let papers = Papers { ca: path("ca.crt"), certificate: path("server.crt"), key: path("server.key") };
        let script = "set -e; cd \"$0\"
            ec='-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes'
            openssl req -x509 $ec -keyout ca.key -out ca.crt -subj /CN=authority -days 2
            openssl req $ec -keyout server.key -out server.csr -subj /CN=server
            printf 'subjectAltName=IP:127.0.0.1' > names
            openssl x509 -req -in server.csr -CA ca.crt -CAkey ca.key -CAcreateserial -days 2 -extfile names -out server.crt";
        let mut openssl = command("sh");
        openssl.args(["-c", script]).arg(directory).stdout(Stdio::null()).stderr(Stdio::null());
        succeeds(&mut openssl);
        papers
    }

    fn options(&self, port: &str) -> Vec<String> {
        let file = |path: &Path| path.display().to_string();
        let mut options = vec!["--tls-port".to_owned(), port.to_owned()];
        options.extend(["--tls-cert-file".to_owned(), file(&self.certificate)]);
        options.extend(["--tls-key-file".to_owned(), file(&self.key)]);
        options.extend(["--tls-ca-cert-file".to_owned(), file(&self.ca)]);
        options.extend(["--tls-auth-clients".to_owned(), "no".to_owned()]);
        options
    }
}
