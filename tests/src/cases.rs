//! The exchanges of the matrix.

use std::time::Duration;

use underdeck_lab::behaviour::{Behaviour, Delimit};
use underdeck_lab::client::{Pace, Upload};
use underdeck_lab::twin::{Exchange, Manner, Step};

const KIB: u64 = 1024;
const MIB: u64 = 1024 * KIB;

/// Body sizes around every threshold: protocol window (256), smallest body, buffers (4, 8, 16, 32, 64 KiB), largest
/// pipe (1 MiB), limit per connection (3 MiB).
pub const SIZES: &[u64] = &[
    0,
    1,
    2,
    63,
    64,
    65,
    128,
    255,
    256,
    257,
    511,
    1000,
    1023,
    1024,
    1025,
    2048,
    4095,
    4096,
    4097,
    8191,
    8192,
    8193,
    16_383,
    16_384,
    16_385,
    32_768,
    50_000,
    65_535,
    65_536,
    65_537,
    131_071,
    131_072,
    131_073,
    262_144,
    500_000,
    MIB - 1,
    MIB,
    MIB + 1,
    2 * MIB + 77,
    3 * MIB - 1,
    3 * MIB,
    3 * MIB + 1,
    5_000_000,
];

/// A selection of [`SIZES`] for the many configurations.
pub const FEW_SIZES: &[u64] = &[0, 1, 64, 257, 1024, 4096, 8193, 16_384, 32_769, 65_537, 200_000, MIB, 3 * MIB + 1];

fn get(name: String, behaviour: Behaviour) -> Exchange {
    Exchange::new(name, vec![Step::get(behaviour)])
}

/// One response of each size, delimited by Content-Length, chunks, and the end of the connection.
pub fn bodies(sizes: &[u64]) -> Vec<Exchange> {
    let mut all = Vec::new();
    for n in sizes.iter().copied() {
        all.push(get(format!("length-{n}"), Behaviour::body(n, Delimit::Length)));
        let chunk = match n {
            0..=300 => 1 + n as usize / 3,
            301..=5000 => 100,
            5001..=200_000 => 4096,
            _ => 50_000,
        };
        all.push(get(format!("chunked-{n}-by-{chunk}"), Behaviour::body(n, Delimit::Chunked(chunk))));
        all.push(get(format!("until-close-{n}"), Behaviour::body(n, Delimit::Close)));
    }
    for chunk in [1, 13, 255, 256, 257, 1448, 16_384, 65_536, 300_000] {
        let n = if chunk < 100 { 3000 } else { 300_001 };
        all.push(get(format!("chunk-size-{chunk}"), Behaviour::body(n, Delimit::Chunked(chunk))));
    }
    all
}

/// Many responses on one connection, one by one and pipelined.
pub fn connections(sizes: &[u64]) -> Vec<Exchange> {
    let of = |delimit: fn(u64) -> Delimit| {
        let step = |n: &u64| Step::get(Behaviour::body(*n, delimit(*n)));
        sizes.iter().filter(|n| **n <= 300_000).map(step).collect::<Vec<_>>()
    };
    let length = of(|_| Delimit::Length);
    let chunked = of(|n| Delimit::Chunked(n as usize / 2 + 1));
    let mixed = of(|n| if n % 2 == 0 { Delimit::Length } else { Delimit::Chunked(777) });
    vec![
        Exchange::new("keep-alive-length", length.clone()),
        Exchange::new("keep-alive-chunked", chunked),
        Exchange::new("keep-alive-mixed", mixed.clone()),
        Exchange::new("pipelined-length", length).manner(Manner::Pipelined),
        Exchange::new("pipelined-mixed", mixed).manner(Manner::Pipelined),
    ]
}

