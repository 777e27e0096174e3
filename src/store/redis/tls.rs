//! TLS over a non-blocking socket, and whom it trusts. Always verifies certificates, and the name they are issued to
//! (RFC 9525).

use std::fmt;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use nix::poll::PollFlags;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{AlertDescription, CertificateError, ClientConfig, ClientConnection, RootCertStore};

use super::dial::ready;
use super::fault::Fault;
use crate::error::ErrorKind;
use crate::text::Tainted;
use crate::trusted::{self, Unfit};
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

/// Trusted authorities and the client certificate. The first connection that needs the files reads them.
pub struct Trust {
    files: TlsFiles,
    settled: OnceLock<Arc<ClientConfig>>,
}

/// A connection that nobody else can read or change.
pub struct TlsStream {
    socket: TcpStream,
    session: ClientConnection,
}

impl Trust {
    pub fn new(files: TlsFiles) -> Trust {
        Trust { files, settled: OnceLock::new() }
    }

    fn settings(&self) -> Result<Arc<ClientConfig>, Fault> {
        if let Some(settled) = self.settled.get() {
            return Ok(Arc::clone(settled));
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
        let builder = builder.map_err(|error| said(&error))?.with_root_certificates(self.roots()?);
        let settings = match (&self.files.cert, &self.files.key) {
            (Some(certificate), Some(key)) => {
                let unusable = |error: rustls::Error| misconfigured(certificate, "--tls-cert", &error);
                builder.with_client_auth_cert(chain(certificate, "--tls-cert")?, private(key)?).map_err(unusable)?
            }
            _ => builder.with_no_client_auth(),
        };
        Ok(Arc::clone(self.settled.get_or_init(|| Arc::new(settings))))
    }

    fn roots(&self) -> Result<RootCertStore, Fault> {
        let mut roots = RootCertStore::empty();
        if let Some(file) = &self.files.ca {
            for certificate in chain(file, "--tls-ca")? {
                roots.add(certificate).map_err(|error| misconfigured(file, "--tls-ca", &error))?;
            }
            return Ok(roots);
        }
        let found = rustls_native_certs::load_native_certs();
        let (added, _) = roots.add_parsable_certificates(found.certs);
        if added == 0 {
            let why =
                found.errors.first().map(|error| format!(": {}", Tainted::from(error.to_string()))).unwrap_or_default();
            return Err(Fault::Known {
                kind: ErrorKind::Misconfigured,
                cause: format!("this system has no trusted CA certificates{why}"),
                hint: "install them (the package ca-certificates), or name a file: --tls-ca FILE",
            });
        }
        Ok(roots)
    }
}

fn chain(file: &Path, option: &str) -> Result<Vec<CertificateDer<'static>>, Fault> {
    let text = trusted::read(file).map_err(|unfit| unreadable(file, option, unfit))?;
    let certificates = CertificateDer::pem_slice_iter(&text).collect::<Result<Vec<_>, _>>();
    let certificates = certificates.map_err(|error| misconfigured(file, option, &error))?;
    if certificates.is_empty() {
        return Err(misconfigured(file, option, &"it holds no certificate in PEM"));
    }
    Ok(certificates)
}

fn private(file: &Path) -> Result<PrivateKeyDer<'static>, Fault> {
    let text = trusted::read(file).map_err(|unfit| unreadable(file, "--tls-key", unfit))?;
    PrivateKeyDer::from_pem_slice(&text)
        .map_err(|_| misconfigured(file, "--tls-key", &"it holds no private key in PEM without a passphrase"))
}

/// Returns what is wrong with which file, sanitised.
fn named(file: &Path, option: &str, cause: &dyn fmt::Display) -> String {
    format!("{option} {}: {}", Tainted::from(file.to_string_lossy().into_owned()), Tainted::from(cause.to_string()))
}

fn unreadable(file: &Path, option: &str, unfit: Unfit) -> Fault {
    match unfit {
        Unfit::Unreadable(error) => misconfigured(file, option, &error),
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
