//! Counters of handoff servers, asked at their status sockets.

use std::fmt;
use std::path::{Path, PathBuf};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Unit;
use underdeck_handoff_serve::{Report, TimesReport};

use crate::verb::handoff::report;

/// Asks servers at scrape time.
#[derive(Debug)]
pub struct Servers {
    sockets: Vec<PathBuf>,
}

/// A server, and what it said. None if it did not.
type Said = (String, Option<Report>);
/// (name without prefix and suffix, help, unit, label, its values and theirs)
type Family = (&'static str, &'static str, Option<Unit>, &'static str, fn(&Report) -> Vec<(String, u64)>);

impl Servers {
    /// Those at these sockets.
    pub fn new(sockets: Vec<PathBuf>) -> Self {
        Self { sockets }
    }

    fn ask(&self) -> Vec<Said> {
        let name = |path: &Path| path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        self.sockets.iter().map(|path| (name(path), report(path).ok())).collect()
    }
}

fn counters() -> [Family; 5] {
    [
        ("requests", "Requests answered (backend) or relayed (balancer)", None, "role", |report| {
            vec![(report.role.clone(), report.requests)]
        }),
        ("handoffs", "Connections that moved", None, "direction", |report| {
            vec![("out".to_owned(), report.handoffs.out), ("back".to_owned(), report.handoffs.back)]
        }),
        ("aborted", "Handoffs that did not happen, by reason", None, "reason", |report| {
            report.handoffs.aborted.iter().map(|(reason, count)| (reason.clone(), *count)).collect()
        }),
        ("body", "Body bytes, by the way that they took", Some(Unit::Bytes), "path", |report| {
            vec![("direct".to_owned(), report.direct_bytes), ("relayed".to_owned(), report.relayed_bytes)]
        }),
        ("resets", "Clients whose connection was reset", None, "role", |report| {
            vec![(report.role.clone(), report.reset)]
        }),
    ]
}

fn gauges() -> [Family; 5] {
    [
        ("connections", "Connections, by place", None, "place", |report| {
            vec![("here".to_owned(), report.connections.here), ("away".to_owned(), report.connections.away)]
        }),
        ("rules", "Flows with rules, by tier", None, "tier", |report| vec![("tc".to_owned(), report.rules.tc)]),
        ("rules_max", "Flows that can have rules, by tier", None, "tier", |report| {
            vec![("tc".to_owned(), report.rules.capacity)]
        }),
        ("backend_up", "The backend answers heartbeats", None, "backend", |report| {
            report.backends.iter().map(|backend| (backend.name.clone(), u64::from(backend.alive))).collect()
        }),
        ("backend_connections", "Connections that the backend owns", None, "backend", |report| {
            report.backends.iter().map(|backend| (backend.name.clone(), backend.load)).collect()
        }),
    ]
}

impl Collector for Servers {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        if self.sockets.is_empty() {
            return Ok(());
        }
        let said = self.ask();
        for (families, kind) in [(&counters()[..], MetricType::Counter), (&gauges()[..], MetricType::Gauge)] {
            for (name, help, unit, label, values) in families {
                let mut family = encoder.encode_descriptor(name, help, unit.as_ref(), kind)?;
                for (server, report) in answered(&said) {
                    for (value, number) in values(report) {
                        let labels = [("server", server), (label, value.as_str())];
                        let metric = family.encode_family(&labels)?;
                        match kind {
                            MetricType::Counter => ConstCounter::new(number).encode(metric)?,
                            _ => ConstGauge::new(i64::try_from(number).unwrap_or(i64::MAX)).encode(metric)?,
                        }
                    }
                }
            }
        }
        let seconds = Some(&Unit::Seconds);
        let mut steps = encoder.encode_descriptor("step", "Time of each step", seconds, MetricType::Histogram)?;
        for (server, report) in answered(&said) {
            for times in &report.times {
                let labels = [("server", server), ("step", times.name.as_str())];
                histogram(times, steps.encode_family(&labels)?)?;
            }
        }
        let mut up = encoder.encode_descriptor("up", "The server answers", None, MetricType::Gauge)?;
        for (server, report) in &said {
            let labels = [("server", server.as_str())];
            ConstGauge::new(i64::from(report.is_some())).encode(up.encode_family(&labels)?)?;
        }
        Ok(())
    }
}

fn answered(said: &[Said]) -> impl Iterator<Item = (&str, &Report)> {
    said.iter().filter_map(|(server, report)| Some((server.as_str(), report.as_ref()?)))
}

/// The encoder wants each bucket's own count, and one without an upper bound.
fn histogram(times: &TimesReport, mut to: MetricEncoder<'_>) -> Result<(), fmt::Error> {
    let mut before = 0;
    let mut buckets = Vec::with_capacity(times.buckets.len() + 1);
    for (bound_us, below) in &times.buckets {
        buckets.push((bound_us / 1e6, below.saturating_sub(before)));
        before = *below;
    }
    buckets.push((f64::INFINITY, times.count.saturating_sub(before)));
    to.encode_histogram::<NoLabelSet>(times.sum_us / 1e6, times.count, &buckets, None)
}
