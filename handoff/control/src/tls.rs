//! Mutually authenticated TLS 1.3 between balancer and backends.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::server::{ParsedCertificate, WebPkiClientVerifier};
use rustls::{ClientConfig, ClientConnection, RootCertStore, ServerConfig, ServerConnection, StreamOwned};

use crate::keys::Role;
use crate::message::Message;

/// `IPTOS_LOWDELAY` of netinet/ip.h, and `TC_PRIO_INTERACTIVE` of linux/pkt_sched.h, which Linux takes it for.
const LOW_DELAY: i32 = 0x10;
const INTERACTIVE: i32 = 6;

/// Why the channel cannot be set up.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be read or holds something else.
    #[error("{path}: {source}. `underdeck handoff keys` makes these files")]
    Pem {
        /// Which file.
        path: PathBuf,
        /// What is wrong.
        source: rustls::pki_types::pem::Error,
    },
    /// Another role's certificate.
    #[error("{path}: this is not a {role}'s certificate. `underdeck handoff keys --balancer NAME` says who is which")]
    Role {
        /// Which file.
        path: PathBuf,
        /// The role that it should be for.
        role: &'static str,
    },
    /// Certificate and key do not fit.
    #[error("the certificates cannot be used: {0}. `underdeck handoff keys` makes ones that fit together")]
    Unfit(String),
}

/// This peer's certificate and what it expects of others.
#[derive(Clone, Debug)]
pub struct Identity {
    role: Role,
    client: Arc<ClientConfig>,
    server: Arc<ServerConfig>,
}

/// A control connection.
pub struct Channel {
    stream: Side,
}

enum Side {
    Client(StreamOwned<ClientConnection, TcpStream>),
    Server(StreamOwned<ServerConnection, TcpStream>),
}

impl Identity {
    /// From PEM files. `role` is this peer's own: it talks to peers of the other role only.
    ///
    /// # Errors
    /// [`TlsError`] with the file.
    pub fn load(role: Role, authority: &Path, certificate: &Path, key: &Path) -> Result<Identity, TlsError> {
        let pem = |path: &Path| {
            let path = path.to_owned();
            move |source| TlsError::Pem { path, source }
        };
        let unfit = |error: &dyn std::fmt::Display| TlsError::Unfit(error.to_string());
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_file(authority).map_err(pem(authority))?).map_err(|error| unfit(&error))?;
        let roots = Arc::new(roots);
        let own = CertificateDer::from_pem_file(certificate).map_err(pem(certificate))?;
        check_role(&own, role).map_err(|_| TlsError::Role { path: certificate.to_owned(), role: role.name() })?;
        let chain = vec![own];
        let key = PrivateKeyDer::from_pem_file(key).map_err(pem(key))?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let client = ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(|error| unfit(&error))?
            .with_root_certificates(Arc::clone(&roots))
            .with_client_auth_cert(chain.clone(), key.clone_key())
            .map_err(|error| unfit(&error))?;
        let verifier = WebPkiClientVerifier::builder_with_provider(roots, Arc::clone(&provider))
            .build()
            .map_err(|error| unfit(&error))?;
        let mut server = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(|error| unfit(&error))?
            .with_client_cert_verifier(verifier)
            .with_single_cert(chain, key)
            .map_err(|error| unfit(&error))?;
        // Connections are persistent: nothing to resume.
        server.send_tls13_tickets = 0;
        Ok(Identity { role, client: Arc::new(client), server: Arc::new(server) })
    }

    /// Connects; each later step has `patience`.
    ///
    /// # Errors
    /// Those of the connection and of the handshake.
    pub fn connect(&self, to: SocketAddr, patience: Duration) -> io::Result<Channel> {
        let stream = prepared(TcpStream::connect_timeout(&to, patience)?, patience)?;
        let name = ServerName::try_from(self.role.other().certificate_name()).map_err(io::Error::other)?;
        let session = ClientConnection::new(Arc::clone(&self.client), name).map_err(io::Error::other)?;
        let mut stream = StreamOwned::new(session, stream);
        while stream.conn.is_handshaking() {
            stream.conn.complete_io(&mut stream.sock)?;
        }
        Ok(Channel { stream: Side::Client(stream) })
    }

    /// Does the other side of the handshake; `patience` is for the handshake only.
    ///
    /// # Errors
    /// Those of the connection and of the handshake.
    pub fn accept(&self, stream: TcpStream, patience: Duration) -> io::Result<Channel> {
        let stream = prepared(stream, patience)?;
        let session = ServerConnection::new(Arc::clone(&self.server)).map_err(io::Error::other)?;
        let mut stream = StreamOwned::new(session, stream);
        while stream.conn.is_handshaking() {
            stream.conn.complete_io(&mut stream.sock)?;
        }
        let certificate =
            stream.conn.peer_certificates().and_then(<[_]>::first).ok_or(io::ErrorKind::PermissionDenied)?;
        check_role(certificate, self.role.other()).map_err(io::Error::other)?;
        Ok(Channel { stream: Side::Server(stream) })
    }
}

