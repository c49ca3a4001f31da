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
