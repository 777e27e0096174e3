//! TLS over a non-blocking socket, and whom it trusts. Always verifies certificates, and the name they are issued to
//! (RFC 9525).

use std::fmt;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use nix::poll::PollFlags;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{AlertDescription, CertificateError, ClientConfig, ClientConnection, RootCertStore};

use super::credential_file::CredentialFile;
use super::dial::ready;
use super::fault::Fault;
use crate::error::ErrorKind;
use crate::handover::Handed;
use crate::text::{self, Tainted};
use crate::trusted::Unfit;
use crate::wait::Limit;

/// Files in PEM (RFC 7468) for TLS.
#[derive(Clone, Default)]
pub struct TlsFiles {
    /// The authorities that may vouch for a server, instead of the system's roots.
    pub ca: Option<PathBuf>,
    /// The client certificate, for a server that asks for one.
    pub cert: Option<PathBuf>,
    pub key: Option<PathBuf>,
}

/// Trusted authorities and the client certificate, as the files have them when a connection is made.
#[derive(Default)]
pub struct Trust {
    ca: Option<Arc<CredentialFile>>,
    cert: Option<Arc<CredentialFile>>,
    key: Option<Arc<CredentialFile>>,
    made: Mutex<Option<Made>>,
}

/// The contents of all files.
#[derive(PartialEq)]
struct Material {
    /// Those of a file, or the system's.
    authorities: Authorities,
    cert: Option<Arc<[u8]>>,
    key: Option<Arc<[u8]>>,
}

#[derive(PartialEq)]
enum Authorities {
    File(Arc<[u8]>),
    System(Vec<CertificateDer<'static>>),
}

/// Settings, and what they were made of.
struct Made {
    of: Material,
    settings: Arc<ClientConfig>,
}

/// A connection that nobody else can read or change.
pub struct TlsStream {
    socket: TcpStream,
    session: ClientConnection,
}

impl Trust {
    pub fn new(
        ca: Option<Arc<CredentialFile>>,
        cert: Option<Arc<CredentialFile>>,
        key: Option<Arc<CredentialFile>>,
    ) -> Trust {
        Trust { ca, cert, key, made: Mutex::default() }
    }

    /// Returns what was read from files, for a process that takes the place of this one.
    pub fn handed(&self) -> impl Iterator<Item = Handed> {
        [&self.ca, &self.cert, &self.key].into_iter().flatten().filter_map(|file| file.handed())
    }

    /// Returns the settings for a connection.
    fn settings(&self) -> Result<Arc<ClientConfig>, Fault> {
        let material = self.material()?;
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(made) = made.as_ref().filter(|made| made.of == material) {
            return Ok(Arc::clone(&made.settings));
        }
        let settings = self.settings_of(&material)?;
        *made = Some(Made { of: material, settings: Arc::clone(&settings) });
        Ok(settings)
    }

    fn settings_of(&self, material: &Material) -> Result<Arc<ClientConfig>, Fault> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
        let builder = builder.map_err(|error| said(&error))?.with_root_certificates(self.roots(&material.authorities)?);
        let client = self.cert.as_ref().zip(material.cert.as_ref()).zip(self.key.as_ref().zip(material.key.as_ref()));
        let settings = match client {
            Some(((file, certificate), (key_file, key))) => {
                let unusable = |error: rustls::Error| match error {
                    rustls::Error::InconsistentKeys(_) => misconfigured(
                        key_file.path(),
                        "--tls-key",
                        &"it is not the key of the certificate in --tls-cert",
                    ),
                    error => misconfigured(file.path(), "--tls-cert", &error),
                };
                let chain = chain(file.path(), "--tls-cert", certificate)?;
                builder.with_client_auth_cert(chain, private(key_file.path(), key)?).map_err(unusable)?
            }
            None => builder.with_no_client_auth(),
        };
        Ok(Arc::new(settings))
    }

    /// Reads the files.
    fn material(&self) -> Result<Material, Fault> {
        let contents = |file: &Option<Arc<CredentialFile>>, option| {
            let read = file.as_ref().map(|file| file.read().map_err(|unfit| unreadable(file.path(), option, unfit)));
            read.transpose().map(|contents| contents.map(|contents| contents.bytes))
        };
        let authorities = match contents(&self.ca, "--tls-ca")? {
            Some(bytes) => Authorities::File(bytes),
            None => Authorities::System(system()?),
        };
        let (cert, key) = match (&self.cert, &self.key) {
            (Some(_), Some(_)) => (contents(&self.cert, "--tls-cert")?, contents(&self.key, "--tls-key")?),
            _ => (None, None),
        };
        Ok(Material { authorities, cert, key })
    }

