//! Regular expressions as tables: one row per state, one column per class of bytes.

use std::collections::HashMap;
use std::fmt::Write;

use regex_automata::Anchored;
use regex_automata::dfa::Automaton;
use regex_automata::util::primitives::StateID;
use regex_automata::util::start;
use underdeck_mesh_policy::regexes;

/// No table has more cells.
const CELLS_MAX: usize = 32 * 1024;

/// The automata of one program; equal expressions share one.
#[derive(Debug, Default)]
pub(crate) struct Automata {
    known: HashMap<String, usize>,
    source: String,
}

impl Automata {
    /// A call of C that says whether all of the text matches; None: not for the kernel.
    pub(crate) fn call(&mut self, pattern: &str, span: &crate::text::Span) -> Option<String> {
        let index = match self.known.get(pattern) {
            Some(index) => *index,
            None => {
                let index = self.known.len();
                let source = table(pattern, index)?;
                self.source.push_str(&source);
                self.known.insert(pattern.to_owned(), index);
                index
            }
        };
        Some(format!("matches_{index}(h, {}, {})", span.at, span.len))
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

    pub(crate) fn source(&self) -> &str {
        &self.source
    }
}

fn table(pattern: &str, index: usize) -> Option<String> {
    let dfa = regexes::automaton(pattern).ok()?;
    let classes = dfa.byte_classes();
    let stride = classes.alphabet_len().next_power_of_two();
    let first = dfa.start_state(&start::Config::new().anchored(Anchored::Yes)).ok()?;
    let mut numbers: HashMap<StateID, usize> = HashMap::from([(first, 0)]);
    let mut states = vec![first];
    let mut rows: Vec<Vec<usize>> = Vec::new();
    let representatives: Vec<(usize, u8)> = (0..=255u8).map(|byte| (usize::from(classes.get(byte)), byte)).collect();
    let mut at = 0;
    while at < states.len() {
        let mut row = vec![0; stride];
        for (class, byte) in &representatives {
            let next = dfa.next_state(states[at], *byte);
            row[*class] = *numbers.entry(next).or_insert_with(|| {
                states.push(next);
                states.len() - 1
            });
        }
        rows.push(row);
        at += 1;
        if states.len() * stride > CELLS_MAX {
            return None;
        }
    }
    let accepts = states.iter().map(|state| dfa.is_match_state(dfa.next_eoi_state(*state)));
    let cells = (states.len() * stride).next_power_of_two();
    let mut flat: Vec<usize> = rows.concat();
    flat.resize(cells, 0);
    let mut accepts: Vec<usize> = accepts.map(usize::from).collect();
    accepts.resize(states.len().next_power_of_two(), 0);
    let mut out = format!("/* {} */\n", crate::text::comment(pattern));
    let list = |items: &[usize]| items.iter().map(usize::to_string).collect::<Vec<_>>().join(",");
    let class_of: Vec<usize> = representatives.iter().map(|(class, _)| *class).collect();
    let _ = writeln!(out, "static const ud_u8 classes_{index}[256] = {{{}}};", list(&class_of));
    let _ = writeln!(out, "static const ud_u16 next_{index}[{cells}] = {{{}}};", list(&flat));
    let _ = writeln!(out, "static const ud_u8 accepts_{index}[{}] = {{{}}};", accepts.len(), list(&accepts));
    let _ = writeln!(
        out,
        "apart int matches_{index}(struct ud_head *h never_null, ud_u32 at, ud_u32 len)\n{{\n\
         \tud_u32 state = 0, i = zero(), cell;\n\n\
         \twhile (i < len && can_loop) {{\n\
         \t\tcell = state * {stride} + classes_{index}[AT(h, at + i)];\n\
         \t\thide(cell);\n\
         \t\tstate = next_{index}[cell & {}];\n\
         \t\tstep(i, 1);\n\t}}\n\
         \thide(state);\n\
         \treturn i == len && accepts_{index}[state & {}];\n}}\n",
        cells - 1,
        accepts.len() - 1,
    );
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_is_taken_literally() {
        let dfa = regexes::automaton(&Automata::containing("a.b*", false)).expect("small");
        let input = |text: &str| {
            regex_automata::Input::new(text.as_bytes()).anchored(Anchored::Yes).to_owned().haystack().to_vec()
        };
        let holds = |text: &str| {
            let bytes = input(text);
            let start = dfa.start_state(&start::Config::new().anchored(Anchored::Yes)).expect("a start");
            let end = bytes.iter().fold(start, |state, byte| dfa.next_state(state, *byte));
            dfa.is_match_state(dfa.next_eoi_state(end))
        };
        assert!(holds("xa.b*y") && holds("a.b*") && !holds("aab*") && !holds("a.bb"));
    }
}
