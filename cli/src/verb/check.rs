//! `underdeck check FILE…`: what a proxy's configuration does to payload.

use std::path::{Path, PathBuf};

use underdeck_audit::{AuditError, CODES, Options, ProxyKind, Report, check_files, explain, text};

use crate::env::Env;
use crate::exit::{Exit, Failure};

/// Read a proxy's configuration and say where payload stays untouched
///
/// Includes are followed. Each directive that looks at payload is named with file:line:col, a stable code, and what
/// happens then: materialised (correct, without a gain), left out (copied as without Underdeck) or refused. Several
/// files are one configuration for HAProxy, and one each for nginx and Envoy. `-` is stdin, for what `nginx -T` prints.
/// Ends with 1 when something looks at payload.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The configuration: nginx.conf, haproxy.cfg (or its directory), envoy.yaml
    #[arg(required_unless_present = "explain")]
    files: Vec<PathBuf>,
    /// Which proxy it is for, if that cannot be told from its name and text
    #[arg(long, value_name = "KIND", value_parser = kind)]
    kind: Option<ProxyKind>,
    /// The proxy's TLS library is built into it: TLS on a route then leaves the route out
    #[arg(long)]
    static_tls: bool,
    /// Print every note, also those that repeat
    #[arg(long)]
    all: bool,
    /// Print JSON (schema 1)
    #[arg(long)]
    json: bool,
    /// Explain a code instead, such as UDN101; "list" lists them all
    #[arg(long, value_name = "CODE", conflicts_with = "files")]
    explain: Option<String>,
}

/// Why nothing could be checked.
#[derive(Debug, thiserror::Error)]
pub enum CheckError {
    /// The configuration cannot be read.
    #[error(transparent)]
    Audit(#[from] AuditError),
    /// No such code.
    #[error("there is no code {0}; `underdeck check --explain list` lists them")]
    NoCode(String),
}

impl CheckError {
    /// The exit code that belongs to it.
    pub fn exit(&self) -> Exit {
        use std::io::ErrorKind::{NotFound, PermissionDenied};
        match self {
            Self::NoCode(_) | Self::Audit(AuditError::NothingToRead { .. }) => Exit::Nothing,
            Self::Audit(AuditError::Read { source, .. } | AuditError::Include { source, .. }) => match source.kind() {
                NotFound => Exit::Nothing,
                PermissionDenied => Exit::Missing,
                _ => Exit::Bad,
            },
            Self::Audit(AuditError::UnknownKind { .. }) => Exit::Usage,
            Self::Audit(_) => Exit::Bad,
        }
    }
}

fn kind(word: &str) -> Result<ProxyKind, String> {
    word.parse().map_err(|()| "one of nginx, haproxy, envoy".to_owned())
}

/// Reads, checks and prints.
pub fn check(args: &Args, env: &mut Env<'_>) -> Result<Exit, Failure> {
    if let Some(code) = &args.explain {
        return print_code(code, env);
    }
    let reports = reports(args).map_err(CheckError::from)?;
    for (index, report) in reports.iter().enumerate() {
        if args.json {
            writeln!(env.out, "{}", report.to_json()?)?;
            continue;
        }
        if reports.len() > 1 {
            let gap = if index == 0 { "" } else { "\n" };
            writeln!(env.out, "{gap}{}", report.files.first().map_or("", String::as_str))?;
        }
        env.out.write_all(text(report, args.all).as_bytes())?;
    }
    Ok(if reports.iter().all(Report::is_clean) { Exit::Ok } else { Exit::Bad })
}

fn reports(args: &Args) -> Result<Vec<Report>, AuditError> {
    let stdin = |file: &PathBuf| if file == Path::new("-") { PathBuf::from("/dev/stdin") } else { file.clone() };
    let files: Vec<PathBuf> = args.files.iter().map(stdin).collect();
    let options = Options { kind: args.kind, tls_is_visible: !args.static_tls, ..Options::default() };
    let together = check_files(&files, &options)?;
    if together.kind == ProxyKind::Haproxy || files.len() == 1 {
        return Ok(vec![together]);
    }
    // nginx and Envoy read one file each.
    files.iter().map(|file| check_files(std::slice::from_ref(file), &options)).collect()
}

fn print_code(code: &str, env: &mut Env<'_>) -> Result<Exit, Failure> {
    if code == "list" {
        for code in CODES {
            writeln!(env.out, "{}  {:12}  {}", code.id, code.outcome.words(), code.title)?;
        }
        return Ok(Exit::Ok);
    }
    let explanation = explain(code).ok_or_else(|| CheckError::NoCode(code.to_owned()))?;
    writeln!(env.out, "{explanation}")?;
    Ok(Exit::Ok)
}
