//! The examples in the documents, and the help of every verb, are run as written.

#[test]
fn documents_and_help_say_what_the_command_does() {
    let cases = trycmd::TestCases::new();
    // Whatever the tester's own environment says.
    cases.env("UNDERDECK", "").env("LD_PRELOAD", "").env("NO_COLOR", "1").env("COLUMNS", "100");
    cases.case("tests/cmd/*.trycmd");
    for document in ["run", "stat", "metrics", "doctor"] {
        cases.case(format!("../docs/{document}.md"));
    }
}

mod common;

fn document(name: &str) -> String {
    let path = format!("{}/../docs/{name}.md", env!("CARGO_MANIFEST_DIR"));
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"))
}

#[test]
fn the_documents_list_every_reason() {
    let text = document("stat");
    for reason in underdeck_stats::Reason::ALL {
        let row = format!("| `{}` | {} |", reason.name(), reason.text());
        assert!(text.lines().any(|line| line == row), "docs/stat.md lacks: {row}");
    }
}

#[test]
fn the_documents_list_every_metric() {
    let text = document("metrics");
    let done = common::World::default().underdeck(&["metrics", "--once"]);
    for family in done.out.lines().filter_map(|line| line.strip_prefix("# TYPE ")) {
        let (name, kind) = family.split_once(' ').expect("a name and a type");
        let name = if kind == "counter" { format!("{name}_total") } else { name.to_owned() };
        let stem = name.strip_suffix("_max").unwrap_or(&name);
        assert!(text.contains(&format!("`{stem}`")), "docs/metrics.md lacks {name}");
    }
}

#[test]
fn the_documents_list_everything_that_doctor_looks_at() {
    let text = document("doctor");
    let done = common::World::default().underdeck(&["doctor", "--json"]);
    let json: serde_json::Value = serde_json::from_str(&done.out).expect("JSON");
    for finding in json["findings"].as_array().expect("a list") {
        let id = finding["id"].as_str().expect("a word");
        assert!(text.contains(&format!("`{id}`")), "docs/doctor.md lacks {id}");
    }
}
