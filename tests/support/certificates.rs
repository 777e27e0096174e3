//! Certificates made by openssl(1): once for all tests, and valid for two days.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::sync::LazyLock;

use super::lasting::Swept;

/// A certificate and its key, in files.
#[derive(Clone)]
pub struct Certificate {
    pub chain: PathBuf,
    pub key: PathBuf,
}

pub struct Certificates {
    directory: Swept,
}

/// The certificate authorities.
const OURS: &str = "ours";
const ANOTHER: &str = "another";

const HERE: &str = "subjectAltName=DNS:localhost,IP:127.0.0.1,IP:::1";

/// Returns the certificates, which all tests share.
pub fn certificates() -> &'static Certificates {
    static MADE: LazyLock<Certificates> = LazyLock::new(Certificates::make);
    &MADE
}

impl Certificates {
    /// Returns the authority that signs the servers' certificates.
    pub fn authority(&self) -> PathBuf {
        self.certificate(OURS).chain
    }

    /// Returns an authority that has signed none of those.
    pub fn another_authority(&self) -> PathBuf {
        self.certificate(ANOTHER).chain
    }

    /// Returns the certificate of a server at `localhost`, `127.0.0.1` and `::1`.
    pub fn server(&self) -> Certificate {
        self.certificate("server")
    }

    /// Returns the same, signed by an authority that no client trusts.
    pub fn server_of_another_authority(&self) -> Certificate {
        self.certificate("unknown")
    }

    /// Returns the certificate of a server at `elsewhere.example` and `192.0.2.1`.
    pub fn server_elsewhere(&self) -> Certificate {
        self.certificate("elsewhere")
    }

    /// Returns a certificate that was valid in January 2020.
    pub fn server_of_long_ago(&self) -> Certificate {
        self.certificate("expired")
    }

    /// Returns a client certificate.
    pub fn client(&self) -> Certificate {
        self.certificate("client")
    }

    /// Returns a client certificate signed by an authority that no server trusts.
    pub fn client_of_another_authority(&self) -> Certificate {
        self.certificate("stranger")
    }

    fn certificate(&self, name: &str) -> Certificate {
        let file = |kind| self.directory.path().join(format!("{name}.{kind}"));
        Certificate { chain: file("crt"), key: file("key") }
    }

    fn make() -> Certificates {
        let made = Certificates { directory: Swept::make("nxt") };
        for authority in [OURS, ANOTHER] {
            let subject = format!("/CN=nxlock tests: {authority}");
            made.openssl(
                &format!("req -x509 -days 2 {} -out {authority}.crt", new_key(authority)),
                &["-subj", &subject],
            );
        }
        made.sign("server", OURS, HERE);
        made.sign("unknown", ANOTHER, HERE);
        made.sign("elsewhere", OURS, "subjectAltName=DNS:elsewhere.example,IP:192.0.2.1");
        made.sign("client", OURS, "extendedKeyUsage=clientAuth");
        made.sign("stranger", ANOTHER, "extendedKeyUsage=clientAuth");
        made.sign_long_ago("expired");
        made
    }

    fn sign(&self, name: &str, authority: &str, extensions: &str) {
        self.ask_to_be_signed(name, extensions);
        self.openssl(
            &format!(
                "x509 -req -days 2 -in {name}.csr -out {name}.crt -CA {authority}.crt -CAkey {authority}.key \
                 -CAcreateserial -extfile {name}.ext"
            ),
            &[],
        );
    }

    /// Signs by ca(1), with its database: x509(1) only signs certificates that are valid from now on.
    fn sign_long_ago(&self, name: &str) {
        self.ask_to_be_signed(name, HERE);
        let books = "[ca]\ndefault_ca = books\n[books]\ndatabase = books\nserial = number\nnew_certs_dir = .\n\
                     default_md = sha256\npolicy = any\n[any]\ncommonName = supplied\n";
        self.write("ca.cnf", books);
        self.write("books", "");
        self.write("number", "1000\n");
        self.openssl(
            &format!(
                "ca -batch -config ca.cnf -in {name}.csr -out {name}.crt -cert {OURS}.crt -keyfile {OURS}.key \
                 -extfile {name}.ext -notext -startdate 20200101000000Z -enddate 20200131000000Z"
            ),
            &[],
        );
    }

    fn ask_to_be_signed(&self, name: &str, extensions: &str) {
        self.write(&format!("{name}.ext"), &format!("basicConstraints=CA:FALSE\n{extensions}\n"));
        self.openssl(&format!("req {} -out {name}.csr", new_key(name)), &["-subj", &format!("/CN={name}")]);
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.directory.path().join(name), text).expect("written");
    }

    #[track_caller]
    fn openssl(&self, words: &str, more: &[&str]) {
        let mut openssl = Command::new("openssl");
        openssl.args(words.split_whitespace()).args(more).current_dir(self.directory.path());
        let done = openssl.output().unwrap_or_else(|error| {
            panic!("openssl, which these tests need, cannot be started (`apt-get install openssl`): {error}")
        });
        assert!(done.status.success(), "openssl {words}:\n{}", String::from_utf8_lossy(&done.stderr));
    }
}

/// Returns the options for an EC key: an RSA key would take seconds.
fn new_key(name: &str) -> String {
    format!("-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -keyout {name}.key")
}
