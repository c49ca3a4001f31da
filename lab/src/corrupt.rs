//! A relay that damages what it forwards: the proof that the comparisons can fail.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};

use crate::LabError;
use crate::error::While;

/// What is done to the bytes from the backend to the client, once per connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Damage {
    /// Nothing: a plain relay.
    None,
    /// Flips one bit of the byte at this offset of the connection.
    Flip(u64),
    /// Leaves this byte out.
    Drop(u64),
    /// Sends this byte twice.
    Repeat(u64),
}

/// Starts relaying to `backend`; returns where it listens. Its threads end with their connections and the process.
pub fn relay(backend: SocketAddr, damage: Damage) -> Result<SocketAddr, LabError> {
    let what = || "listen for the damaging relay".to_owned();
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).doing(what)?;
    let addr = listener.local_addr().doing(what)?;
    std::thread::spawn(move || {
        for client in listener.incoming().flatten() {
            let Ok(upstream) = TcpStream::connect(backend) else { continue };
            let (Ok(from_client), Ok(to_upstream)) = (client.try_clone(), upstream.try_clone()) else { continue };
            std::thread::spawn(move || copy(from_client, to_upstream, Damage::None));
            std::thread::spawn(move || copy(upstream, client, damage));
        }
    });
    Ok(addr)
}

fn copy(mut from: TcpStream, mut to: TcpStream, damage: Damage) {
    let mut block = [0; 16 * 1024];
    let mut at = 0u64;
    while let Ok(n @ 1..) = from.read(&mut block) {
        let mut data = block[..n].to_vec();
        let inside = |offset: u64| (at..at + n as u64).contains(&offset).then(|| (offset - at) as usize);
        match damage {
            Damage::Flip(offset) => {
                if let Some(i) = inside(offset) {
                    data[i] ^= 1;
                }
            }
            Damage::Drop(offset) => drop(inside(offset).map(|i| data.remove(i))),
            Damage::Repeat(offset) => {
                if let Some(i) = inside(offset) {
                    data.insert(i, data[i]);
                }
            }
            Damage::None => {}
        }
        at += n as u64;
        if to.write_all(&data).is_err() {
            break;
        }
    }
    // Either side may be gone.
    let _ = to.shutdown(Shutdown::Write);
}
