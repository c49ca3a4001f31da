//! The table for people.

use crate::anchor::title;
use crate::figure::Figure;
use crate::result::Case;
use crate::size::amount;
use crate::stage::Mode;

/// The head of the table.
pub fn head() -> String {
    let line = format!(
        "{:>9} {:>8} {:>27} {:>27} {:>8} {:>7} {:>8} {:>8} {:>8} {:>7} {:>9} {:>9} {:>5}",
        "mode",
        "GB/CPU s",
        "against plain",
        "against the relay",
        "req/s",
        "p99",
        "open p99",
        "p99.9",
        "calls/MiB",
        "copied",
        "switches",
        "mem/conn",
        "core"
    );
    format!("{line}\n{}", "-".repeat(line.chars().count()))
}

fn number(figure: Option<Figure>, digits: usize) -> String {
    figure.map_or_else(|| "-".to_owned(), |it| format!("{:.digits$}", it.median))
}

fn bytes(figure: Option<Figure>) -> String {
    figure.map_or_else(|| "-".to_owned(), |it| amount(it.median as u64))
}

/// The lines of one point: its title, then a line per mode.
pub fn point(cases: &[Case]) -> String {
    let mut text = cases.first().map(title).unwrap_or_default();
    for case in cases {
        let ratio = |ratio: Option<crate::figure::Ratio>| ratio.map_or_else(|| "-".to_owned(), |it| it.show());
        let note = match () {
            () if case.errors + case.resets > 0 => format!("  {} ERRORS, {} RESETS", case.errors, case.resets),
            () if !case.is(Mode::Direct) && !case.is_saturated() => "  NOT SATURATED".to_owned(),
            () => String::new(),
        };
        text += &format!(
            "\n{:>9} {:>8} {:>27} {:>27} {:>8} {:>7} {:>8} {:>8} {:>9} {:>7} {:>9} {:>9} {:>5}{note}",
            case.mode,
            number(case.gb_per_cpu_s, 2),
            ratio(case.ratio_to_plain),
            ratio(case.ratio_to_relay),
            number(case.requests_per_s, 0),
            number(case.closed_p99_ms, 2),
            number(case.p99_ms, 2),
            number(case.p999_ms, 2),
            case.system_calls_per_mib.map_or_else(|| "-".to_owned(), |calls| format!("{calls:.1}")),
            bytes(case.bytes_copied_per_request),
            number(case.switches_per_request, 2),
            bytes(case.memory_per_connection_bytes),
            case.saturation.map_or_else(|| "-".to_owned(), |it| format!("{:.0} %", it.median * 100.0)),
        );
    }
    text
}

/// What the columns mean.
pub const LEGEND: &str = "\
write, sendfile: how the backend sends the payload (the client, of an upload): like an application, like a server of files.
GB/CPU s: payload per second of the subject's CPU time (user, system, its softirqs). against plain, against the
relay: ratio of GB/CPU s, median of the pairs with its spread; \"no difference\": the spread is wider than the difference.
req/s and p99 (ms): closed loop. open p99, p99.9 (ms): open loop at 70 % of plain's req/s, from when a request was due.
calls/MiB: system calls, counted under strace in a pass of its own. copied: payload bytes copied per request. switches:
context switches per request. mem/conn: growth of resident memory. core: how much of the time the subject ran or was ready to.";
