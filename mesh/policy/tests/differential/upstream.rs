//! Servers that say what they received: one port for each cluster.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};

/// One server for each cluster. The threads end with the process.
pub struct Upstreams {
    addresses: BTreeMap<String, Vec<SocketAddr>>,
}

impl Upstreams {
    pub fn start(address: IpAddr, clusters: impl Iterator<Item = String>) -> Self {
        let mut addresses = BTreeMap::new();
        for cluster in clusters {
            let listener = TcpListener::bind((address, 0)).expect("a port");
            addresses.insert(cluster.clone(), vec![listener.local_addr().expect("bound")]);
            std::thread::spawn(move || {
                for stream in listener.incoming().map_while(Result::ok) {
                    let cluster = cluster.clone();
                    std::thread::spawn(move || serve(&cluster, stream));
                }
            });
        }
        Self { addresses }
    }

    pub fn addresses(&self) -> &BTreeMap<String, Vec<SocketAddr>> {
        &self.addresses
    }

    /// What every response carries.
    pub fn response_headers(&self) -> Vec<(String, String)> {
        let headers = [("content-type", "application/json"), ("x-up", "one"), ("x-up", "two"), ("x-internal", "yes")];
        headers.map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec()
    }
}

fn serve(cluster: &str, stream: TcpStream) {
    let Ok(mut answers) = stream.try_clone() else { return };
    let mut lines = BufReader::new(stream).lines();
    while let Some(Ok(first)) = lines.next() {
        let mut headers = Vec::new();
        for line in lines.by_ref().map_while(Result::ok).take_while(|line| !line.is_empty()) {
            let (name, value) = line.split_once(':').expect("a header");
            headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
        }
        let mut words = first.split(' ');
        let (method, path) = (words.next().unwrap_or(""), words.next().unwrap_or(""));
        let seen = serde_json::json!({"cluster": cluster, "method": method, "path": path, "headers": headers});
        // In a header, so that a HEAD says it too.
        let head = format!(
            "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nx-up: one\r\nx-up: two\r\nx-internal: yes\r\n\
             x-seen: {seen}\r\ncontent-length: 0\r\n\r\n",
        );
        if answers.write_all(head.as_bytes()).is_err() {
            return;
        }
    }
}
