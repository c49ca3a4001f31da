//! Responses come in the order of the requests, whichever ways they took. Needs root and Envoy.

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use support::backend::{Backend, pattern};
use support::client::{Client, Response};
use support::{Agent, Far, Setup, inside, start};

fn get(path: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: shop.test\r\n\r\n")
}

fn is_of(response: &Response, path: &str) -> bool {
    response.text().starts_with(&format!("GET {path} "))
}

/// `/far` is at an endpoint of its own.
const TWO_ENDPOINTS: &str = r#"
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: shop, namespace: demo}
spec:
  hosts: [shop.test]
  http:
  - name: far
    match: [{uri: {prefix: /far}}]
    route: [{destination: {host: far.test}}]
  - name: near
    route: [{destination: {host: near.test}}]
"#;

/// What comes by TCP waits when the receive buffer of an application is full, which nothing that skips TCP looks at.
#[test]
fn a_response_that_skips_tcp_does_not_overtake_one_that_waits() {
    const TURNS: usize = 20;
    let name = "a_response_that_skips_tcp_does_not_overtake_one_that_waits";
    inside(name, |group| {
        let (near, far) = (Backend::start(), Far::start(name));
        let service = "127.89.0.1:80".parse().expect("an address");
        let agent = Agent::start(&Setup {
            name,
            group,
            policies: TWO_ENDPOINTS,
            services: &[service],
            endpoints: &[("near.test||", near.address), ("far.test||", far.address)],
            more: "",
        });
        let mut client = Client::connect(service);
        let ask = |client: &mut Client, path: &str| {
            let before = agent.status().responses.kernel;
            client.send(get(path).as_bytes());
            agent.until("it is answered", |status| status.responses.kernel > before);
        };
        for turn in 0..TURNS {
            ask(&mut client, "/far/size/60000");
            ask(&mut client, &format!("/near?{turn}"));
        }
        for turn in 0..TURNS {
            assert_eq!(client.receive(false).expect("an answer").matches(60_000), Ok(()), "turn {turn}");
            let response = client.receive(false).expect("an answer");
            assert!(is_of(&response, &format!("/near?{turn}")), "turn {turn}: {response:?}");
        }
        agent.stop();
    });
}

/// Keeps the lock of a socket busy: whoever moves bytes into it has to wait for it.
fn look_at(client: &Client, stop: &Arc<AtomicBool>) -> std::thread::JoinHandle<()> {
    let stream = client.stream.get_ref().0.try_clone().expect("a socket");
    let stop = stop.clone();
    std::thread::spawn(move || {
        let socket = socket2::SockRef::from(&stream);
        while !stop.load(Ordering::Relaxed) {
            // MSG_PEEK, so that the responses stay for the other thread.
            let _ = socket
                .recv_with_flags(&mut [std::mem::MaybeUninit::uninit(); 4096], libc::MSG_PEEK | libc::MSG_DONTWAIT);
        }
    })
}

#[test]
fn pipelined_responses_are_never_swapped() {
    const PAIRS: u64 = 1000;
    let name = "pipelined_responses_are_never_swapped";
    inside(name, |group| {
        let (_backend, agent, service) = start(name, group, "127.89.0.2:80");
        let threads: Vec<_> = (0..6u64)
            .map(|thread| {
                std::thread::spawn(move || {
                    let (mut client, stop) = (Client::connect(service), Arc::new(AtomicBool::new(false)));
                    let looking = (thread % 2 == 0).then(|| look_at(&client, &stop));
                    let mut random = thread + 1;
                    for pair in 0..PAIRS {
                        // Xorshift.
                        random ^= random << 13;
                        random ^= random >> 7;
                        random ^= random << 17;
                        let first = format!("/first?{pair}");
                        client.send(get(&first).as_bytes());
                        let start = Instant::now();
                        while start.elapsed() < Duration::from_nanos(random % 200_000) {
                            std::hint::spin_loop();
                        }
                        let second = format!("/second?{pair}");
                        match random % 16 {
                            // The agent moves the request, or Envoy answers it.
                            0 => {
                                let head = "POST /up HTTP/1.1\r\nHost: shop.test\r\nContent-Length: 70000\r\n\r\n";
                                client.send(&[head.as_bytes(), &pattern(70_000)].concat());
                            }
                            1 => client.send(get("/envoy").as_bytes()),
                            _ => client.send(get(&second).as_bytes()),
                        }
                        let response = client.receive(false).expect("an answer");
                        assert!(is_of(&response, &first), "{first}: {response:?}");
                        let response = client.receive(false).expect("an answer");
                        match random % 16 {
                            0 => assert!(response.text().starts_with("POST /up "), "{pair}: {response:?}"),
                            1 => assert!(is_of(&response, "/envoy"), "{pair}: {response:?}"),
                            _ => assert!(is_of(&response, &second), "{pair}: {response:?}"),
                        }
                    }
                    stop.store(true, Ordering::Relaxed);
                    looking.into_iter().for_each(|thread| thread.join().expect("it only looks"));
                })
            })
            .collect();
        for thread in threads {
            thread.join().expect("all in order");
        }
        let status = agent.status();
        assert!(status.requests.kernel > PAIRS && status.requests.envoy > 0, "{status:#?}");
        agent.stop();
    });
}
