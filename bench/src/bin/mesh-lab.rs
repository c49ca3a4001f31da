//! The processes of `demo-mesh`: a service, or a client.
//!
//! `mesh-lab service NAME ADDRESS [PEER=ADDRESS…] [blob=SIZE…]` serves until it is killed. `mesh-lab load ADDRESS JSON`
//! prints `begin` and `end` at the edges of its window, then what it saw as JSON.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::net::{SocketAddr, TcpListener};
use std::process::ExitCode;

use underdeck_bench::mesh::drive::Drive;
use underdeck_lab::timeline::Service;

fn service(name: &str, at: &str, rest: &[String]) -> io::Result<()> {
    let wrong = |what: &str| io::Error::new(io::ErrorKind::InvalidInput, what.to_owned());
    let (mut peers, mut blobs) = (BTreeMap::new(), Vec::new());
    for argument in rest {
        let (name, value) = argument.split_once('=').ok_or_else(|| wrong(argument))?;
        match name {
            "blob" => blobs.push(value.parse().map_err(|_| wrong(argument))?),
            _ => drop(peers.insert(name.to_owned(), value.parse().map_err(|_| wrong(argument))?)),
        }
    }
    let service = Service::new(name, &peers, &blobs)?;
    service.serve(&TcpListener::bind(at)?)
}

fn load(at: &str, json: &str) -> Result<(), Box<dyn std::error::Error>> {
    let drive: Drive = serde_json::from_str(json)?;
    let say = |line: &str| {
        let mut out = io::stdout();
        // Nobody listens any more: there is nothing to measure for.
        let _ = writeln!(out, "{line}").and_then(|()| out.flush());
    };
    let seen = drive.load(at.parse::<SocketAddr>()?, say)?;
    println!("{}", serde_json::to_string(&seen)?);
    Ok(())
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let done = match words[..] {
        ["service", name, at, ..] => service(name, at, &arguments[3..]).map_err(Into::into),
        ["load", at, json] => load(at, json),
        _ => {
            eprintln!("usage: mesh-lab service NAME ADDRESS [PEER=ADDRESS…] [blob=SIZE…] | mesh-lab load ADDRESS JSON");
            return ExitCode::from(2);
        }
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("mesh-lab: {error}");
            ExitCode::from(70)
        }
    }
}
