//! The fast backend: nginx serving deterministic files, with `sendfile` or without.

use std::io::Write;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;

use tempfile::TempDir;

use crate::error::While;
use crate::load::Sending;
use crate::place::Place;
use crate::ports::Port;
use crate::process::Process;
use crate::proxy::{directory, ready, worker_user, write};
use crate::tools::Tool;
use crate::{LabError, content};

/// Bytes that the files of one size have together, about: more than the cache of a CPU holds.
const OF_A_SIZE: u64 = 64 << 20;
/// Files of one size at most.
const COPIES: u64 = 64;

/// nginx with files of each size, `/SIZE.N`, whose content has the size as its seed. There are so many of a size that they
/// are not in the CPU's cache when they are served in turn, which is how payload comes from a network.
///
/// `/SIZE.N` is sent by `sendfile`; `/write/SIZE.N` is read into buffers and written, as an application does and nginx by
/// default.
#[derive(Debug)]
pub struct Files {
    process: Process,
    port: Port,
    dir: TempDir,
}

impl Files {
    /// Starts it, pinned to the given CPUs.
    pub fn start(sizes: &[u64], cpus: &[usize]) -> Result<Self, LabError> {
        Self::start_at(sizes, &Place::on(cpus))
    }

    /// Starts it in a place.
    pub fn start_at(sizes: &[u64], place: &Place) -> Result<Self, LabError> {
        let dir = directory()?;
        for size in sizes {
            let data = content::bytes(*size, 0, *size as usize);
            for name in names(*size) {
                let path = dir.path().join(name);
                let mut file = std::fs::File::create(&path).doing(|| format!("create {}", path.display()))?;
                file.write_all(&data).doing(|| format!("write {}", path.display()))?;
            }
        }
        let port = place.within(|| Port::free_at(place.ip()))?;
        let config = write(dir.path(), "files.conf", &config(dir.path(), port.addr()))?;
        let mut command = Command::new(Tool::Nginx.path()?);
        command.arg("-p").arg(dir.path()).arg("-e").arg(dir.path().join("error.log")).arg("-c").arg(config);
        command.args(["-g", "daemon off;"]);
        place.apply(&mut command);
        let mut process = Process::spawn("files", dir.path(), command)?;
        place.within(|| ready(&mut process, port.addr()))?;
        Ok(Self { process, port, dir })
    }

    /// Where it listens.
    pub fn addr(&self) -> SocketAddr {
        self.port.addr()
    }

    /// Where the files are.
    pub fn folder(&self) -> &Path {
        self.dir.path()
    }

    /// Stops it.
    pub fn stop(self) -> Result<(), LabError> {
        self.process.stop()
    }
}

/// The files of a size.
pub fn names(size: u64) -> impl Iterator<Item = String> {
    let copies = (OF_A_SIZE / size.max(1)).clamp(1, COPIES);
    (0..copies).map(move |copy| format!("{size}.{copy}"))
}

/// Where the files of a size are served, sent in this way.
pub fn targets(size: u64, sending: Sending) -> impl Iterator<Item = String> {
    let folder = match sending {
        Sending::Sendfile => "/",
        Sending::Write => WRITE,
    };
    names(size).map(move |name| format!("{folder}{name}"))
}

const WRITE: &str = "/write/";

fn config(dir: &Path, listen: SocketAddr) -> String {
    let dir = dir.display();
    let user = worker_user().map(|user| format!("user {user};")).unwrap_or_default();
    format!(
        "{user}\nworker_processes 1;\npid {dir}/files.pid;\nevents {{ worker_connections 4096; }}\nhttp {{\n\
         client_body_temp_path {dir}/b;\nproxy_temp_path {dir}/p;\nfastcgi_temp_path {dir}/f;\nuwsgi_temp_path {dir}/u;\n\
         scgi_temp_path {dir}/s;\naccess_log off;\nsendfile on;\n\
         keepalive_requests 100000000;\nkeepalive_timeout 600s;\nopen_file_cache max=1000;\n\
         server {{ listen {listen} backlog=4096; root {dir}; location {WRITE} {{ alias {dir}/; sendfile off; }} }}\n}}\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::{Connection, Expect, Front, Pace, Request};

    #[test]
    fn both_ways_serve_the_same_files() {
        const SIZE: u64 = 300_000;
        let files = Files::start(&[SIZE], &[]).expect("a backend");
        let mut client = Connection::open(&Front::from(files.addr()), &Pace::default()).expect("connected");
        for sending in [Sending::Sendfile, Sending::Write] {
            let request = Request::get(targets(SIZE, sending).last().expect("a file"));
            client.send(&request).expect("sent");
            let reply = client.receive(&request, Expect { seed: SIZE, from: 0 }).expect("received");
            assert_eq!((reply.head.status(), reply.body.len, reply.body.first_wrong), (200, SIZE, None), "{sending:?}");
        }
        files.stop().expect("stopped");
    }
}
