//! What is measured: the axes, and which points of them a run visits.

use underdeck_lab::load::Sending;
use underdeck_lab::network::Offload;
use underdeck_lab::proxy::{Envoy, Haproxy, Nginx, Spec};

/// A proxy in one configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum)]
pub enum ProxyKind {
    /// nginx with its default buffers.
    Nginx,
    /// nginx with 16 buffers of 64 KiB.
    #[value(name = "nginx-64k")]
    Nginx64k,
    /// HAProxy with its default buffers of 16 KiB.
    Haproxy,
    /// HAProxy with `tune.bufsize 65536`.
    #[value(name = "haproxy-64k")]
    Haproxy64k,
    /// Envoy.
    Envoy,
}

/// What lies between client, proxy and backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum)]
pub enum Net {
    /// The loopback interface, MTU 65536.
    Loopback,
    /// veth, MTU 1500, with GRO, GSO and TSO: pieces of up to 64 KiB cross whole.
    Veth,
    /// veth, MTU 1500: segments of 1448 bytes that the receiver merges (GRO), as from a network card.
    VethGro,
    /// veth, MTU 1500, without GRO, GSO and TSO: segments of 1448 bytes, each by itself.
    VethNone,
}

/// Which way the payload goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum)]
pub enum Direction {
    /// From the backend to the client.
    Response,
    /// From the client to the backend.
    Upload,
}

/// How whoever sends the payload does it: the backend, or the client of an upload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum)]
pub enum Backend {
    /// `sendfile`, as a server of files: pieces of 4 KiB.
    Sendfile,
    /// `send`, as an application server: pieces of up to 32 KiB.
    Write,
}

/// How the payload is delimited.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum)]
pub enum Framing {
    /// `Content-Length`.
    Length,
    /// `Transfer-Encoding: chunked`, chunks of 64 KiB.
    Chunked,
}

/// Bytes of a chunk.
pub const CHUNK: u64 = 64 << 10;

macro_rules! name {
    ($($kind:ty),*) => {$(
        impl $kind {
            /// As on the command line and in the JSON.
            pub fn name(self) -> String {
                clap::ValueEnum::to_possible_value(&self).map_or_else(String::new, |value| value.get_name().to_owned())
            }
        }
    )*};
}
name!(ProxyKind, Net, Direction, Framing, Backend);

impl Backend {
    /// Both.
    pub const BOTH: [Self; 2] = [Self::Sendfile, Self::Write];

    /// For the load generator and its origin.
    pub fn sending(self) -> Sending {
        match self {
            Self::Sendfile => Sending::Sendfile,
            Self::Write => Sending::Write,
        }
    }
}

impl ProxyKind {
    /// The proxy without Underdeck; `splice`: HAProxy's own splicing.
    pub fn spec(self, splice: bool) -> Spec {
        // Uploads are passed on as they come, as the other two proxies do.
        let nginx = |nginx: Nginx| Spec::Nginx(Nginx { request_buffering: false, ..nginx });
        // `option splice-auto` alone was seen to splice only now and then: it waits for a stream that fills its buffers.
        let haproxy = |bufsize| Spec::Haproxy(Haproxy { splice, splice_always: splice, bufsize, ..Haproxy::default() });
        match self {
            Self::Nginx => nginx(Nginx::default()),
            Self::Nginx64k => nginx(Nginx::large()),
            Self::Haproxy => haproxy(None),
            Self::Haproxy64k => haproxy(Some(65_536)),
            Self::Envoy => Spec::Envoy(Envoy::default()),
        }
    }

    /// Whether it can splice by itself.
    pub fn splices(self) -> bool {
        matches!(self, Self::Haproxy | Self::Haproxy64k)
    }
}

impl Net {
    /// None: loopback.
    pub fn offload(self) -> Option<Offload> {
        match self {
            Self::Loopback => None,
            Self::Veth => Some(Offload::All),
            Self::VethGro => Some(Offload::Gro),
            Self::VethNone => Some(Offload::None),
        }
    }
}

/// One point: everything but who is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Point {
    /// The network; first, because points are visited in order and networks are made once.
    pub network: Net,
    /// The proxy.
    pub proxy: ProxyKind,
    /// How the payload is sent.
    pub backend: Backend,
    /// The direction.
    pub direction: Direction,
    /// The framing.
    pub framing: Framing,
    /// Connections at once.
    pub connections: usize,
    /// Bytes of each body.
    pub body: u64,
}

impl Point {
    /// With a backend that writes: behind most proxies is an application.
    fn new(proxy: ProxyKind, body: u64) -> Self {
        Self {
            network: Net::Loopback,
            proxy,
            backend: Backend::Write,
            direction: Direction::Response,
            framing: Framing::Length,
            connections: 64,
            body,
        }
    }
}

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const PROXIES: [ProxyKind; 5] =
    [ProxyKind::Nginx, ProxyKind::Nginx64k, ProxyKind::Haproxy, ProxyKind::Haproxy64k, ProxyKind::Envoy];

/// Bodies that are worth anchoring, and that the bars are about: measured with both backends.
const WITH_BOTH: [u64; 2] = [256 * KIB, MIB];

fn with_both(points: Vec<Point>) -> Vec<Point> {
    let both = |at: Point| Backend::BOTH.map(|backend| Point { backend, ..at });
    points.into_iter().flat_map(|at| if WITH_BOTH.contains(&at.body) { both(at).to_vec() } else { vec![at] }).collect()
}

/// How much is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Profile {
    /// Everything: bodies from 1 KiB to 4 MiB by powers of two, 1 to 256 connections, all networks. Some hours.
    Full,
    /// The cases that the bars of the project and the paper's tables are about, closed loop. About 20 minutes.
    Bars,
    /// A look at each axis, within 4 minutes; a test runs it.
    Quick,
}

