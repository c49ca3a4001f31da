//! The documentation lists every reason for which a program leaves a rule to Envoy, and no other.

use underdeck_mesh_compiler::SurplusReason;

#[test]
fn the_documentation_lists_every_reason() {
    let docs = include_str!("../../../docs/mesh-compile.md");
    let rows: Vec<_> = docs
        .lines()
        .skip_while(|line| !line.starts_with("| code |"))
        .skip(2)
        .take_while(|l| l.starts_with('|'))
        .collect();
    let wanted: Vec<_> =
        SurplusReason::ALL.iter().map(|reason| format!("| `{}` | {} |", reason.code(), reason.text())).collect();
    assert_eq!(rows, wanted);
}
