//! The bare splice relay: the ceiling of what moving payload from socket to socket through a pipe can reach.
//!
//! No HTTP at all: it accepts, connects, and splices both ways through one pipe each; epoll, one thread.

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::buffer::spare_capacity;
use rustix::event::epoll;
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, SpliceFlags, fcntl_setpipe_size, pipe_with, splice};
use tempfile::TempDir;

use crate::LabError;
use crate::error::While;
use crate::place::Place;
use crate::ports::Port;
use crate::process::Process;
use crate::proxy::{directory, ready};

/// The largest pipe that every user may make (`fs.pipe-max-size`).
const PIPE: usize = 1 << 20;
const LISTENER: u64 = u64::MAX;

/// A relay in a process of its own. Dropping it kills it.
#[derive(Debug)]
pub struct Relay {
    process: Process,
    port: Port,
    // Last: the directory goes when the process is gone.
    _dir: TempDir,
}

impl Relay {
    /// Starts `program`, which calls [`serve`] with its two arguments: where to listen, where to connect to.
    pub fn start(program: &Path, backend: SocketAddr, place: &Place) -> Result<Self, LabError> {
        let dir = directory()?;
        let port = place.within(|| Port::free_at(place.ip()))?;
        let mut command = Command::new(program);
        command.arg(port.addr().to_string()).arg(backend.to_string());
        place.apply(&mut command);
        let mut process = Process::spawn("splice-relay", dir.path(), command)?;
        place.within(|| ready(&mut process, port.addr()))?;
        Ok(Self { process, port, _dir: dir })
    }

    /// The program next to the one that runs.
    pub fn program() -> Result<PathBuf, LabError> {
        let what = || "find splice-relay next to this program".to_owned();
        let here = std::env::current_exe().doing(what)?;
        // Tests and examples lie one folder deeper.
        let near = here.ancestors().skip(1).take(2).map(|folder| folder.join("splice-relay"));
        let variable = "UNDERDECK_LAB_RELAY";
        let asked = std::env::var_os(variable).map(PathBuf::from);
        let path = asked.into_iter().chain(near).find(|path| path.is_file());
        let expected = here.with_file_name("splice-relay");
        path.ok_or(LabError::MissingTool { name: "splice-relay", path: expected, variable })
    }

    /// Where it listens.
    pub fn addr(&self) -> SocketAddr {
        self.port.addr()
    }

    /// Its process.
    pub fn process(&self) -> &Process {
        &self.process
    }

    /// Stops it.
    pub fn stop(self) -> Result<(), LabError> {
        self.process.stop()
    }
}

/// One direction: what is read of one socket goes into the pipe, and out of it into the other socket.
struct Way {
    read: OwnedFd,
    write: OwnedFd,
    held: usize,
    ended: bool,
}

impl Way {
    fn new() -> io::Result<Self> {
        let (read, write) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        // A smaller pipe works, only slower.
        let _ = fcntl_setpipe_size(&write, PIPE);
        Ok(Self { read, write, held: 0, ended: false })
    }

    fn over(&self) -> bool {
        self.ended && self.held == 0
    }

    /// Moves what goes.
    fn pump(&mut self, from: &TcpStream, to: &TcpStream) -> io::Result<()> {
        if self.over() {
            return Ok(());
        }
        loop {
            let mut idle = true;
            if !self.ended {
                match moved(from.as_fd(), self.write.as_fd(), PIPE)? {
                    Some(0) => self.ended = true,
                    Some(n) => (self.held, idle) = (self.held + n, false),
                    None => {}
                }
            }
            if self.held > 0
                && let Some(n) = moved(self.read.as_fd(), to.as_fd(), self.held)?
            {
                (self.held, idle) = (self.held - n, false);
            }
            if idle {
                break;
            }
        }
        if self.over() {
            to.shutdown(std::net::Shutdown::Write)?;
        }
        Ok(())
    }
}

