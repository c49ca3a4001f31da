//! `splice-relay LISTEN BACKEND`: the bare splice relay of the bench, see `underdeck_lab::relay`.

use std::net::SocketAddr;
use std::process::ExitCode;

fn main() -> ExitCode {
    let addresses: Vec<SocketAddr> = std::env::args().skip(1).filter_map(|it| it.parse().ok()).collect();
    let [listen, backend] = addresses[..] else {
        eprintln!("usage: splice-relay LISTEN BACKEND (addresses with ports)");
        return ExitCode::from(2);
    };
    match underdeck_lab::relay::serve(listen, backend) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("splice-relay: {listen} to {backend}: {error}");
            ExitCode::from(70)
        }
    }
}