impl Profile {
    /// The points of the profile, in the order of the visit.
    pub fn points(self) -> Vec<Point> {
        let mut points = match self {
            Self::Full => with_both(full()),
            Self::Bars => bars(),
            Self::Quick => quick(),
        };
        points.sort_unstable();
        points.dedup();
        points
    }
}

fn full() -> Vec<Point> {
    let mut points = Vec::new();
    for proxy in PROXIES {
        points.extend((10..=22).map(|power| Point::new(proxy, 1 << power)));
        for body in [16 * KIB, MIB] {
            let at = Point::new(proxy, body);
            points.extend([1, 8, 256].map(|connections| Point { connections, ..at }));
        }
        for body in [64 * KIB, 256 * KIB, MIB, 4 * MIB] {
            let at = Point::new(proxy, body);
            let (upload, chunked) = (Direction::Upload, Framing::Chunked);
            points.push(Point { direction: upload, ..at });
            points.push(Point { framing: chunked, ..at });
            points.push(Point { direction: upload, framing: chunked, ..at });
            points.extend([Net::Veth, Net::VethGro, Net::VethNone].map(|network| Point { network, ..at }));
        }
    }
    points
}

fn bars() -> Vec<Point> {
    let mut points: Vec<Point> = PROXIES.map(|proxy| Point::new(proxy, MIB)).to_vec();
    points.push(Point::new(ProxyKind::Nginx64k, 256 * KIB));
    for proxy in [ProxyKind::Nginx, ProxyKind::Nginx64k, ProxyKind::Haproxy, ProxyKind::Envoy] {
        points.extend([1, 4, 8, 16].map(|kib| Point::new(proxy, kib * KIB)));
    }
    for proxy in [ProxyKind::Nginx, ProxyKind::Nginx64k] {
        let at = Point::new(proxy, MIB);
        points.extend([Net::Veth, Net::VethGro, Net::VethNone].map(|network| Point { network, ..at }));
        points.push(Point { direction: Direction::Upload, ..at });
    }
    let mut points = with_both(points);
    // The paper's tables over connections.
    for proxy in [ProxyKind::Nginx, ProxyKind::Nginx64k, ProxyKind::Haproxy] {
        points.extend([1, 8, 256].map(|connections| Point { connections, ..Point::new(proxy, MIB) }));
    }
    // And over the size of bodies.
    for proxy in [ProxyKind::Nginx, ProxyKind::Haproxy] {
        points.extend((10..=22).map(|power| Point::new(proxy, 1 << power)));
    }
    points
}

fn quick() -> Vec<Point> {
    let large = Point::new(ProxyKind::Nginx64k, MIB);
    let mut points = PROXIES.map(|proxy| Point::new(proxy, MIB)).to_vec();
    points.extend([Point { body: 256 * KIB, ..large }, Point { network: Net::Veth, ..large }]);
    let mut points = with_both(points);
    points.extend([4 * KIB, 64 * KIB].map(|body| Point { body, ..large }));
    points.push(Point { direction: Direction::Upload, ..large });
    points.push(Point { framing: Framing::Chunked, ..large });
    points.push(Point { network: Net::VethNone, ..large });
    points
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_full_run_visits_every_value_of_every_axis() {
        let points = Profile::Full.points();
        for proxy in PROXIES {
            for power in 10..=22 {
                assert!(points.contains(&Point::new(proxy, 1 << power)));
            }
            let of = |check: &dyn Fn(&Point) -> bool| points.iter().any(|at| at.proxy == proxy && check(at));
            assert!([1, 8, 64, 256].into_iter().all(|n| of(&|at| at.connections == n)));
            assert!(
                [Net::Loopback, Net::Veth, Net::VethGro, Net::VethNone].into_iter().all(|n| of(&|at| at.network == n))
            );
            assert!(of(&|at| at.direction == Direction::Upload && at.framing == Framing::Chunked));
        }
    }

    #[test]
    fn every_profile_has_both_backends_where_it_matters() {
        for profile in [Profile::Full, Profile::Bars, Profile::Quick] {
            let points = profile.points();
            for at in points.iter().filter(|at| at.network == Net::Loopback && at.body == MIB && at.connections == 64) {
                let of = |backend| points.contains(&Point { backend, ..*at });
                let rare = at.direction == Direction::Upload || at.framing == Framing::Chunked;
                assert!(of(Backend::Write), "{profile:?} {at:?}");
                assert!(of(Backend::Sendfile) || (profile == Profile::Quick && rare), "{profile:?} {at:?}");
            }
            assert!(points.iter().all(|at| at.backend == Backend::Write || WITH_BOTH.contains(&at.body)));
        }
    }

    #[test]
    fn the_bars_profile_has_the_axes_of_the_papers_tables() {
        let points = Profile::Bars.points();
        for proxy in [ProxyKind::Nginx, ProxyKind::Haproxy] {
            assert!((10..=22).all(|power| points.contains(&Point::new(proxy, 1 << power))), "{proxy:?}");
        }
        for proxy in [ProxyKind::Nginx, ProxyKind::Nginx64k, ProxyKind::Haproxy] {
            for connections in [1, 8, 64, 256] {
                assert!(points.contains(&Point { connections, ..Point::new(proxy, MIB) }), "{proxy:?} {connections}");
            }
        }
    }

    #[test]
    fn names_are_those_of_the_command_line() {
        assert_eq!((ProxyKind::Haproxy64k.name(), Net::VethGro.name()), ("haproxy-64k".into(), "veth-gro".into()));
        assert_eq!((Direction::Upload.name(), Framing::Chunked.name()), ("upload".into(), "chunked".into()));
        assert_eq!(Backend::BOTH.map(Backend::name), ["sendfile", "write"]);
    }
}
