//! `underdeck handoff keys`: certificates for the control connections.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use underdeck_handoff_control::keys::{self, Role};

use crate::env::Env;
use crate::exit::{Exit, Failure};
use crate::verb::handoff::HandoffError;

/// Make the certificates with which balancers and backends know each other
///
/// Writes authority.pem, and NAME.pem and NAME.key for each name. Every host needs authority.pem and its own two files.
/// The authority's key is not kept, so make them all at once; they do not expire.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Where to write; it is made if it is missing
    folder: PathBuf,
    /// The peers
    #[arg(required = true, value_name = "NAME")]
    names: Vec<String>,
    /// Which of them is a balancer (again for each one); the others are backends
    #[arg(long = "balancer", value_name = "NAME", default_value = "balancer")]
    balancers: Vec<String>,
}

/// Makes and writes them.
pub fn keys(args: &Args, env: &mut Env<'_>) -> Result<Exit, Failure> {
    let role = |name: &String| if args.balancers.contains(name) { Role::Balancer } else { Role::Backend };
    let peers: Vec<(String, Role)> = args.names.iter().map(|name| (name.clone(), role(name))).collect();
    let made = keys::make(&peers).map_err(HandoffError::from)?;
    let authority = args.folder.join("authority.pem");
    if authority.exists() {
        return Err(HandoffError::Keys(authority).into());
    }
    fs::create_dir_all(&args.folder).map_err(|error| HandoffError::Write { path: args.folder.clone(), error })?;
    for (name, certificate, key) in &made.peers {
        write(&args.folder.join(format!("{name}.pem")), certificate, 0o644)?;
        write(&args.folder.join(format!("{name}.key")), key, 0o600)?;
    }
    write(&authority, &made.authority, 0o644)?;
    for (name, role) in &peers {
        writeln!(env.out, "{name}: {}", role.name())?;
    }
    Ok(Exit::Ok)
}

fn write(path: &Path, text: &str, mode: u32) -> Result<(), HandoffError> {
    let file = OpenOptions::new().write(true).create(true).truncate(true).mode(mode).open(path);
    file.and_then(|mut file| file.write_all(text.as_bytes()))
        .map_err(|error| HandoffError::Write { path: path.to_owned(), error })
}