/// Messages whose framing depends on the request or the status.
pub fn framings() -> Vec<Exchange> {
    let length = |n| Behaviour::body(n, Delimit::Length);
    let head = |behaviour| Step { method: "HEAD", ..Step::get(behaviour) };
    let old = |behaviour| Step { version: "HTTP/1.0", ..Step::get(behaviour) };
    let mut all = vec![
        Exchange::new(
            "head-then-get",
            vec![
                head(length(100_000)),
                Step::get(length(70_000)),
                head(Behaviour::body(90_000, Delimit::Chunked(1000))),
                Step::get(length(300)),
            ],
        ),
        Exchange::new("no-content", vec![Step::get(Behaviour { status: 204, ..length(0) }), Step::get(length(70_000))]),
        Exchange::new(
            "errors-have-bodies",
            vec![
                Step::get(Behaviour { status: 404, ..length(5000) }),
                Step::get(Behaviour { status: 503, ..length(100_000) }),
            ],
        ),
        get("http10-backend-length".into(), Behaviour { http10: true, ..length(100_000) }),
        get("http10-backend-close".into(), Behaviour { http10: true, delimit: Delimit::Close, ..length(100_000) }),
        get("backend-closes-after-length".into(), Behaviour { close: true, ..length(100_000) }),
        get("trailers".into(), Behaviour { trailers: true, ..Behaviour::body(100_000, Delimit::Chunked(5000)) }),
        // nginx 1.22 loses count here, and with it the end of the body: the backend closes so that nobody waits. HAProxy
        // 2.6 itself sometimes drops what comes after the first 64 KiB then, so that the body is shorter.
        get("interim-103".into(), Behaviour { interim: 103, close: true, ..length(20_000) }).any_status(),
    ];
    for n in [0, 70, 5000, 200_000, 2 * MIB] {
        all.push(Exchange::new(format!("http10-client-length-{n}"), vec![old(length(n))]));
        all.push(Exchange::new(
            format!("http10-client-chunked-{n}"),
            vec![old(Behaviour::body(n, Delimit::Chunked(3000)))],
        ));
    }
    for (from, to) in [(0, 0), (0, 99), (100, 70_000), (65_536, 400_000), (499_999, 499_999)] {
        let step = Step::get(length(500_000)).field("Range", &format!("bytes={from}-{to}"));
        all.push(Exchange::new(format!("range-{from}-{to}"), vec![step, Step::get(length(9000))]));
    }
    let it = length(80_000);
    let etag = format!("\"{}-{}\"", it.seed, it.len);
    let unchanged = Step::get(it).field("If-None-Match", &etag);
    all.push(Exchange::new("not-modified", vec![unchanged, Step::get(length(80_001))]));
    all
}

/// Request bodies.
pub fn uploads(sizes: &[u64]) -> Vec<Exchange> {
    let mut all = Vec::new();
    let answer = Behaviour::body(300, Delimit::Length);
    for n in sizes.iter().copied() {
        let step = Step::post(Upload::Length(n), answer.clone());
        all.push(Exchange::new(format!("upload-length-{n}"), vec![step]));
        let step = Step::post(Upload::Chunked(n, 1 + n as usize / 7), answer.clone());
        all.push(Exchange::new(format!("upload-chunked-{n}"), vec![step]));
    }
    let expecting = Step::post(Upload::Length(150_000), answer.clone()).field("Expect", "100-continue");
    all.push(Exchange::new("expect-continue", vec![expecting]));
    let both = |n| Step::post(Upload::Length(n), Behaviour::body(n + 1, Delimit::Length));
    all.push(Exchange::new("upload-and-download", vec![both(100), both(70_000), both(MIB), both(9)]));
    let pace = Pace { splits: vec![1, 40, 100, 150, 151, 300, 5000, 70_000, 70_001], ..Pace::default() };
    let step = Step::post(Upload::Length(100_000), answer.clone());
    all.push(Exchange::new("upload-split", vec![step]).pace(pace.clone()));
    let step = Step::post(Upload::Chunked(100_000, 1500), answer);
    all.push(Exchange::new("upload-chunked-split", vec![step]).pace(pace));
    all
}

/// Bytes after `101 Switching Protocols`.
pub fn tunnels() -> Vec<Exchange> {
    let tunnel = |n: u64| {
        let step = Step::get(Behaviour::default()).upgrade();
        Exchange::new(format!("tunnel-{n}"), vec![step]).manner(Manner::Tunnel(n))
    };
    [1, 100, 5000, 300_000, 4 * MIB].map(tunnel).into()
}

