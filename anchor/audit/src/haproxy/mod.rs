//! HAProxy: from files to a report.
pub(crate) fn audit(_: &[crate::sources::File], _: &crate::Options) -> Result<crate::Report, crate::AuditError> {
    Err(crate::AuditError::NothingToRead { path: None })
}
