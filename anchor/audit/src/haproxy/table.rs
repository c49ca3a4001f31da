//! Which keywords are known.

use std::sync::LazyLock;

/// A list in the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum List {
    Global,
    Proxy,
    Option,
    Action,
}

static TABLE: LazyLock<Vec<(List, &'static str)>> = LazyLock::new(|| {
    let mut list = List::Global;
    let mut table = Vec::new();
    for line in include_str!("../../tables/haproxy.txt").lines().filter(|l| !l.starts_with('#')) {
        match line {
            "[global]" => list = List::Global,
            "[proxy]" => list = List::Proxy,
            "[option]" => list = List::Option,
            "[action]" => list = List::Action,
            _ => table.extend(line.split_whitespace().map(|word| (list, word))),
        }
    }
    table
});

pub(super) fn is_known(list: List, keyword: &str) -> bool {
    TABLE.iter().filter(|(l, _)| *l == list).any(|(_, known)| match known.strip_suffix('*') {
        Some(start) => keyword.starts_with(start),
        None => *known == keyword,
    })
}
