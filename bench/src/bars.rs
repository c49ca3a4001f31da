//! The bars that the project sets itself, held against what was measured.

use crate::figure::Figure;
use crate::result::{Case, Document};
use crate::scenario::Backend;
use crate::stage::Mode;

/// One bar and what was seen.
#[derive(Clone, Debug, PartialEq)]
pub struct Bar {
    /// The case.
    pub case: String,
    /// What is asked for.
    pub asked: String,
    /// What was measured: over the rounds, of runs that were paired.
    pub measured: Figure,
    /// Whether the median is enough.
    pub holds: bool,
    /// Whether some round alone would have said the opposite.
    pub doubtful: bool,
}

impl Bar {
    fn least(case: String, asked: String, bar: f64, measured: Figure) -> Self {
        let doubtful = measured.min < bar && measured.max >= bar;
        Self { case, asked, measured, holds: measured.median >= bar, doubtful }
    }

    fn most(case: String, asked: String, bar: f64, measured: Figure) -> Self {
        let doubtful = measured.min <= bar && measured.max > bar;
        Self { case, asked, measured, holds: measured.median <= bar, doubtful }
    }
}

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

/// The cases with one backend; framing is `Content-Length`, connections are 64.
struct Cases<'a> {
    cases: &'a [Case],
    backend: &'a str,
}

/// `network`, `direction`.
const PLAIN_PATH: (&str, &str) = ("loopback", "response");

impl<'a> Cases<'a> {
    fn find(&self, proxy: &str, body: u64, (network, direction): (&str, &str), mode: Mode) -> Option<&'a Case> {
        let wanted = (network, proxy, self.backend, direction, "length", 64, body);
        self.cases.iter().find(|case| case.point() == wanted && case.is(mode))
    }

    fn to_plain(&self, proxy: &str, body: u64, path: (&str, &str)) -> Option<Figure> {
        Some(self.find(proxy, body, path, Mode::Underdeck)?.ratio_to_plain?.figure)
    }
}

/// All bars whose cases were measured, with each backend: what holds with one may be missed with the other.
pub fn of(document: &Document) -> Vec<Bar> {
    let with = |backend: Backend| with(&document.cases, &backend.name());
    Backend::BOTH.into_iter().flat_map(with).collect()
}

fn with(cases: &[Case], backend: &str) -> Vec<Bar> {
    let cases = Cases { cases, backend };
    let mut bars = Vec::new();
    let mut least = |case: String, what: &str, bar: f64, measured: Option<Figure>| {
        let asked = format!("at least {bar} {what}");
        bars.extend(measured.map(|it| Bar::least(format!("{case}, {backend}"), asked, bar, it)));
    };
    let show = crate::size::show;
    for (proxy, body, bar) in [
        ("nginx", MIB, 4.2),
        ("nginx-64k", 256 * KIB, 3.0),
        ("nginx-64k", MIB, 3.0),
        ("haproxy", MIB, 2.2),
        ("envoy", MIB, 2.0),
    ] {
        least(format!("{proxy}, {}", show(body)), "times plain", bar, cases.to_plain(proxy, body, PLAIN_PATH));
    }
    for body in [256 * KIB, MIB] {
        let ratio = cases.find("nginx-64k", body, PLAIN_PATH, Mode::Underdeck).and_then(|case| case.ratio_to_relay);
        least(format!("nginx-64k, {}", show(body)), "of the relay", 0.85, ratio.map(|it| it.figure));
    }
    let to_splice = cases.find("haproxy", MIB, PLAIN_PATH, Mode::Underdeck).and_then(|case| case.ratio_to_splice);
    least("haproxy, 1 MiB".to_owned(), "of its own splicing", 1.0, to_splice.map(|it| it.figure));
    for proxy in ["nginx", "nginx-64k"] {
        let case = cases.find(proxy, MIB, PLAIN_PATH, Mode::Underdeck);
        let below = case.and_then(|case| case.closed_p99_below_percent);
        least(format!("{proxy}, 1 MiB, p99 closed loop"), "% below plain", 60.0, below);
        for network in ["veth", "veth-gro", "veth-none"] {
            let ratio = cases.to_plain(proxy, MIB, (network, "response"));
            least(format!("{proxy}, 1 MiB, {network}"), "times plain", 2.0, ratio);
        }
        let ratio = cases.to_plain(proxy, MIB, ("loopback", "upload"));
        least(format!("{proxy}, 1 MiB, upload"), "times plain", 2.0, ratio);
    }
    for proxy in ["nginx", "nginx-64k", "haproxy", "haproxy-64k", "envoy"] {
        for body in [1, 4, 8, 16].map(|kib| kib * KIB) {
            let case = cases.find(proxy, body, PLAIN_PATH, Mode::Underdeck);
            if let Some(extra) = case.and_then(|case| case.extra_cpu_percent) {
                let asked = "at most 2 % more CPU per request".to_owned();
                bars.push(Bar::most(format!("{proxy}, {}, {backend}", show(body)), asked, 2.0, extra));
            }
        }
    }
    bars
}

/// For people.
pub fn show(bars: &[Bar]) -> String {
    let mut text = String::new();
    for bar in bars {
        let verdict = if bar.holds { "holds " } else { "MISSED" };
        let doubt = if bar.doubtful { "?" } else { " " };
        let Figure { median, min, max } = bar.measured;
        text +=
            &format!("{verdict}{doubt} {:<44} {:<34} measured {median:.2} ({min:.2}..{max:.2})\n", bar.case, bar.asked);
    }
    text + "?: the bar lies within the spread of the rounds.\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    fn case(backend: &str, ratio: f64) -> Case {
        let ratio = format!(r#"{{"median":{ratio},"min":1.4,"max":2.9,"verdict":"better"}}"#);
        let text = format!(
            r#"{{"proxy":"envoy","mode":"underdeck","body_bytes":1048576,"connections":64,"network":"loopback",
            "direction":"response","backend":"{backend}","framing":"length","ratio_to_plain":{ratio},"resets":0,"errors":0}}"#
        );
        serde_json::from_str(&text).expect("the layout")
    }

    #[test]
    fn a_bar_that_holds_with_one_backend_only_shows_as_both() {
        let cases = [case("write", 2.5), case("sendfile", 1.5)];
        let bars: Vec<Bar> = Backend::BOTH.into_iter().flat_map(|it| with(&cases, &it.name())).collect();
        let seen: Vec<_> = bars.iter().map(|bar| (&*bar.case, bar.holds)).collect();
        assert_eq!(seen, [("envoy, 1 MiB, sendfile", false), ("envoy, 1 MiB, write", true)]);
        assert!(show(&bars).starts_with("MISSED? envoy, 1 MiB, sendfile"));
    }

    #[test]
    fn a_bar_outside_of_the_spread_is_beyond_doubt() {
        let figure = |min, median, max| Figure { median, min, max };
        let least = |figure| Bar::least(String::new(), String::new(), 2.0, figure);
        let most = |figure| Bar::most(String::new(), String::new(), 2.0, figure);
        let seen = |bar: Bar| (bar.holds, bar.doubtful);
        assert_eq!(seen(least(figure(2.0, 2.5, 3.0))), (true, false));
        assert_eq!(seen(least(figure(1.0, 1.5, 1.9))), (false, false));
        assert_eq!(seen(least(figure(1.9, 2.5, 3.0))), (true, true));
        assert_eq!(seen(most(figure(-3.0, 1.0, 2.0))), (true, false));
        assert_eq!(seen(most(figure(-3.0, 2.1, 4.0))), (false, true));
    }
}
