//! How the demos begin and end.

use std::path::Path;
use std::process::ExitCode;

use serde::Serialize;
use underdeck_lab::LabError;

/// What a demo has to complain about; none if every byte was right.
pub type Verdict = Result<Option<String>, LabError>;

/// Runs a demo with its options, or says what is wrong with them. Exit code 0: every byte was right; 1: not so; 2: the options; 4: root
/// or a tool is missing; 70: something else failed.
pub fn run<O>(name: &str, options: Result<O, String>, demo: impl FnOnce(&O) -> Verdict) -> ExitCode {
    let (what, code) = match options.map(|options| demo(&options)) {
        Ok(Ok(None)) => return ExitCode::SUCCESS,
        Ok(Ok(Some(wrong))) => (wrong, 1),
        Err(usage) => (usage, 2),
        Ok(Err(error @ LabError::MissingTool { .. })) => (error.to_string(), 4),
        Ok(Err(error)) => (error.to_string(), 70),
    };
    eprintln!("{name}: {what}");
    ExitCode::from(code)
}

/// Writes what a demo has measured as JSON.
///
/// # Errors
/// If the file cannot be written.
pub fn save(report: &impl Serialize, path: &Path) -> Result<(), LabError> {
    let failed = |error| LabError::Io { what: format!("write {}", path.display()), error };
    let mut text = serde_json::to_string_pretty(report).map_err(|error| failed(error.into()))?;
    text.push('\n');
    path.parent().map_or(Ok(()), std::fs::create_dir_all).map_err(failed)?;
    std::fs::write(path, text).map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_exit_code_says_what_was_wrong() {
        let ends = |verdict: Verdict| format!("{:?}", run("demo", Ok(()), |()| verdict));
        let code = |code: u8| format!("{:?}", ExitCode::from(code));
        assert_eq!(ends(Ok(None)), code(0));
        assert_eq!(ends(Ok(Some("3 responses were wrong".to_owned()))), code(1));
        assert_eq!(ends(Err(LabError::Tls("no".to_owned()))), code(70));
        assert_eq!(format!("{:?}", run("demo", Err::<(), _>("--x: unknown".to_owned()), |()| Ok(None))), code(2));
    }
}
