//! What each service's Envoy is told: made of the same policies, by the same generator as the agent's own Envoy.
//!
//! As in Istio, routes are enforced where requests leave, authorization where they arrive.

use std::collections::BTreeMap;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use serde_json::{Value, json};
use underdeck_lab::timeline::host;
use underdeck_lab::{LabError, tools};
use underdeck_mesh_policy::envoy::{Bind, bootstrap};
use underdeck_mesh_policy::evaluate::Sender;
use underdeck_mesh_policy::form::Policy;
use underdeck_mesh_policy::read::{load, read};

/// Where the policies of the demo are.
pub fn folder() -> PathBuf {
    tools::root().join("bench/policies")
}

fn failed(what: &str, why: impl ToString) -> LabError {
    LabError::Io { what: what.to_owned(), error: io::Error::other(why.to_string()) }
}

fn policy(files: &[&str]) -> Result<Policy, LabError> {
    let paths: Vec<_> = files.iter().map(|file| folder().join(file)).collect();
    let reading = read(&load(&paths).map_err(|error| failed("read the policies", error))?);
    match reading.errors.first() {
        Some(error) => Err(failed("read the policies", error)),
        None => Ok(reading.policy),
    }
}

/// Clusters of a service: one, or one for each subset.
fn clusters<'a>(policy: &'a Policy, service: &str) -> impl Iterator<Item = String> + 'a {
    let prefix = format!("{}|", host(service));
    policy.clusters.iter().map(|cluster| cluster.name.clone()).filter(move |name| name.starts_with(&prefix))
}

/// Endpoints by cluster, where every service has one.
pub fn endpoints(addresses: &BTreeMap<String, SocketAddr>) -> Result<BTreeMap<String, Vec<SocketAddr>>, LabError> {
    let policy = policy(&["routes.yaml", "access.yaml"])?;
    let of = |(service, address): (&String, &SocketAddr)| {
        clusters(&policy, service).map(|name| (name, vec![*address])).collect::<Vec<_>>()
    };
    Ok(addresses.iter().flat_map(of).collect())
}

fn generated(files: &[&str], at: SocketAddr, to: &BTreeMap<String, SocketAddr>) -> Result<Value, LabError> {
    let destination = (Ipv4Addr::LOCALHOST.into(), 80);
    let sender = Sender { identity: None, labels: None, address: Ipv4Addr::LOCALHOST.into() };
    let bind = Bind { listener: "mesh".to_owned(), address: at, sender, destination };
    let generated = bootstrap(&policy(files)?, &[bind], &endpoints(to)?);
    if !generated.missing.is_empty() {
        return Err(failed("configure Envoy", "a policy of the demo is not understood in full"));
    }
    Ok(generated.config)
}

/// One sidecar: what goes out comes to `outgoing`, and leaves for the `peers`; what comes in comes to `incoming`, and
/// goes on to the `service`. Either may be left out.
pub struct Sidecar<'a> {
    /// The service that it belongs to.
    pub name: &'a str,
    /// Where the service's own connections come to, and where other services, or their sidecars, are.
    pub outgoing: Option<(SocketAddr, &'a BTreeMap<String, SocketAddr>)>,
    /// Where others connect to, and where the service listens.
    pub incoming: Option<(SocketAddr, SocketAddr)>,
}

impl Sidecar<'_> {
    /// A bootstrap.
    pub fn config(&self) -> Result<Value, LabError> {
        let (mut listeners, mut all) = (Vec::new(), Vec::new());
        if let Some((at, peers)) = self.outgoing {
            let config = generated(&["routes.yaml"], at, peers)?;
            let parts = &config["static_resources"];
            listeners.extend(parts["listeners"].as_array().cloned().unwrap_or_default());
            all.extend(parts["clusters"].as_array().cloned().unwrap_or_default());
        }
        if let Some((at, service)) = self.incoming {
            let (listener, cluster) = self.incoming_parts(at, service)?;
            listeners.push(listener);
            all.push(cluster);
        }
        Ok(json!({"static_resources": {"listeners": listeners, "clusters": all}}))
    }

    /// The generator puts the authorization of a workload into a listener inside Envoy: here it has an address.
    fn incoming_parts(&self, at: SocketAddr, service: SocketAddr) -> Result<(Value, Value), LabError> {
        let to = BTreeMap::from([(self.name.to_owned(), service)]);
        let config = generated(&["routes.yaml", "access.yaml"], at, &to)?;
        let parts = &config["static_resources"];
        let of = |what: &str, test: &dyn Fn(&str) -> bool| {
            let mut all = parts[what].as_array().into_iter().flatten();
            all.find(|it| it["name"].as_str().is_some_and(test)).cloned()
        };
        let missing = || failed("configure Envoy", format!("{} has no authorization", self.name));
        let guarded = format!("guarded {}|", host(self.name));
        let mut listener = of("listeners", &|name| name.contains(&guarded)).ok_or_else(missing)?;
        let name = listener["name"].as_str().and_then(|name| Some(name.split_once("guarded ")?.1.to_owned()));
        let name = name.ok_or_else(missing)?;
        let mut cluster = of("clusters", &|of| of == name).ok_or_else(missing)?;
        if let Some(fields) = listener.as_object_mut() {
            fields.remove("internal_listener");
            fields.insert("address".to_owned(), socket(at));
        }
        // The same names lead elsewhere in the other direction.
        let text = listener.to_string().replace(&format!("\"{name}\""), "\"incoming\"");
        listener = serde_json::from_str(&text).map_err(|error| failed("configure Envoy", error))?;
        cluster["name"] = json!("incoming");
        cluster["load_assignment"]["cluster_name"] = json!("incoming");
        Ok((listener, cluster))
    }
}

fn socket(at: SocketAddr) -> Value {
    json!({"socket_address": {"address": at.ip().to_string(), "port_value": at.port()}})
}
