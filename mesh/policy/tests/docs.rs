//! The documentation lists every reason, and no other.

use underdeck_mesh_policy::form::Reason;

#[test]
fn the_documentation_lists_every_reason() {
    let docs = include_str!("../../../docs/mesh-check.md");
    let rows: Vec<_> = docs.lines().filter(|line| line.starts_with("| `") && line.matches('|').count() == 3).collect();
    let wanted: Vec<_> =
        Reason::ALL.iter().map(|reason| format!("| `{}` | {} |", reason.code(), reason.text())).collect();
    assert_eq!(rows, wanted);
    let codes: std::collections::BTreeSet<_> = Reason::ALL.iter().map(|reason| reason.code()).collect();
    assert_eq!(codes.len(), Reason::ALL.len());
}
