//! Documents of all dialects, read into one [`Policy`].

mod document;
mod edits;
mod envoy;
mod fields;
mod gateway_api;
mod istio;
mod link;
mod set;
mod yaml;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::form::{Origin, Policy};

/// A file, read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Source {
    /// As it stands in messages.
    pub name: String,
    /// Its text.
    pub text: String,
}

/// What was read.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Reading {
    /// The policies.
    pub policy: Policy,
    /// How many documents there were, whatever their kind.
    pub documents: usize,
    /// Documents that hold no policy, such as Deployments: their kinds and places.
    pub passed_over: Vec<(String, Origin)>,
    /// Documents that cannot be read.
    pub errors: Vec<SyntaxError>,
}

/// A document that is not YAML, or that its control plane would refuse (a required field is missing, a value has the
/// wrong type): it is in force nowhere, and nothing of it is in [`Reading::policy`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{origin}: {what}{}", if *.template { " (this looks like a template: render it first)" } else { "" })]
pub struct SyntaxError {
    /// Where.
    pub origin: Origin,
    /// What is wrong.
    pub what: String,
    /// The document holds `{{`.
    pub template: bool,
}

/// A file that cannot be read at all.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The operating system says no.
    #[error("{path}: {source}", path = .path.display())]
    Read {
        /// The file or directory.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// No `.yaml`, `.yml` or `.json` in a directory.
    #[error("{path}: there is no .yaml, .yml or .json file in it", path = .0.display())]
    Empty(PathBuf),
}

/// Reads a set of policies: what one document says of a service holds for the routes of all others.
///
/// This never fails: what cannot be read is in [`Reading::errors`], and the rest is read all the same.
pub fn read(sources: &[Source]) -> Reading {
    let mut set = set::Set::default();
    for source in sources {
        let file: Arc<str> = source.name.as_str().into();
        for parsed in yaml::documents(&file, &source.text) {
            set.documents += 1;
            match parsed {
                Ok(node) => document::read(&mut set, &file, &node),
                Err(error) => set.errors.push(error),
            }
        }
    }
    link::link(set)
}

/// Loads files, and directories with all that is in them (`.yaml`, `.yml`, `.json`), in the order of their names.
///
/// # Errors
///
/// See [`LoadError`]. Bytes that are not UTF-8 are replaced.
pub fn load(paths: &[PathBuf]) -> Result<Vec<Source>, LoadError> {
    let mut sources = Vec::new();
    for path in paths {
        if path.is_dir() {
            let before = sources.len();
            load_directory(path, &mut sources)?;
            if sources.len() == before {
                return Err(LoadError::Empty(path.clone()));
            }
        } else {
            sources.push(load_file(path)?);
        }
    }
    Ok(sources)
}

fn load_directory(directory: &Path, sources: &mut Vec<Source>) -> Result<(), LoadError> {
    let failed = |source| LoadError::Read { path: directory.to_owned(), source };
    let entries = std::fs::read_dir(directory).map_err(failed)?;
    let mut paths = entries.map(|entry| entry.map(|e| e.path())).collect::<Result<Vec<_>, _>>().map_err(failed)?;
    paths.sort();
    for path in paths {
        let is_policy = path.extension().is_some_and(|e| e == "yaml" || e == "yml" || e == "json");
        // A link to a directory might lead round in circles.
        if path.is_dir() && !path.is_symlink() {
            load_directory(&path, sources)?;
        } else if is_policy && path.is_file() {
            sources.push(load_file(&path)?);
        }
    }
    Ok(())
}

fn load_file(path: &Path) -> Result<Source, LoadError> {
    let bytes = std::fs::read(path).map_err(|source| LoadError::Read { path: path.to_owned(), source })?;
    Ok(Source { name: path.display().to_string(), text: String::from_utf8_lossy(&bytes).into_owned() })
}