    fn roots(&self, authorities: &Authorities) -> Result<RootCertStore, Fault> {
        let mut roots = RootCertStore::empty();
        match (authorities, &self.ca) {
            (Authorities::File(bytes), Some(file)) => {
                for certificate in chain(file.path(), "--tls-ca", bytes)? {
                    roots.add(certificate).map_err(|error| misconfigured(file.path(), "--tls-ca", &error))?;
                }
            }
            (Authorities::System(certificates), _) => {
                roots.add_parsable_certificates(certificates.iter().cloned());
            }
            (Authorities::File(_), None) => {}
        }
        if roots.is_empty() {
            return Err(without_authorities(""));
        }
        Ok(roots)
    }
}

/// Returns the authorities of the system.
fn system() -> Result<Vec<CertificateDer<'static>>, Fault> {
    let found = rustls_native_certs::load_native_certs();
    if found.certs.is_empty() {
        let why = found.errors.first().map(|error| format!(": {}", Tainted::from(error.to_string())));
        return Err(without_authorities(&why.unwrap_or_default()));
    }
    Ok(found.certs)
}

fn without_authorities(why: &str) -> Fault {
    Fault::Known {
        kind: ErrorKind::Misconfigured,
        cause: format!("this system has no trusted CA certificates{why}"),
        hint: "install them (the package ca-certificates), or name a file: --tls-ca FILE",
    }
}

fn chain(file: &Path, option: &str, pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, Fault> {
    let certificates = CertificateDer::pem_slice_iter(pem).collect::<Result<Vec<_>, _>>();
    let certificates = certificates.map_err(|error| match error {
        pem::Error::MissingSectionEnd { .. } => misconfigured(file, option, &"it ends in the middle of a certificate"),
        _ => misconfigured(file, option, &"it holds what is no certificate in PEM"),
    })?;
    if certificates.is_empty() {
        return Err(misconfigured(file, option, &"it holds no certificate in PEM"));
    }
    Ok(certificates)
}

fn private(file: &Path, pem: &[u8]) -> Result<PrivateKeyDer<'static>, Fault> {
    PrivateKeyDer::from_pem_slice(pem)
        .map_err(|_| misconfigured(file, "--tls-key", &"it holds no private key in PEM without a passphrase"))
}

/// Returns what is wrong with which file, sanitised.
fn named(file: &Path, option: &str, cause: &dyn fmt::Display) -> String {
    format!("{option} {}: {}", Tainted::from(file.to_string_lossy().into_owned()), Tainted::from(cause.to_string()))
}

fn unreadable(file: &Path, option: &str, unfit: Unfit) -> Fault {
    match unfit {
        Unfit::Unreadable(error) => misconfigured(file, option, &text::plain(&error)),
        Unfit::Untrusted { cause, hint } => {
            Fault::Known { kind: ErrorKind::Misconfigured, cause: named(file, option, &cause), hint }
        }
    }
}

fn misconfigured(file: &Path, option: &str, cause: &dyn fmt::Display) -> Fault {
    Fault::Known { kind: ErrorKind::Misconfigured, cause: named(file, option, cause), hint: "give a readable PEM file" }
}

impl TlsStream {
    /// Performs the handshake with a server that must prove to be `host`.
    pub fn begin(socket: TcpStream, host: &str, trust: &Trust, limit: Limit<'_>) -> Result<TlsStream, Fault> {
        let name = ServerName::try_from(host.to_owned()).map_err(|_| Fault::Known {
            kind: ErrorKind::Misconfigured,
            cause: "no certificate can be issued for this host name".into(),
            hint: "name the server as its certificate does",
        })?;
        let session = ClientConnection::new(trust.settings()?, name).map_err(|error| said(&error))?;
        let mut tls = TlsStream { socket, session };
        while tls.session.is_handshaking() {
            let operation = match tls.session.wants_write() {
                true => PollFlags::POLLOUT,
                false => PollFlags::POLLIN,
            };
            ready(tls.socket.as_fd(), operation, limit).map_err(|fault| match fault {
                Fault::TimeUp => Fault::Known {
                    kind: ErrorKind::Unreachable,
                    cause: "no answer to the TLS handshake".into(),
                    hint: "check that this is the server's TLS port (tls-port); use redis:// for plaintext",
                },
                other => other,
            })?;
            match if operation == PollFlags::POLLOUT { tls.flush() } else { tls.take_in() } {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                done => done.map_err(fault)?,
            }
        }
        Ok(tls)
    }

