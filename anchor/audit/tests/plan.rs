//! What the engine is told.

use underdeck_audit::{Address, Options, Outcome, Plan, ProxyKind, check_files, check_text};

fn plan(kind: ProxyKind, text: &str) -> String {
    check_text(text, "test".as_ref(), &Options::of_kind(kind)).unwrap().plan.to_string()
}

fn location(directives: &str) -> String {
    plan(
        ProxyKind::Nginx,
        &format!(
            "http {{ proxy_next_upstream off; upstream two {{ server 10.0.0.1; server [fd00::1]:81; server unix:/run/a.sock; }}
             upstream state {{ state /s; }} upstream srv {{ server a service=http resolve; }}
             server {{ listen 127.0.0.1:80; location / {{ ssi on; {directives} }} }} }}"
        ),
    )
}

#[test]
fn the_address_of_an_upstream_is_as_exact_as_can_be_known() {
    for (pass, expected) in [
        ("http://10.0.0.5:8080", "rx-client:10.0.0.5:8080"),
        ("http://10.0.0.5/path", "rx-client:10.0.0.5:80"),
        ("https://[::1]/", "rx-client:[::1]:443"),
        ("http://localhost:81", "rx-client:127.0.0.1:81,rx-client:[::1]:81"),
        ("http://app.internal:8080", "rx-client:*:8080"),
        ("http://two", "rx-client:10.0.0.1:80,rx-client:[fd00::1]:81,rx-client:unix:/run/a.sock"),
        ("http://two$request_uri", "rx-client:10.0.0.1:80,rx-client:[fd00::1]:81,rx-client:unix:/run/a.sock"),
        ("http://unix:/run/b.sock:/uri", "rx-client:unix:/run/b.sock"),
        ("http://$host:8080", "rx-client:*:8080"),
        ("http://$backend", "rx-client:*"),
        ("http://two$suffix", "rx-client:*"),
        ("http://a:$port", "rx-client:*"),
        ("$target", "rx-client:*"),
        ("http://state", "rx-client:*"),
        ("http://srv", "rx-client:*"),
        ("http://10.0.0.1:1;}location /b{ssi on;proxy_pass http://a:1", "rx-client:*:1"),
    ] {
        assert_eq!(location(&format!("proxy_pass {pass};")), expected, "{pass}");
    }
}

#[test]
fn the_address_of_a_listener_is_as_exact_as_can_be_known() {
    for (listen, expected) in [
        ("listen 80;", "rx-server:*:80"),
        ("listen *:81;", "rx-server:*:81"),
        ("listen [::]:82 ipv6only=on;", "rx-server:*:82"),
        ("listen 10.0.0.1;", "rx-server:10.0.0.1:80"),
        ("listen 10.0.0.1:83 default_server;", "rx-server:10.0.0.1:83"),
        ("listen [::1]:84;", "rx-server:[::1]:84"),
        ("listen localhost:85;", "rx-server:127.0.0.1:85,rx-server:[::1]:85"),
        ("listen unix:/run/n.sock;", "rx-server:unix:/run/n.sock"),
        ("listen 90-92;", "rx-server:*:90,rx-server:*:91,rx-server:*:92"),
        ("listen 1-65535;", "rx-server:*"),
        ("", "rx-server:*:80,rx-server:*:8000"),
    ] {
        let text = format!("http {{ server {{ {listen} location / {{ proxy_pass http://a; }} }} }}");
        assert_eq!(plan(ProxyKind::Nginx, &text), expected, "{listen}");
    }
}

#[test]
fn haproxy_addresses() {
    for (server, expected) in [
        ("10.0.0.1:80", "rx-client:10.0.0.1:80"),
        ("ipv6@[fd00::1]:80", "rx-client:[fd00::1]:80"),
        ("app.internal:80", "rx-client:*:80"),
        ("unix@/run/a.sock", "rx-client:unix:/run/a.sock"),
        ("/run/a.sock", "rx-client:unix:/run/a.sock"),
        ("10.0.0.1", "rx-client:*"),
        ("10.0.0.1:+100", "rx-client:*"),
        ("0.0.0.0:0", "rx-client:*"),
        ("abns@a", "rx-client:*"),
        ("${HOST}:80", "rx-client:*:80"),
        ("127.0.0.1:$PORT", "rx-client:*"),
    ] {
        let text = format!("listen l\nmode http\nbind :80\ncompression algo gzip\nserver a {server}\n");
        assert_eq!(plan(ProxyKind::Haproxy, &text), expected, "{server}");
    }
    let text = "listen l\nmode http\nbind 127.0.0.1:80,/run/l.sock\noption http-buffer-request\nserver a 10.0.0.1:80\n";
    assert_eq!(plan(ProxyKind::Haproxy, text), "rx-server:127.0.0.1:80,rx-server:unix:/run/l.sock");
}

