//! The kinds of servers: how nxlock is told of each, and the processes behind it.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use super::{Server, command, until};

/// A kind of server: the options of nxlock, and the server processes.
pub struct Kind<'a> {
    pub name: &'static str,
    pub options: Vec<String>,
    /// The last one has the keys.
    pub servers: Vec<&'a Server>,
    /// The TCP connection takes one, the TLS handshake another; each request takes one, and of those sent to several
    /// servers at once the slowest counts.
    pub round_trips: u32,
}

/// One server of each kind.
pub struct Kinds {
    plain: Server,
    secure: Server,
    tls_port: String,
    ca: String,
    sentinel: Server,
    node: Server,
}

impl Kinds {
    pub fn start() -> Kinds {
        let plain = Server::start();
        let papers = Papers::make(plain.directory());
        let tls_port = unused_port().to_string();
        let secure = Server::with(&papers.options(&tls_port));
        let sentinel = Server::as_sentinel();
        sentinel.ask::<()>(&["SENTINEL", "MONITOR", "main", "127.0.0.1", &plain.port().to_string(), "1"]);
        let node = Server::with(&["--cluster-enabled".into(), "yes".into()]);
        node.ask::<()>(&["CLUSTER", "ADDSLOTSRANGE", "0", "16383"]);
        until("the cluster is up", || node.ask::<String>(&["CLUSTER", "INFO"]).contains("cluster_state:ok"));
        let ca = papers.ca.display().to_string();
        Kinds { plain, secure, tls_port, ca, sentinel, node }
    }

    /// Returns the one that others are compared with.
    pub fn plain(&self) -> &Server {
        &self.plain
    }

    pub fn each(&self) -> [Kind<'_>; 5] {
        let Kinds { plain, secure, tls_port, ca, sentinel, node } = self;
        let secured = [at(format!("rediss://127.0.0.1:{tls_port}")), vec!["--tls-ca".into(), ca.clone()]].concat();
        let named = at(format!("redis+sentinel://127.0.0.1:{}/main", sentinel.port()));
        let of_cluster = at(format!("redis+cluster://127.0.0.1:{}", node.port()));
        [
            Kind { name: "TCP", options: at(plain.tcp()), servers: vec![plain], round_trips: 3 },
            Kind { name: "Unix socket", options: at(plain.unix()), servers: vec![plain], round_trips: 2 },
            Kind { name: "TLS, --tls-ca", options: secured, servers: vec![secure], round_trips: 4 },
            Kind { name: "Sentinel", options: named, servers: vec![sentinel, plain], round_trips: 6 },
            Kind { name: "Cluster, at the key's node", options: of_cluster, servers: vec![node], round_trips: 4 },
        ]
    }
}

/// Returns the options that name a server.
pub fn at(url: String) -> Vec<String> {
    vec!["-s".to_owned(), url]
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
        assert!(openssl.status().expect("openssl is installed").success());
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
