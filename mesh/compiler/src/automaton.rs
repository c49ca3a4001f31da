//! Regular expressions as tables: one row per state, one column per class of bytes.

use std::collections::HashMap;
use std::fmt::Write;

use regex_automata::Anchored;
use regex_automata::dfa::Automaton;
use regex_automata::util::primitives::StateID;
use regex_automata::util::start;
use underdeck_mesh_policy::regexes;

use crate::text::{Span, comment};

/// No automaton has more cells: their numbers have 16 bits.
const CELLS_MAX: usize = 32 * 1024;

/// All automata of a program together.
const ALL_CELLS_MAX: usize = 512 * 1024;

/// `ud_automaton.dead` of an automaton that has no state which nothing leads out of.
const NO_STATE: usize = 0xffff;

/// The automata of one program; equal expressions share one.
#[derive(Debug, Default)]
pub(crate) struct Automata {
    known: HashMap<String, usize>,
    tables: Vec<Table>,
    cells: usize,
    full: bool,
}

#[derive(Debug)]
struct Table {
    pattern: String,
    /// Of each byte.
    classes: Vec<usize>,
    /// The next row of each state and class, where the row of a state is its number times the number of columns. In the last column
    /// stands whether a text may end there.
    rows: Vec<usize>,
    end_column: usize,
    /// The row of the state that never leads to a match.
    dead: usize,
}

impl Automata {
    /// A call of C that says whether all of the text matches; None: not for the kernel.
    pub(crate) fn call(&mut self, pattern: &str, span: &Span) -> Option<String> {
        let index = match self.known.get(pattern) {
            Some(index) => *index,
            None => {
                let table = table(pattern)?;
                if self.cells + table.rows.len() > ALL_CELLS_MAX {
                    self.full = true;
                    return None;
                }
                self.cells += table.rows.len();
                self.tables.push(table);
                self.known.insert(pattern.to_owned(), self.tables.len() - 1);
                self.tables.len() - 1
            }
        };
        Some(format!("matches(h, {}, {}, {index} /* {} */)", span.at, span.len, comment(pattern)))
    }

    /// An expression had no room.
    pub(crate) fn is_full(&self) -> bool {
        self.full
    }

    /// The expression that holds where `part` occurs.
    pub(crate) fn containing(part: &str, fold: bool) -> String {
        let mut escaped = String::from(if fold { "(?s:.*)(?i:" } else { "(?s:.*)(?:" });
        for byte in part.bytes() {
            if byte.is_ascii_alphanumeric() || byte >= 0x80 {
                escaped.push(char::from(byte));
            } else {
                let _ = write!(escaped, "\\x{byte:02x}");
            }
        }
        escaped + ")(?s:.*)"
    }

    /// The tables, and the function that walks them.
    pub(crate) fn source(&self) -> String {
        if self.tables.is_empty() {
            return String::new();
        }
        let (mut classes, mut rows) = (Vec::<usize>::new(), Vec::<usize>::new());
        let mut list = String::new();
        for table in &self.tables {
            let known = classes.chunks(256).position(|chunk| chunk == table.classes);
            let at = known.map_or(classes.len(), |chunk| chunk * 256);
            if known.is_none() {
                classes.extend(&table.classes);
            }
            let _ = writeln!(
                list,
                "\t{{{at}, {}, {}, {}}}, /* {} */",
                rows.len(),
                table.end_column,
                table.dead,
                comment(&table.pattern)
            );
            rows.extend(&table.rows);
        }
        let pad = |list: &mut Vec<usize>| list.resize(list.len().next_power_of_two(), 0);
        let count = self.tables.len().next_power_of_two();
        pad(&mut classes);
        pad(&mut rows);
        format!(
            "/* Regular expressions: the class of each byte, and for each state (row) and class (column) the next row. */\n\
             static const ud_u8 classes[{}] = {{\n{}}};\nstatic const ud_u16 rows[{}] = {{\n{}}};\n\
             static const struct ud_automaton automata[{count}] = {{\n{list}}};\n\n#include \"automaton.bpf.h\"\n\n",
            classes.len(),
            numbers(&classes),
            rows.len(),
            numbers(&rows),
        )
    }
}

fn numbers(list: &[usize]) -> String {
    let mut out = String::new();
    for line in list.chunks(32) {
        for number in line {
            let _ = write!(out, "{number},");
        }
        out.push('\n');
    }
    out
}

fn table(pattern: &str) -> Option<Table> {
    let dfa = regexes::automaton(pattern).ok()?;
    let byte_classes = dfa.byte_classes();
    // The last class of the library stands for the end of the text.
    let stride = byte_classes.alphabet_len();
    let end_column = stride - 1;
    let first = dfa.start_state(&start::Config::new().anchored(Anchored::Yes)).ok()?;
    let mut numbers: HashMap<StateID, usize> = HashMap::from([(first, 0)]);
    let mut states = vec![first];
    let mut rows = Vec::new();
    let classes: Vec<usize> = (0..=255u8).map(|byte| usize::from(byte_classes.get(byte))).collect();
    let mut at = 0;
    while at < states.len() {
        let mut row = vec![0; stride];
        for (class, byte) in classes.iter().zip(0..=255u8) {
            let next = dfa.next_state(states[at], byte);
            row[*class] = stride
                * *numbers.entry(next).or_insert_with(|| {
                    states.push(next);
                    states.len() - 1
                });
        }
        row[end_column] = usize::from(dfa.is_match_state(dfa.next_eoi_state(states[at])));
        rows.append(&mut row);
        at += 1;
        if states.len() * stride > CELLS_MAX {
            return None;
        }
    }
    let dead = states.iter().position(|state| dfa.is_dead_state(*state)).map_or(NO_STATE, |state| state * stride);
    Some(Table { pattern: pattern.to_owned(), classes, rows, end_column, dead })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As `automaton.bpf.h` walks a table.
    fn walk(table: &Table, text: &str) -> bool {
        let mut state = 0;
        for byte in text.bytes() {
            if state == table.dead {
                return false;
            }
            state = table.rows[state + table.classes[usize::from(byte)]];
        }
        table.rows[state + table.end_column] == 1
    }

    #[test]
    fn a_part_is_taken_literally() {
        let table = table(&Automata::containing("a.b*", false)).expect("small");
        for (text, wanted) in [("xa.b*y", true), ("a.b*", true), ("aab*", false), ("a.bb", false), ("", false)] {
            assert_eq!(walk(&table, text), wanted, "{text}");
        }
    }

    #[test]
    fn tables_say_what_the_expression_says() {
        for pattern in ["^(.*?;)?(user=tester)(;.*)?$", "/items/[0-9]+(/.*)?", "a|bc?|", "(?i)gold.*"] {
            let (table, regex) = (table(pattern).expect("small"), regexes::whole(pattern).expect("valid"));
            for text in ["", "a", "b", "bc", "bcc", "GOLDen", "/items/42/x", "/items/", "a;user=tester", "user=testers"]
            {
                assert_eq!(walk(&table, text), regex.is_match(text.as_bytes()), "{pattern} on {text}");
            }
        }
    }
}
