//! Reads the configuration of nginx, HAProxy or Envoy and says, per route, whether payload stays untouched under the
//! anchor engine; and if not, which directive at which `file:line:col` touches it, under a stable code, and what
//! happens then.
//!
//! The result is a [`Report`]: findings and routes for people, and a [`Plan`] for the engine, which names the listeners
//! and upstream servers whose payload must be copied as always.
//!
//! ```
//! use underdeck_audit::{Options, Outcome, ProxyKind, check_text};
//!
//! let text = "events {}\nhttp { server { listen 80; location / { proxy_pass http://10.0.0.5:8080; sub_filter a b; } } }\n";
//! let report = check_text(text, "nginx.conf".as_ref(), &Options::of_kind(ProxyKind::Nginx)).unwrap();
//! let finding = report.findings.iter().find(|f| f.code == "UDN101").unwrap();
//! assert_eq!((finding.line, finding.col, finding.outcome), (2, 74, Outcome::LeftOut));
//! assert!(report.plan.to_string().contains("rx-client:10.0.0.5:8080"));
//! ```

mod address;
mod codes;
mod command_line;
mod envoy;
mod error;
mod findings;
mod haproxy;
mod kind;
mod nginx;
mod plan;
mod position;
mod render;
mod report;
mod sources;

use std::path::{Path, PathBuf};

pub use address::Address;
pub use codes::{CODES, Code, explain};
pub use command_line::{CommandLine, find_configs};
pub use error::AuditError;
pub use kind::ProxyKind;
pub use plan::{Plan, PlanError};
pub use render::{SCHEMA, text};
pub use report::{Direction, Finding, Outcome, Report, Route, Severity};

/// What the caller knows beyond the text of the configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// Which proxy the configuration is for; `None`: guess from the name and the text.
    pub kind: Option<ProxyKind>,
    /// Whether the engine can see the program's calls of its TLS library, that is: whether OpenSSL is linked
    /// dynamically. Without it, TLS on a route means `LeftOut` and not `Materialised`. Envoy never lets us see it.
    pub tls_is_visible: bool,
    /// Configuration from the command line besides the files: nginx's `-g`, Envoy's `--config-yaml`.
    pub inline: Option<String>,
}

impl Default for Options {
    fn default() -> Self {
        Self { kind: None, tls_is_visible: true, inline: None }
    }
}

impl Options {
    /// The defaults, for a known kind of proxy.
    pub fn of_kind(kind: ProxyKind) -> Self {
        Self { kind: Some(kind), ..Self::default() }
    }
}

/// Reads the configuration at `path`, with everything that it includes, and checks it.
///
/// For HAProxy, `path` may be a directory; see [`check_files`] for several files.
///
/// # Errors
/// A file cannot be read, is not well-formed (with `file:line:col`), or its kind cannot be guessed.
pub fn check(path: &Path, kind: Option<ProxyKind>) -> Result<Report, AuditError> {
    check_files(&[path.to_path_buf()], &Options { kind, ..Options::default() })
}

/// As [`check`], for the files that a program reads one after the other (`haproxy -f a -f b`). nginx and Envoy read one:
/// the first counts.
///
/// # Errors
/// As [`check`]; and [`AuditError::NothingToRead`] when `paths` is empty.
pub fn check_files(paths: &[PathBuf], options: &Options) -> Result<Report, AuditError> {
    if let (true, Some(ProxyKind::Envoy), Some(yaml)) = (paths.is_empty(), options.kind, &options.inline) {
        let options = Options { inline: None, ..options.clone() };
        return check_text(yaml, "--config-yaml".as_ref(), &options);
    }
    let files = sources::read_all(paths)?;
    let kind = match options.kind {
        Some(kind) => kind,
        None => files.iter().find_map(|f| ProxyKind::guess(&f.path, &f.text)).ok_or_else(|| unknown_kind(&files))?,
    };
    match kind {
        ProxyKind::Nginx => nginx::audit(&files[0], options),
        ProxyKind::Haproxy => haproxy::audit(&files, options),
        ProxyKind::Envoy => envoy::audit(&files[0], options),
    }
}

/// Checks a configuration that is already in memory; `name` is what findings call the file, and where nginx's relative
/// includes start.
///
/// # Errors
/// As [`check`].
pub fn check_text(text: &str, name: &Path, options: &Options) -> Result<Report, AuditError> {
    let file = sources::File { path: name.to_path_buf(), text: text.to_owned() };
    let Some(kind) = options.kind.or_else(|| ProxyKind::guess(name, text)) else {
        return Err(unknown_kind(&[file]));
    };
    match kind {
        ProxyKind::Nginx => nginx::audit(&file, options),
        ProxyKind::Haproxy => haproxy::audit(&[file], options),
        ProxyKind::Envoy => envoy::audit(&file, options),
    }
}

fn unknown_kind(files: &[sources::File]) -> AuditError {
    AuditError::UnknownKind { path: files.first().map(|f| f.path.clone()).unwrap_or_default() }
}
