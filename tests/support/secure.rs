//! redis-servers whose port accepts nothing but TLS.

use std::path::PathBuf;

use super::certificates::{Certificate, certificates};
use super::{Authority, Nxlock, Redis, eventually_some, text_of, unused_port};

/// A redis-server that nxlock reaches by TLS; the test itself uses its Unix socket.
pub struct Secure {
    pub redis: Redis,
    /// Whether it requires a client certificate.
    mutual: bool,
}

impl Secure {
    pub fn start() -> Secure {
        Secure::with(&certificates().server())
    }

    /// Starts a server with this certificate.
    pub fn with(certificate: &Certificate) -> Secure {
        Secure::listening(certificate, false)
    }

    pub fn mutual() -> Secure {
        Secure::listening(&certificates().server(), true)
    }

    fn listening(certificate: &Certificate, mutual: bool) -> Secure {
        let redis = eventually_some("a redis-server has a port", || {
            let port = unused_port();
            let mut options = tls_options(port, certificate);
            let clients = if mutual { "yes" } else { "no" };
            options.extend(["--tls-auth-clients", clients, "--logfile", "log"].map(str::to_owned));
            Redis::on_port(port, &options).ok()
        });
        Secure { redis, mutual }
    }

    /// Returns how many connections failed in the handshake, refused by either side, of all that ended before this call.
    pub fn failed_handshakes(&self) -> usize {
        // The first request may be answered in the same round of the server's loop in which it learns of an end.
        (0..2).for_each(|_| assert_eq!(self.redis.ask::<String>(&["PING"]), "PONG"));
        let log = text_of(&self.redis.data().join("log"));
        log.lines().filter(|line| line.contains("Error accepting a client connection")).count()
    }

    pub fn url_at(&self, host: &str) -> String {
        format!("rediss://{host}:{}", self.redis.port())
    }
}

/// Returns the options that make a server use TLS only, also to other servers.
pub fn tls_options(port: u16, certificate: &Certificate) -> Vec<String> {
    let port = port.to_string();
    let path = |path: &PathBuf| path.display().to_string();
    let authority = certificates().authority();
    let words: [&str; 10] = [
        "--port",
        "0",
        "--tls-port",
        &port,
        "--tls-cert-file",
        &path(&certificate.chain),
        "--tls-key-file",
        &path(&certificate.key),
        "--tls-ca-cert-file",
        &path(&authority),
    ];
    words.map(str::to_owned).to_vec()
}

impl Authority for Secure {
    fn url(&self) -> String {
        self.url_at("127.0.0.1")
    }

    fn directory(&self) -> PathBuf {
        self.redis.directory()
    }

    fn buries(&self, key: &str) {
        self.redis.ask::<()>(&["DEL", key]);
    }

    /// Each caller makes two TLS handshakes, which cost both sides many times what a lock costs.
    fn crowd(&self) -> usize {
        60
    }

    fn lead(&self, call: Nxlock) -> Nxlock {
        let call = call.env("NXLOCK_SERVER", self.url()).env("SSL_CERT_FILE", certificates().authority());
        if !self.mutual {
            return call;
        }
        let client = certificates().client();
        call.env("NXLOCK_TLS_CERT", client.chain).env("NXLOCK_TLS_KEY", client.key)
    }
}
