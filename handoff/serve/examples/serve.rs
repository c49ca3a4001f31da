//! Runs `balancer FILE`, `backend FILE`, or makes certificates: `keys FOLDER NAME…`.

use std::path::Path;

use underdeck_handoff_control::keys;
use underdeck_handoff_serve::{Config, backend, balancer};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let ready = || println!("ready");
    match args.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["balancer", file] => balancer(Config::load(Path::new(file))?, ready)?,
        ["backend", file] => backend(Config::load(Path::new(file))?, ready)?,
        ["keys", folder, ..] => {
            let role = |name: &String| if name == "balancer" { keys::Role::Balancer } else { keys::Role::Backend };
            let peers: Vec<_> = args[2..].iter().map(|name| (name.clone(), role(name))).collect();
            let made = keys::make(&peers)?;
            let folder = Path::new(folder);
            std::fs::write(folder.join("authority.pem"), made.authority)?;
            for (name, certificate, key) in made.peers {
                std::fs::write(folder.join(format!("{name}.pem")), certificate)?;
                std::fs::write(folder.join(format!("{name}.key")), key)?;
            }
        }
        _ => return Err("usage: serve balancer|backend FILE, or serve keys FOLDER NAME…".into()),
    }
    Ok(())
}
