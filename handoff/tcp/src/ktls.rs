//! Kernel TLS: the record keys and sequence numbers of both directions.
//!
//! A record that was sent or received in part is not exported by any kernel, so a connection is handed over only with
//! both queues empty.

use std::fmt;
use std::io;
use std::os::fd::RawFd;

use crate::sys;

const SOL_TLS: i32 = 282;
const TLS_TX: i32 = 1;
const TLS_RX: i32 = 2;
const ULP_NAME: usize = 16;

/// `struct tls_crypto_info`: version and cipher type.
const HEADER: usize = 4;

/// Why kernel TLS state could not be taken or restored.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KtlsError {
    /// The kernel has no TLS.
    #[error(
        "this kernel has no TLS (CONFIG_TLS, module tls): the connection carries kernel TLS and cannot be restored here"
    )]
    Unavailable,
    /// Another upper layer protocol than TLS is on the socket.
    #[error("the socket has the upper layer protocol {0:?}, of which only tls can be handed over")]
    OtherProtocol(String),
    /// A record is under way.
    #[error("kernel TLS can be handed over between records only: {receive} bytes are unread and {send} unacknowledged")]
    Busy {
        /// Bytes in the receive queue.
        receive: u32,
        /// Bytes in the send queue.
        send: u32,
    },
    /// A cipher whose state has another layout.
    #[error(
        "cipher type {0} of linux/tls.h is not supported: AES-GCM-128, AES-GCM-256, AES-CCM-128 and CHACHA20-POLY1305 are"
    )]
    Cipher(u16),
    /// A system call failed.
    #[error("{call}: {source}")]
    Call {
        /// The option.
        call: &'static str,
        /// What the kernel said.
        source: io::Error,
    },
}

/// The state of a direction: `struct tls12_crypto_info_…` of `linux/tls.h`, as bytes in the order of the host.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Direction(Vec<u8>);

/// Both directions; one may be left to user space.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Ktls {
    pub tx: Option<Direction>,
    pub rx: Option<Direction>,
}

impl Direction {
    /// Checks version, cipher and length.
    pub fn parse(bytes: &[u8]) -> Result<Direction, KtlsError> {
        let cipher = bytes.get(2..HEADER).map_or(0, |cipher| u16::from_ne_bytes([cipher[0], cipher[1]]));
        match size(cipher) {
            Some(size) if size == bytes.len() => Ok(Direction(bytes.to_vec())),
            _ => Err(KtlsError::Cipher(cipher)),
        }
    }

    pub fn bytes(&self) -> &[u8] {
        &self.0
    }
}

impl Drop for Direction {
    /// Keys do not stay in freed memory.
    fn drop(&mut self) {
        for byte in &mut self.0 {
            // SAFETY: a valid, exclusive reference. Volatile, so that it is not optimised away.
            unsafe { std::ptr::write_volatile(byte, 0) };
        }
    }
}

impl fmt::Debug for Ktls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Ktls {{ tx: {}, rx: {} }}", self.tx.is_some(), self.rx.is_some())
    }
}

/// Bytes of the structure, by cipher type: header, iv, key, salt, record sequence number.
fn size(cipher: u16) -> Option<usize> {
    Some(match cipher {
        51 | 53 => HEADER + 8 + 16 + 4 + 8,
        52 => HEADER + 8 + 32 + 4 + 8,
        54 => HEADER + 12 + 32 + 8,
        _ => return None,
    })
}

/// The TLS state of a socket, if it has any.
pub(crate) fn read(fd: RawFd, receive: u32, send: u32) -> Result<Option<Ktls>, KtlsError> {
    // A kernel without upper layer protocols has no sockets with one.
    let Ok(name) = sys::option_bytes(fd, libc::IPPROTO_TCP, libc::TCP_ULP, ULP_NAME, "TCP_ULP") else {
        return Ok(None);
    };
    let name: Vec<u8> = name.into_iter().take_while(|byte| *byte != 0).collect();
    match name.as_slice() {
        b"" => return Ok(None),
        b"tls" => {}
        _ => return Err(KtlsError::OtherProtocol(String::from_utf8_lossy(&name).into_owned())),
    }
    if receive != 0 || send != 0 {
        return Err(KtlsError::Busy { receive, send });
    }
    Ok(Some(Ktls { tx: direction(fd, TLS_TX, "TLS_TX")?, rx: direction(fd, TLS_RX, "TLS_RX")? }))
}

fn direction(fd: RawFd, name: i32, call: &'static str) -> Result<Option<Direction>, KtlsError> {
    let header = match get(fd, name, HEADER, call) {
        Ok(header) => header,
        // The application has not given this direction to the kernel.
        Err(KtlsError::Call { source, .. }) if source.raw_os_error() == Some(libc::EBUSY) => return Ok(None),
        Err(error) => return Err(error),
    };
    let cipher = header.get(2..HEADER).map_or(0, |cipher| u16::from_ne_bytes([cipher[0], cipher[1]]));
    let size = size(cipher).ok_or(KtlsError::Cipher(cipher))?;
    Direction::parse(&get(fd, name, size, call)?).map(Some)
}

fn get(fd: RawFd, name: i32, room: usize, call: &'static str) -> Result<Vec<u8>, KtlsError> {
    sys::option_bytes(fd, SOL_TLS, name, room, call).map_err(from_call)
}