    pub fn socket(&self) -> &TcpStream {
        &self.socket
    }

    /// Reads what has arrived; the next read reports an end of file.
    fn take_in(&mut self) -> io::Result<()> {
        let cause = self.session.read_tls(&mut self.socket)?;
        let processed = self.session.process_new_packets();
        if let Err(error) = processed {
            // Tell the server too what is wrong, by a TLS alert.
            let _ = self.flush();
            return Err(io::Error::new(io::ErrorKind::InvalidData, error));
        }
        if cause == 0 && self.session.is_handshaking() {
            return Err(io::Error::new(
                io::ErrorKind::UnexpectedEof,
                "it closed the connection during the TLS handshake",
            ));
        }
        Ok(())
    }

    /// Sends what has been written.
    pub fn flush(&mut self) -> io::Result<()> {
        while self.session.wants_write() {
            self.session.write_tls(&mut self.socket)?;
        }
        Ok(())
    }
}

impl Read for TlsStream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            match self.session.reader().read(buffer) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.take_in()?,
                read => return read,
            }
        }
    }
}

impl Write for TlsStream {
    /// Only buffers the bytes: `flush` sends them.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self.session.writer().write(bytes)? {
            // The buffer is full: send it first.
            0 if !bytes.is_empty() => self.flush().and_then(|()| self.session.writer().write(bytes)),
            accepted => Ok(accepted),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        TlsStream::flush(self)
    }
}

/// Converts the error that ended a connection into a fault with a cause that helps.
pub fn fault(error: io::Error) -> Fault {
    match error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>()) {
        Some(error) => said(error),
        None => Fault::Ended(error),
    }
}

fn said(error: &rustls::Error) -> Fault {
    use AlertDescription as Alert;
    use CertificateError as Flaw;
    use rustls::Error;
    let untrusted = |cause: String, hint| Fault::Known { kind: ErrorKind::Untrusted, cause, hint };
    match error {
        Error::InvalidCertificate(Flaw::Expired | Flaw::ExpiredContext { .. }) => untrusted(
            "its certificate has expired".into(),
            "have the server's certificate renewed; and see whether this machine's clock is right",
        ),
        Error::InvalidCertificate(Flaw::NotValidYet | Flaw::NotValidYetContext { .. }) => {
            untrusted("its certificate is not valid yet".into(), "see whether this machine's clock is right")
        }
        Error::InvalidCertificate(Flaw::NotValidForName | Flaw::NotValidForNameContext { .. }) => untrusted(
            "its certificate is for another name".into(),
            "name the server as its certificate does, or add this name to the certificate (subjectAltName)",
        ),
        Error::InvalidCertificate(Flaw::UnknownIssuer | Flaw::BadSignature) => untrusted(
            "its certificate is signed by an untrusted authority".into(),
            "name the authority's certificate: --tls-ca FILE",
        ),
        Error::InvalidCertificate(flaw) => untrusted(
            format!("its certificate cannot be trusted: {}", Tainted::from(flaw.to_string())),
            "see `openssl s_client -connect HOST:PORT`",
        ),
        Error::AlertReceived(Alert::CertificateRequired) => untrusted(
            "the server requires a client certificate".into(),
            "name one and its key: --tls-cert FILE --tls-key FILE",
        ),
        Error::AlertReceived(
            Alert::BadCertificate
            | Alert::UnknownCA
            | Alert::CertificateExpired
            | Alert::CertificateUnknown
            | Alert::UnsupportedCertificate
            | Alert::CertificateRevoked
            | Alert::AccessDenied
            | Alert::DecryptError,
        ) => untrusted(
            "the server does not trust the client certificate".into(),
            "see --tls-cert, and tls-ca-cert-file of the server",
        ),
        Error::InvalidMessage(_) => Fault::Known {
            kind: ErrorKind::Unreachable,
            cause: "it does not speak TLS".into(),
            hint: "check that this is the server's TLS port (tls-port); use redis:// for plaintext",
        },
        other => Fault::Known {
            kind: ErrorKind::Unreachable,
            cause: format!("TLS failed: {}", Tainted::from(other.to_string())),
            hint: "see the server's log",
        },
    }
}
