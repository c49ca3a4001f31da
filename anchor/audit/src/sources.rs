//! Files, and where they come from.

use std::fs;
use std::path::{Path, PathBuf};

use crate::error::AuditError;

/// A configuration file and its text. Bytes that are not UTF-8 are replaced: directives are ASCII.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct File {
    pub(crate) path: PathBuf,
    pub(crate) text: String,
}

/// Reads files; a directory stands for its `*.cfg` files in the order of their names, as HAProxy takes it.
pub(crate) fn read_all(paths: &[PathBuf]) -> Result<Vec<File>, AuditError> {
    let mut files = Vec::new();
    for path in paths {
        if path.is_dir() {
            for file in files_of_directory(path)? {
                files.push(read(&file)?);
            }
        } else {
            files.push(read(path)?);
        }
    }
    if files.is_empty() {
        return Err(AuditError::NothingToRead { path: paths.first().cloned() });
    }
    Ok(files)
}

fn files_of_directory(directory: &Path) -> Result<Vec<PathBuf>, AuditError> {
    let failed = |source| AuditError::Read { path: directory.to_path_buf(), source };
    let mut files = Vec::new();
    for entry in fs::read_dir(directory).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        let hidden = path.file_name().is_some_and(|n| n.to_string_lossy().starts_with('.'));
        if !hidden && path.extension().is_some_and(|e| e == "cfg") && path.is_file() {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

fn read(path: &Path) -> Result<File, AuditError> {
    let bytes = fs::read(path).map_err(|source| AuditError::Read { path: path.to_path_buf(), source })?;
    Ok(File { path: path.to_path_buf(), text: String::from_utf8_lossy(&bytes).into_owned() })
}