/// Puts TLS on a restored connection.
pub(crate) fn restore(fd: RawFd, ktls: &Ktls) -> Result<(), KtlsError> {
    sys::set_slice(fd, libc::IPPROTO_TCP, libc::TCP_ULP, b"tls", "TCP_ULP").map_err(|error| {
        match from_call(error) {
            KtlsError::Call { source, .. }
                if matches!(source.raw_os_error(), Some(libc::ENOENT | libc::ENOPROTOOPT)) =>
            {
                KtlsError::Unavailable
            }
            error => error,
        }
    })?;
    for (name, call, direction) in [(TLS_TX, "TLS_TX", &ktls.tx), (TLS_RX, "TLS_RX", &ktls.rx)] {
        if let Some(direction) = direction {
            sys::set_slice(fd, SOL_TLS, name, &direction.0, call).map_err(from_call)?;
        }
    }
    Ok(())
}

fn from_call(error: crate::Error) -> KtlsError {
    match error {
        crate::Error::Call { call, source } => KtlsError::Call { call, source },
        other => KtlsError::Call { call: "TCP_ULP", source: io::Error::other(other.to_string()) },
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsRawFd;

    use super::*;
    use crate::{Error, Snapshot, freeze, thaw};

    /// Version, cipher type, and as many bytes as the cipher has.
    fn state(cipher: u16, length: usize) -> Vec<u8> {
        let mut bytes = vec![167u8; length];
        bytes[0..2].copy_from_slice(&0x0303u16.to_ne_bytes());
        bytes[2..4].copy_from_slice(&cipher.to_ne_bytes());
        bytes
    }

    #[test]
    fn lengths_are_those_of_linux_tls_h() {
        for (cipher, length) in [(51, 40), (52, 56), (53, 40), (54, 56)] {
            assert!(Direction::parse(&state(cipher, length)).is_ok(), "cipher {cipher}");
            assert!(Direction::parse(&state(cipher, length + 1)).is_err(), "cipher {cipher}");
        }
        assert!(matches!(Direction::parse(&state(55, 40)), Err(KtlsError::Cipher(55))));
        assert!(matches!(Direction::parse(&[]), Err(KtlsError::Cipher(0))));
    }

    /// As root: keys travel, and a kernel without TLS refuses them before the connection is lost.
    #[test]
    fn keys_travel_and_a_kernel_without_tls_says_so() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let frozen = freeze(listener.accept().unwrap().0.into(), b"").unwrap();
        let mut snapshot = frozen.snapshot().clone();
        let direction = |cipher| Some(Direction::parse(&state(cipher, 40)).unwrap());
        snapshot.ktls = Some(Ktls { tx: direction(51), rx: None });
        let decoded = Snapshot::decode(&snapshot.encode()).unwrap();
        assert!(decoded == snapshot && decoded.has_ktls());
        assert!(!format!("{decoded:?}").contains("167, 167"), "no keys in logs");

        let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let ulps = std::fs::read_to_string("/proc/sys/net/ipv4/tcp_available_ulp").unwrap_or_default();
        match (thaw(&decoded, free), ulps.split_whitespace().any(|ulp| ulp == "tls")) {
            (Err(Error::Ktls(KtlsError::Unavailable)), false) => {
                eprintln!("kernel TLS is not restored here: tcp_available_ulp is {:?}", ulps.trim());
            }
            (Ok(thawing), true) => {
                assert!(read(thawing.as_raw(), 0, 0).unwrap() == decoded.ktls, "the kernel has the same keys");
            }
            (result, _) => panic!("{result:?} with {ulps:?}"),
        }
        let mut server = TcpStream::from(frozen.resume().unwrap());
        server.write_all(b"fine").unwrap();
        let mut four = [0; 4];
        client.read_exact(&mut four).unwrap();
        assert_eq!(&four, b"fine");
    }

    /// Records of both directions go on in another socket with the keys and sequence numbers that they had.
    #[test]
    fn records_go_on_where_the_kernel_has_tls() {
        let ulps = std::fs::read_to_string("/proc/sys/net/ipv4/tcp_available_ulp").unwrap_or_default();
        if !ulps.split_whitespace().any(|ulp| ulp == "tls") {
            eprintln!("not exercised: tcp_available_ulp is {:?}", ulps.trim());
            return;
        }
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let mut server = listener.accept().unwrap().0;
        // The kernel wants one cipher for both.
        let (down, mut up) = (Direction(state(51, 40)), Direction(state(51, 40)));
        up.0[HEADER..].fill(9);
        let both = |tx: &Direction, rx: &Direction| Ktls { tx: Some(tx.clone()), rx: Some(rx.clone()) };
        restore(server.as_raw_fd(), &both(&down, &up)).unwrap();
        restore(client.as_raw_fd(), &both(&up, &down)).unwrap();
        for round in 0..3 {
            for (mut from, mut to) in [(&client, &server), (&server, &client)] {
                let text = format!("round {round}");
                from.write_all(text.as_bytes()).unwrap();
                let mut got = vec![0; text.len()];
                to.read_exact(&mut got).unwrap();
                assert_eq!(got, text.as_bytes());
            }
            let deadline = std::time::Instant::now() + std::time::Duration::from_secs(20);
            while sys::ioctl_int(server.as_raw_fd(), libc::TIOCOUTQ, "SIOCOUTQ").unwrap() > 0 {
                assert!(std::time::Instant::now() < deadline, "the last record is not acknowledged");
                std::thread::yield_now();
            }
            let frozen = freeze(server.into(), b"").unwrap();
            let snapshot = Snapshot::decode(&frozen.snapshot().encode()).unwrap();
            assert!(snapshot.has_ktls());
            frozen.release();
            server = TcpStream::from(thaw(&snapshot, snapshot.local()).unwrap().finish().unwrap());
            server.set_nonblocking(false).unwrap();
        }
    }
}