impl Channel {
    /// Sends a message.
    ///
    /// # Errors
    /// Those of the connection.
    pub fn send(&mut self, message: &Message) -> io::Result<()> {
        message.write(&mut self.read_write())
    }

    /// Waits for a message.
    ///
    /// # Errors
    /// Those of the connection, among them `WouldBlock` after the patience; `InvalidData` for what is no message.
    pub fn receive(&mut self) -> io::Result<Message> {
        Message::read(&mut self.read_write())
    }

    /// Waits for as long as it takes until a message begins; then it must be there within `patience`, which also holds
    /// for what is sent and received from now on.
    ///
    /// # Errors
    /// As [`receive`](Self::receive).
    pub fn wait(&mut self, patience: Duration) -> io::Result<Message> {
        self.socket().set_read_timeout(None)?;
        let mut first = [0];
        self.read_write().read_exact(&mut first)?;
        self.socket().set_read_timeout(Some(patience))?;
        Message::read(&mut first.as_slice().chain(self.read_write()))
    }

    /// How long [`receive`](Self::receive) and [`send`](Self::send) wait from now on.
    ///
    /// # Errors
    /// If the socket refuses.
    pub fn set_patience(&self, patience: Duration) -> io::Result<()> {
        self.socket().set_read_timeout(Some(patience))?;
        self.socket().set_write_timeout(Some(patience))
    }

    fn socket(&self) -> &TcpStream {
        match &self.stream {
            Side::Client(stream) => &stream.sock,
            Side::Server(stream) => &stream.sock,
        }
    }

    fn read_write(&mut self) -> &mut dyn ReadWrite {
        match &mut self.stream {
            Side::Client(stream) => stream,
            Side::Server(stream) => stream,
        }
    }
}

/// For tests of what a peer does with bytes that are no message.
impl Channel {
    /// Sends bytes as they are.
    ///
    /// # Errors
    /// Those of the connection.
    pub fn send_raw(&mut self, bytes: &[u8]) -> io::Result<()> {
        let stream = self.read_write();
        stream.write_all(bytes)?;
        stream.flush()
    }
}

trait ReadWrite: Read + Write {}
impl<T: Read + Write> ReadWrite for T {}

/// The verifiers check chains; the name in a client's certificate is left to us.
fn check_role(certificate: &CertificateDer<'_>, role: Role) -> Result<(), rustls::Error> {
    let name = ServerName::try_from(role.certificate_name()).expect("a constant that is a DNS name");
    rustls::client::verify_server_name(&ParsedCertificate::try_from(certificate)?, &name)
}

fn prepared(stream: TcpStream, patience: Duration) -> io::Result<TcpStream> {
    prefer(&stream);
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(patience))?;
    stream.set_write_timeout(Some(patience))?;
    Ok(stream)
}

/// Asks queues on the way to send these packets before bulk data: a client waits for them. Linux goes by the priority
/// where the packets leave, and by the type of service where it routes. Not vital, so a refusal is ignored.
fn prefer(stream: &TcpStream) {
    let service = match stream.local_addr() {
        Ok(SocketAddr::V6(_)) => (libc::IPPROTO_IPV6, libc::IPV6_TCLASS),
        _ => (libc::IPPROTO_IP, libc::IP_TOS),
    };
    // In this order: the type of service sets a priority, too.
    for ((level, name), value) in [(service, LOW_DELAY), ((libc::SOL_SOCKET, libc::SO_PRIORITY), INTERACTIVE)] {
        let length = size_of_val(&value) as libc::socklen_t;
        // SAFETY: the kernel reads one integer.
        unsafe { libc::setsockopt(stream.as_raw_fd(), level, name, (&raw const value).cast(), length) };
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    fn option(stream: &TcpStream, level: i32, name: i32) -> i32 {
        let (mut value, mut length) = (0i32, size_of::<i32>() as libc::socklen_t);
        // SAFETY: the kernel writes one integer.
        let result =
            unsafe { libc::getsockopt(stream.as_raw_fd(), level, name, (&raw mut value).cast(), &raw mut length) };
        assert_eq!(result, 0);
        value
    }

    #[test]
    fn control_messages_go_before_bulk_data() {
        for (host, service) in
            [("127.0.0.1:0", (libc::IPPROTO_IP, libc::IP_TOS)), ("[::1]:0", (libc::IPPROTO_IPV6, libc::IPV6_TCLASS))]
        {
            let listener = TcpListener::bind(host).unwrap();
            let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let stream = prepared(stream, Duration::from_secs(1)).unwrap();
            assert_eq!(option(&stream, service.0, service.1), LOW_DELAY, "{host}");
            assert_eq!(option(&stream, libc::SOL_SOCKET, libc::SO_PRIORITY), INTERACTIVE, "{host}");
        }
    }
}