/// The same bytes, arriving in other pieces.
pub fn pieces() -> Vec<Exchange> {
    let mut all = Vec::new();
    for pad in [1, 60, 90, 120, 150, 300, 1000, 3800] {
        let it = Behaviour { pad, ..Behaviour::body(90_000, Delimit::Length) };
        all.push(get(format!("head-padded-{pad}"), it));
    }
    let every = |step: usize, to: u64| (1..to).step_by(step).collect::<Vec<u64>>();
    let cut = |n, delimit, splits| Behaviour { splits, pause_us: 1000, ..Behaviour::body(n, delimit) };
    all.push(get("head-in-pieces".into(), cut(70_000, Delimit::Length, every(17, 400))));
    all.push(get("body-in-pieces".into(), cut(200_000, Delimit::Length, every(7001, 200_000))));
    all.push(get("chunks-in-pieces".into(), cut(50_000, Delimit::Chunked(900), every(1201, 50_000))));
    all.push(get("chunk-heads-in-pieces".into(), cut(300, Delimit::Chunked(40), (200..340).collect())));
    all.push(get("close-in-pieces".into(), cut(100_000, Delimit::Close, every(9999, 100_000))));
    let pace = Pace { splits: vec![1, 3, 10, 60, 90, 91], ..Pace::default() };
    let steps = vec![Step::get(Behaviour::body(70_000, Delimit::Length)); 2];
    all.push(Exchange::new("request-in-pieces", steps).pace(pace));
    all
}

/// Clients that are slow to read: the proxy spools or throttles.
pub fn slow_clients() -> Vec<Exchange> {
    let pace = Pace { receive_buffer: Some(16 * 1024), ..Pace::default() };
    let mut all = Vec::new();
    for (name, delimit) in
        [("length", Delimit::Length), ("chunked", Delimit::Chunked(40_000)), ("close", Delimit::Close)]
    {
        for n in [300_000, 6 * MIB] {
            let it = get(format!("held-{name}-{n}"), Behaviour::body(n, delimit));
            all.push(it.manner(Manner::Held).pace(pace.clone()));
        }
    }
    let pace = Pace { read_rate: Some(400_000), deadline: Duration::from_secs(30), ..pace };
    all.push(get("slow-reader".into(), Behaviour::body(300_000, Delimit::Length)).pace(pace));
    all
}

/// 64 MiB, both ways, in every framing.
pub fn huge() -> Vec<Exchange> {
    const HUGE: u64 = 64 * MIB;
    let upload = |name, upload| Exchange::new(name, vec![Step::post(upload, Behaviour::body(10, Delimit::Length))]);
    vec![
        get("huge-length".into(), Behaviour::body(HUGE, Delimit::Length)),
        get("huge-chunked".into(), Behaviour::body(HUGE, Delimit::Chunked(1_000_000))),
        get("huge-small-chunks".into(), Behaviour::body(HUGE, Delimit::Chunked(16_384))),
        get("huge-until-close".into(), Behaviour::body(HUGE, Delimit::Close)),
        upload("huge-upload", Upload::Length(HUGE)),
        upload("huge-upload-chunked", Upload::Chunked(HUGE, 1_000_000)),
    ]
}

/// Everything.
pub fn all() -> Vec<Exchange> {
    [bodies(SIZES), connections(SIZES), framings(), uploads(SIZES), tunnels(), pieces(), slow_clients()].concat()
}

/// A selection for the many configurations of one proxy.
pub fn selected() -> Vec<Exchange> {
    [bodies(FEW_SIZES), connections(FEW_SIZES), framings(), uploads(FEW_SIZES), pieces()].concat()
}

/// The same exchanges, each request twice with one target, and the second one for the proxy's cache.
pub fn repeated(all: Vec<Exchange>) -> Vec<Exchange> {
    let plain = |it: &Exchange| it.steps.len() == 1 && it.steps[0].method == "GET" && it.manner == Manner::Sequential;
    let twice = |mut it: Exchange| {
        it.steps = vec![it.steps[0].clone(); 2];
        it.one_target = true;
        it.name = format!("twice-{}", it.name);
        it
    };
    let closing = |it: &Exchange| it.steps[0].version == "HTTP/1.0";
    all.into_iter().filter(|it| plain(it) && !closing(it)).map(twice).collect()
}

/// The same exchanges with a field added to every request.
pub fn with_field(all: Vec<Exchange>, name: &str, value: &str) -> Vec<Exchange> {
    let add = |mut it: Exchange| {
        it.steps = it.steps.into_iter().map(|step| step.field(name, value)).collect();
        it
    };
    all.into_iter().map(add).collect()
}