#[test]
fn code_may_ask_any_server() {
    let text = "http { server { listen 80; location / { content_by_lua_file /a.lua; } } }";
    assert_eq!(plan(ProxyKind::Nginx, text), "rx-server:*:80,rx-client:*");
    let text = "load_module modules/other.so;";
    assert_eq!(plan(ProxyKind::Nginx, text), "rx-server:*,rx-client:*");
}

#[test]
fn a_route_that_shares_an_address_is_left_out_with_the_other() {
    let text = "http { proxy_next_upstream off; server { listen 80; location /a { ssi on; proxy_pass http://10.0.0.1; }
        location /b { proxy_pass http://10.0.0.1; } location /c { proxy_pass http://10.0.0.2; } } }";
    let report = check_text(text, "n".as_ref(), &Options::of_kind(ProxyKind::Nginx)).unwrap();
    let outcomes: Vec<_> = report.routes.iter().map(|r| r.responses).collect();
    assert_eq!(outcomes, [Outcome::LeftOut, Outcome::LeftOut, Outcome::Untouched]);
}

#[test]
fn tls_that_the_engine_cannot_see_is_left_out() {
    let text = "http { server { listen 443 ssl; location / { proxy_pass http://10.0.0.1; } } }";
    let mut options = Options::of_kind(ProxyKind::Nginx);
    let seen = check_text(text, "n".as_ref(), &options).unwrap();
    assert_eq!(seen.routes[0].responses, Outcome::Materialised);
    assert!(seen.plan.may_anchor_responses(&"10.0.0.1:80".parse().unwrap()));
    options.tls_is_visible = false;
    let unseen = check_text(text, "n".as_ref(), &options).unwrap();
    assert_eq!(unseen.routes[0].responses, Outcome::LeftOut);
    assert!(!unseen.plan.may_anchor_responses(&"10.0.0.1:80".parse().unwrap()));
}

#[test]
fn directives_of_the_command_line_count() {
    let options = Options { inline: Some("load_module x.so;".into()), ..Options::of_kind(ProxyKind::Nginx) };
    assert!(check_text("events {}", "n".as_ref(), &options).unwrap().plan.leaves_out_everything());
    let options = Options { inline: Some("admin: {}".into()), ..Options::of_kind(ProxyKind::Envoy) };
    assert!(check_text("admin: {}", "e".as_ref(), &options).unwrap().is_refused());
    assert!(check_files(&[], &options).unwrap().is_clean());
}

#[test]
fn the_text_of_a_plan_can_be_read_back() {
    let text = "rx-server:*:8443,rx-server:unix:/run/a.sock,rx-client:*:80,rx-client:10.0.0.5:8080,rx-client:[::1]:80";
    let plan: Plan = text.parse().unwrap();
    // An entry that another one covers is not kept.
    let kept = "rx-server:*:8443,rx-server:unix:/run/a.sock,rx-client:*:80,rx-client:10.0.0.5:8080";
    assert_eq!(plan.to_string(), kept);
    assert!(!plan.may_anchor_responses(&Address::Port(8080)), "one address of the port is left out");
    assert!(plan.may_anchor_responses(&"10.0.0.6:8080".parse().unwrap()));
    assert!(plan.may_anchor_requests(&"10.0.0.6:8080".parse().unwrap()));
    assert_eq!("".parse::<Plan>().unwrap(), Plan::default());
    for bad in ["rx-server", "tx-server:*", "rx-client:10.0.0.1", "rx-client:*:x", "rx-client:unix:"] {
        assert_eq!(bad.parse::<Plan>().unwrap_err().entry, bad);
    }
}
