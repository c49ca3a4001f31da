//! Counters as text for people.

use std::fmt::Write as _;

use comfy_table::{CellAlignment, Table, presets::NOTHING};
use underdeck_stats::{Reason, Role, RoleSnapshot, Snapshot};

use super::Before;
use crate::size;

/// One line per process and one for all of them; with `before`, bytes per second instead of the gauges.
pub fn table(now: &[Snapshot], before: Option<&Before>) -> String {
    let mut table = plain();
    let mut head = vec!["PID", "NAME", "PROTOCOL", "STATE", "MESSAGES", "ANCHORED", "COPIED", "MATERIALISED", "SHARE"];
    head.extend(if before.is_some() { ["ANCHORED/S", "COPIED/S", "RESETS"] } else { ["ANCHORS", "PIPES", "RESETS"] });
    table.set_header(head);
    for one in now {
        table.add_row(line(one, before, before.and_then(|before| before.of(one))));
    }
    if now.len() > 1 {
        // Rates only of processes that were there before, or the sum would jump when one starts or ends.
        let old = before.map(|before| Snapshot::sum(now.iter().map(|one| before.of(one).unwrap_or(one))));
        table.add_row(line(&Snapshot::sum(now), before, old.as_ref()));
    }
    align(&mut table, 4);
    finish(&table)
}

fn line(one: &Snapshot, before: Option<&Before>, old: Option<&Snapshot>) -> Vec<String> {
    let both = |field: fn(&RoleSnapshot) -> u64| sum_of(one, field);
    let all = both(|role| role.bytes_anchored).saturating_add(both(|role| role.bytes_copied));
    let kept = both(|role| role.bytes_anchored).saturating_sub(both(|role| role.bytes_materialised));
    let is_sum = one.pid == 0;
    let mut cells = vec![
        if is_sum { String::new() } else { one.pid.to_string() },
        one.comm.clone(),
        one.protocol.clone(),
        if is_sum { String::new() } else { state(one).to_owned() },
        both(|role| role.messages).to_string(),
        size::show(both(|role| role.bytes_anchored)),
        size::show(both(|role| role.bytes_copied)),
        size::show(both(|role| role.bytes_materialised)),
        share((all > 0).then(|| kept as f64 / all as f64)),
    ];
    if let Some(before) = before {
        for field in [(|role| role.bytes_anchored) as fn(&RoleSnapshot) -> u64, |role| role.bytes_copied] {
            let rate = old.map(|old| size::show(before.per_second(sum_of(one, field), sum_of(old, field))) + "/s");
            cells.push(rate.unwrap_or_else(|| "-".to_owned()));
        }
    } else {
        cells.extend([one.anchors_open.to_string(), one.pipes_open.to_string()]);
    }
    cells.push(one.resets.to_string());
    cells
}

fn sum_of(one: &Snapshot, field: fn(&RoleSnapshot) -> u64) -> u64 {
    one.roles.iter().map(field).fold(0, u64::saturating_add)
}

fn state(one: &Snapshot) -> &'static str {
    if one.enabled { "on" } else { "off" }
}

fn share(share: Option<f64>) -> String {
    // Rounded down: 100 % means every byte.
    share.map_or_else(|| "-".to_owned(), |share| format!("{:.1} %", (share * 1000.0).floor() / 10.0))
}

/// A counter of a role: its name, its value, whether it counts bytes.
type Row = (&'static str, fn(&RoleSnapshot) -> u64, bool);

/// Bytes by slot of a reason.
type Slots = fn(&RoleSnapshot) -> &[u64];

const ROWS: [Row; 9] = [
    ("connections", |role| role.connections, false),
    ("messages with a body", |role| role.messages, false),
    ("  anchored", |role| role.messages_anchored, false),
    ("  copied", |role| role.messages_copied, false),
    ("bytes anchored", |role| role.bytes_anchored, true),
    ("  forwarded", |role| role.bytes_forwarded, true),
    ("  materialised", |role| role.bytes_materialised, true),
    ("  dropped", |role| role.bytes_dropped, true),
    ("bytes copied", |role| role.bytes_copied, true),
];

/// Everything about one process.
pub fn process(one: &Snapshot, before: Option<&Before>) -> String {
    let mut text = format!("{} ({}): protocol {}, {}\n\n", one.comm, one.pid, one.protocol, state(one));
    let mut table = plain();
    table.set_header(["", "ACCEPTED", "CONNECTED"]);
    let cells = |name: &str, field: &dyn Fn(&RoleSnapshot) -> u64, bytes: bool| {
        let cell = |role| {
            let now = field(one.role(role));
            let shown = if bytes { size::show(now) } else { now.to_string() };
            let old = before.and_then(|before| Some((before, before.of(one)?)));
            match old.map(|(before, old)| before.per_second(now, field(old.role(role)))) {
                None => shown,
                Some(more) if bytes => format!("{shown}  +{}/s", size::show(more)),
                Some(more) => format!("{shown}  +{more}/s"),
            }
        };
        vec![name.to_owned(), cell(Role::Accepted), cell(Role::Connected)]
    };
    for (name, field, bytes) in ROWS {
        table.add_row(cells(name, &field, bytes));
    }
    table.add_row(
        std::iter::once("share anchored".to_owned())
            .chain(Role::ALL.iter().map(|role| share(one.role(*role).share_anchored())))
            .collect::<Vec<_>>(),
    );
    let reasons: [(&str, Slots); 2] =
        [("copied:", |role| &role.copied_by_reason), ("materialised:", |role| &role.materialised_by_reason)];
    for (kind, slots) in reasons {
        for reason in Reason::ALL {
            let field = |role: &RoleSnapshot| slots(role)[reason as usize];
            if one.roles.iter().any(|role| field(role) > 0) {
                table.add_row(cells(&format!("{kind} {}", reason.name()), &field, true));
            }
        }
    }
    align(&mut table, 1);
    text.push_str(&finish(&table));
    gauges(&mut text, one);
    explain(&mut text, one);
    text
}

fn gauges(text: &mut String, one: &Snapshot) {
    let lines = [
        format!("anchors open {}, at most {}", one.anchors_open, one.anchors_open_max),
        format!("bytes held {}, at most {}", size::show(one.bytes_held), size::show(one.bytes_held_max)),
        format!("pipes {}, at most {}", one.pipes_open, one.pipes_open_max),
        format!("resets by the engine {} (must be 0), panics caught {} (must be 0)", one.resets, one.panics),
    ];
    writeln!(text, "\n{}", lines.join("\n")).expect("a string takes all");
}

fn explain(text: &mut String, one: &Snapshot) {
    let happened = |reason: &Reason| {
        let slot = *reason as usize;
        one.roles.iter().any(|role| role.copied_by_reason[slot] | role.materialised_by_reason[slot] > 0)
    };
    for (index, reason) in Reason::ALL.iter().filter(|reason| happened(reason)).enumerate() {
        let gap = if index == 0 { "\n" } else { "" };
        writeln!(text, "{gap}{}: {}", reason.name(), reason.text()).expect("a string takes all");
    }
}

fn plain() -> Table {
    let mut table = Table::new();
    table.load_preset(NOTHING);
    table
}

fn align(table: &mut Table, first_number: usize) {
    for (index, column) in table.column_iter_mut().enumerate() {
        let first = index == 0;
        column.set_padding((if first { 0 } else { 1 }, 1));
        if index >= first_number {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
}

fn finish(table: &Table) -> String {
    table.lines().map(|line| format!("{}\n", line.trim_end())).collect()
}
