//! The end of a connection that was handed over.

use std::io::{ErrorKind, Read};
use std::net::{Shutdown, TcpStream};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use rustix::event::{Timespec, epoll};

/// States in include/net/tcp_states.h. Closed: nothing is owed to the peer, or only what the kernel's TIME-WAIT answers.
const CLOSED: u8 = 7;
/// All is acknowledged, and the peer has not closed.
const FIN_WAIT2: u8 = 5;

/// How often it is looked at while something is unacknowledged, in case that a change of the state was missed.
const LOOK: Duration = Duration::from_millis(200);

/// Closes, and waits until the peer has acknowledged all, however slowly: the kernel gives up one that acknowledges nothing
/// (TCP_USER_TIMEOUT). Then the peer has `patience` to close too. After that no packet needs the rules.
pub fn farewell(mut stream: TcpStream, patience: Duration) {
    let mut deadline: Option<Instant> = None;
    if stream.shutdown(Shutdown::Write).is_err() || stream.set_nonblocking(true).is_err() {
        return;
    }
    // Edge-triggered: a change of the state wakes it up, even one that changes nothing about what can be read.
    let Ok(poll) = epoll::create(epoll::CreateFlags::CLOEXEC) else { return };
    let wanted = epoll::EventFlags::IN | epoll::EventFlags::RDHUP | epoll::EventFlags::ET;
    if epoll::add(&poll, &stream, epoll::EventData::new_u64(0), wanted).is_err() {
        return;
    }
    loop {
        if !drain(&mut stream) {
            return;
        }
        let left = match state(&stream) {
            Some(CLOSED) | None => return,
            Some(FIN_WAIT2) => {
                let deadline = *deadline.get_or_insert_with(|| Instant::now() + patience);
                deadline.saturating_duration_since(Instant::now())
            }
            Some(_) => LOOK,
        };
        let Ok(timeout) = Timespec::try_from(left) else { return };
        let mut events = [std::mem::MaybeUninit::uninit(); 1];
        let waited = epoll::wait(&poll, &mut events[..], Some(&timeout));
        if left.is_zero() || waited.is_err_and(|error| error != rustix::io::Errno::INTR) {
            return;
        }
    }
}

/// What the client still sends is of no use. False if the connection is broken.
fn drain(stream: &mut TcpStream) -> bool {
    let mut bytes = [0; 4096];
    loop {
        match stream.read(&mut bytes) {
            Ok(0) => return true,
            Ok(_) => {}
            Err(error) => return error.kind() == ErrorKind::WouldBlock,
        }
    }
}

fn state(stream: &TcpStream) -> Option<u8> {
    // TCP_INFO begins with the state in one byte.
    let (mut state, mut length) = (0u8, 1u32);
    // SAFETY: the kernel writes at most `length` bytes.
    let result = unsafe {
        libc::getsockopt(stream.as_raw_fd(), libc::IPPROTO_TCP, libc::TCP_INFO, (&raw mut state).cast(), &mut length)
    };
    (result == 0).then_some(state)
}