fn moved(from: std::os::fd::BorrowedFd<'_>, to: std::os::fd::BorrowedFd<'_>, len: usize) -> io::Result<Option<usize>> {
    match splice(from, None, to, None, len, SpliceFlags::MOVE | SpliceFlags::NONBLOCK) {
        Ok(n) => Ok(Some(n)),
        Err(Errno::AGAIN | Errno::INTR) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

struct Pair {
    client: TcpStream,
    backend: TcpStream,
    up: Way,
    down: Way,
}

/// Relays until the process is killed.
pub fn serve(listen: SocketAddr, backend: SocketAddr) -> io::Result<()> {
    let socket = socket2::Socket::new(socket2::Domain::for_address(listen), socket2::Type::STREAM, None)?;
    socket.set_reuse_address(true)?;
    socket.set_reuse_port(true)?;
    socket.bind(&listen.into())?;
    socket.listen(4096)?;
    let listener = TcpListener::from(socket);
    listener.set_nonblocking(true)?;
    let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    epoll::add(&epoll, &listener, epoll::EventData::new_u64(LISTENER), epoll::EventFlags::IN)?;
    let mut pairs: Vec<Option<Pair>> = Vec::new();
    let mut events = Vec::with_capacity(256);
    loop {
        events.clear();
        match epoll::wait(&epoll, spare_capacity(&mut events), None) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        for event in &events {
            let (data, flags) = (event.data.u64(), event.flags);
            if data == LISTENER {
                while let Ok((client, _)) = listener.accept() {
                    // A client whose backend is not there is dropped.
                    if let Ok(pair) = Pair::open(client, backend, &epoll, pairs.len() as u64 * 2) {
                        pairs.push(Some(pair));
                    }
                }
            } else if let Some(slot) = pairs.get_mut(data as usize / 2)
                && let Some(pair) = slot
                && !pair.pump(data % 2 == 1, flags).unwrap_or(false)
            {
                *slot = None;
            }
        }
    }
}

impl Pair {
    /// Events of the client come with `data`, those of the backend with the number after it.
    fn open(client: TcpStream, backend: SocketAddr, epoll: &OwnedFd, data: u64) -> io::Result<Self> {
        let backend = TcpStream::connect(backend)?;
        let flags = epoll::EventFlags::IN | epoll::EventFlags::OUT | epoll::EventFlags::RDHUP | epoll::EventFlags::ET;
        for stream in [&client, &backend] {
            stream.set_nonblocking(true)?;
            stream.set_nodelay(true)?;
        }
        let pair = Self { client, backend, up: Way::new()?, down: Way::new()? };
        for (stream, data) in [(&pair.client, data), (&pair.backend, data + 1)] {
            epoll::add(epoll, stream, epoll::EventData::new_u64(data), flags)?;
        }
        Ok(pair)
    }

    /// Moves what an event of one side lets go; whether the pair lives on.
    fn pump(&mut self, of_backend: bool, flags: epoll::EventFlags) -> io::Result<bool> {
        let (readable, writable) =
            (!flags.difference(epoll::EventFlags::OUT).is_empty(), flags.contains(epoll::EventFlags::OUT));
        let (up, down) = if of_backend { (writable, readable) } else { (readable, writable) };
        if up {
            self.up.pump(&self.client, &self.backend)?;
        }
        if down {
            self.down.pump(&self.backend, &self.client)?;
        }
        Ok(!(self.up.over() && self.down.over()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::{Connection, Expect, Front, Pace, Request};
    use crate::load::Sending;
    use crate::origin::{Origin, SEED};

    #[test]
    fn every_byte_goes_through() {
        let origin = Origin::start(&Place::default(), 8 << 20, Sending::Write).expect("an origin");
        let (port, backend) = (Port::free().expect("a port"), origin.addr());
        let addr = port.addr();
        // It never ends; the process does.
        std::thread::spawn(move || serve(addr, backend));
        let connect = || TcpStream::connect(addr).is_ok().then_some(());
        crate::wait::until("the relay listens", std::time::Duration::from_secs(20), connect).expect("it listens");
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    let mut client = Connection::open(&Front::from(addr), &Pace::default()).expect("connected");
                    for from in [0, 5, 100_000] {
                        let request = Request::get(format!("/3000000?from={from}"));
                        client.send(&request).expect("sent");
                        let reply = client.receive(&request, Expect { seed: SEED, from }).expect("received");
                        assert_eq!((reply.body.len, reply.body.first_wrong), (3_000_000, None));
                    }
                });
            }
        });
        origin.stop();
    }
}
