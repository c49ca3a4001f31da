//! Requests at the borders of a policy: its own literals, whole, cut, longer, in another case, encoded.

use underdeck_mesh_policy::envoy::Bind;
use underdeck_mesh_policy::evaluate::Request;
use underdeck_mesh_policy::form::{Listener, Policy};

/// Draws requests. The same seed draws the same ones.
pub struct Generator {
    state: u64,
    hosts: Vec<String>,
    paths: Vec<String>,
    headers: Vec<String>,
    values: Vec<String>,
}

impl Generator {
    /// Takes the literals out of the policy.
    pub fn new(listener: &Listener, policy: &Policy, seed: u64) -> Self {
        let mut texts = Vec::new();
        let listener_json = serde_json::to_value(listener).expect("JSON");
        let policy_json = serde_json::to_value(&policy.authorization).expect("JSON");
        for json in [&listener_json["virtual_hosts"], &policy_json] {
            strings(json, "", &mut texts);
        }
        let of = |keys: &[&str]| -> Vec<String> {
            let found = texts.iter().filter(|(key, _)| keys.contains(&key.as_str()));
            found.map(|(_, text)| text.clone()).filter(|text| text.is_ascii()).collect()
        };
        let literals = of(&["exact", "prefix", "suffix", "contains", "segments", "regex"]);
        let mut paths: Vec<_> = literals.iter().filter(|text| text.starts_with('/')).cloned().collect();
        paths.extend(["/", "/items/42/x", "/raac/yy", "/ra/", "/items/", "/x", "/hosts"].map(String::from));
        let mut values: Vec<_> = literals.iter().filter(|text| !text.starts_with('/')).cloned().collect();
        values
            .extend(["", "jason", "abcxyz", "5", "-5", "10", " 7", "a;user=tester;b", "user=tester"].map(String::from));
        values.extend(["a", "b", "a,b", "z", "b,a"].map(String::from));
        let mut headers = of(&["name"]);
        headers.retain(|name| name.bytes().all(|b| b.is_ascii_lowercase() || b == b'-') && name.contains('-'));
        headers.extend(["x-user", "x-secret", "x-debug", "cookie", "x-a", "x-b", "x-c", "x-level"].map(String::from));
        let hosts = listener.virtual_hosts.iter().flat_map(|host| host.domains.clone()).collect();
        Self { state: seed | 1, hosts, paths, headers, values }
    }

    fn next(&mut self) -> u64 {
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        self.state
    }

    pub fn below(&mut self, end: usize) -> usize {
        usize::try_from(self.next() % end as u64).expect("smaller than `end`")
    }

    fn one_of(&mut self, list: &[String]) -> String {
        list[self.below(list.len())].clone()
    }

    fn chance(&mut self, of: usize) -> bool {
        self.below(of) == 0
    }

    pub fn request(&mut self, bind: &Bind) -> Request {
        let methods = ["GET", "GET", "GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH"];
        let mut path = self.path();
        let mut authority = self.host();
        if self.chance(12) {
            let scheme = if self.chance(2) { "http" } else { "HTTP" };
            path = format!("{scheme}://{authority}{path}");
            authority = if self.chance(2) { "elsewhere.test".into() } else { authority };
        }
        let mut headers: Vec<(String, String)> = Vec::new();
        for _ in 0..self.below(4) {
            let (mut names, values) = (self.headers.clone(), self.values.clone());
            if let (Some((last, _)), true) = (headers.last().cloned(), self.chance(3)) {
                names = vec![last];
            }
            let value = self.one_of(&values);
            let value = if self.chance(6) { value.to_ascii_uppercase() } else { value };
            headers.push((self.one_of(&names), value.trim().to_owned()));
        }
        let method = methods[self.below(methods.len())];
        // HEAD has no body to say where it went.
        let method = if method == "HEAD" && !self.chance(4) { "GET" } else { method };
        Request {
            method: method.to_owned(),
            target: path,
            authority,
            headers,
            source: bind.sender.clone(),
            destination: bind.destination,
        }
    }

    fn host(&mut self) -> String {
        let hosts = self.hosts.clone();
        let mut host = self.one_of(&hosts);
        if self.chance(8) {
            host = "unknown.test".into();
        }
        let fill = ["a", "a.b", "-x", "www"][self.below(4)];
        host = host.replace('*', if self.chance(6) { "" } else { fill });
        if self.chance(8) {
            host = host.to_ascii_uppercase();
        }
        if self.chance(5) && !host.contains(':') {
            host += [":80", ":8080", ":8081", ":443"][self.below(4)];
        }
        host
    }

    fn path(&mut self) -> String {
        let paths = self.paths.clone();
        let mut path = self.one_of(&paths);
        match self.below(14) {
            0 => path.push('/'),
            1 => path.push('x'),
            2 => path += "/more/x.json",
            3 => path = path[..path.len() - 1].to_owned(),
            4 => path = path.to_ascii_uppercase(),
            5 => path = path.replacen('/', "//", 1),
            6 => path = path.replacen('/', "/./", 1),
            7 => path = format!("/zz/..{path}"),
            8 => path += "%2Fx",
            9 => path += ["%2f..", "/%2e%2e/y", "%5Cx", "/%41%7e", "%zz", "/..", "\\x"][self.below(7)],
            10 if path.len() > 2 => {
                let code = format!("%{:02x}", path.as_bytes()[2]);
                path.replace_range(2..3, &code);
            }
            _ => {}
        }
        if !path.starts_with('/') {
            path.insert(0, '/');
        }
        match self.below(10) {
            0 => path += "?",
            1 => path += "?a=b&c=/../d",
            2 => path += "?x=%2F//y",
            3 if self.chance(8) => path += "#f",
            _ => {}
        }
        path.replace([' ', '^', '(', ')', '[', ']', '|', '*', '+', '$', '{', '}'], "")
    }
}

/// Every string with the nearest name of a member around it.
fn strings(json: &serde_json::Value, key: &str, out: &mut Vec<(String, String)>) {
    match json {
        serde_json::Value::String(text) => out.push((key.to_owned(), text.clone())),
        serde_json::Value::Array(items) => items.iter().for_each(|item| strings(item, key, out)),
        serde_json::Value::Object(members) => members.iter().for_each(|(key, value)| strings(value, key, out)),
        _ => {}
    }
}
