//! Who answers a request.

use std::fmt;
use std::str::FromStr;

/// When connections move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// Never: answers are relayed.
    Relay,
    /// Once, at the first request, to the backend with the fewest connections.
    Pin,
    /// To the owner of the path; a request for another owner comes back.
    Shard,
    /// Back after so many requests.
    PerRequest(u32),
    /// As `pin`, and back from a backend that has more than its share.
    LeastLoaded,
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Policy::Relay => f.write_str("relay"),
            Policy::Pin => f.write_str("pin"),
            Policy::Shard => f.write_str("shard"),
            Policy::PerRequest(count) => write!(f, "per-request {count}"),
            Policy::LeastLoaded => f.write_str("least-loaded"),
        }
    }
}

/// Not a policy.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("{0:?} is no policy: use relay, pin, shard, least-loaded, or per-request N with N from 1 on")]
pub struct PolicyError(pub String);

impl FromStr for Policy {
    type Err = PolicyError;

    fn from_str(text: &str) -> Result<Policy, PolicyError> {
        let mut words = text.split_ascii_whitespace();
        let policy = match (words.next(), words.next(), words.next()) {
            (Some("relay"), None, None) => Policy::Relay,
            (Some("pin"), None, None) => Policy::Pin,
            (Some("shard"), None, None) => Policy::Shard,
            (Some("least-loaded"), None, None) => Policy::LeastLoaded,
            (Some("per-request"), Some(count), None) => match count.parse() {
                Ok(count @ 1..) => Policy::PerRequest(count),
                _ => return Err(PolicyError(text.to_owned())),
            },
            _ => return Err(PolicyError(text.to_owned())),
        };
        Ok(policy)
    }
}

/// One backend as a policy sees it.
#[derive(Clone, Debug)]
pub struct Candidate {
    /// Its name in the configuration: what is hashed.
    pub name: String,
    /// It answers.
    pub alive: bool,
    /// Connections that it owns.
    pub load: u32,
}

/// The index of the backend for a path. None if none is alive.
pub fn choose(policy: Policy, path: &str, candidates: &[Candidate]) -> Option<usize> {
    let alive = candidates.iter().enumerate().filter(|(_, candidate)| candidate.alive);
    match policy {
        Policy::Shard => alive.max_by_key(|(_, candidate)| weight(&candidate.name, path)).map(|(index, _)| index),
        _ => alive.min_by_key(|(_, candidate)| candidate.load).map(|(index, _)| index),
    }
}

/// Rendezvous hashing: a backend that goes away moves only its own paths. FNV-1a and a finaliser, because all hosts must
/// agree whatever they were built with.
fn weight(name: &str, path: &str) -> u64 {
    let bytes = name.bytes().chain([0]).chain(path.bytes());
    let hash =
        bytes.fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
    let mixed = (hash ^ hash >> 33).wrapping_mul(0xff51_afd7_ed55_8ccd);
    let mixed = (mixed ^ mixed >> 33).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    mixed ^ mixed >> 33
}

/// A backend may keep a quarter more than the mean, and always two more.
pub fn is_overloaded(load: u32, mean: u32) -> bool {
    load > mean.saturating_add((mean / 4).max(2))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn candidates(loads: &[u32]) -> Vec<Candidate> {
        let one = |(index, load): (usize, &u32)| Candidate { name: format!("b{index}"), alive: true, load: *load };
        loads.iter().enumerate().map(one).collect()
    }

    #[test]
    fn policies_are_read() {
        assert_eq!("per-request 3".parse(), Ok(Policy::PerRequest(3)));
        for text in ["relay", "pin", "shard", "least-loaded", "per-request 7"] {
            assert_eq!(text.parse::<Policy>().unwrap().to_string(), text);
        }
        for bad in ["", "per-request", "per-request 0", "per-request -1", "pin 2", "round-robin"] {
            assert!(bad.parse::<Policy>().is_err(), "{bad}");
        }
    }

    #[test]
    fn the_least_loaded_backend_that_lives_is_chosen() {
        let mut backends = candidates(&[4, 1, 2]);
        assert_eq!(choose(Policy::Pin, "/", &backends), Some(1));
        backends[1].alive = false;
        assert_eq!(choose(Policy::Pin, "/", &backends), Some(2));
        assert_eq!(choose(Policy::Pin, "/", &[]), None);
    }

    #[test]
    fn the_owner_of_a_path_is_the_same_everywhere() {
        let owners: Vec<_> =
            ["/", "/a", "/b", "/c"].map(|path| choose(Policy::Shard, path, &candidates(&[0; 4]))).into();
        assert_eq!(owners, [1, 0, 1, 2].map(Some));
    }

    #[test]
    fn a_shard_moves_only_if_its_owner_dies() {
        let mut backends = candidates(&[0; 4]);
        let owner = |backends: &[Candidate], path: u32| choose(Policy::Shard, &format!("/{path}"), backends).unwrap();
        let before: Vec<usize> = (0..1000).map(|path| owner(&backends, path)).collect();
        backends[2].alive = false;
        for (path, old) in before.iter().enumerate() {
            let new = owner(&backends, path as u32);
            assert!(if *old == 2 { new != 2 } else { new == *old });
        }
        assert!((0..4).all(|backend| before.iter().filter(|owner| **owner == backend).count() > 150));
    }

    #[test]
    fn overload_is_more_than_a_share() {
        assert!(!is_overloaded(2, 0) && is_overloaded(3, 0));
        assert!(!is_overloaded(125, 100) && is_overloaded(126, 100));
        assert!(!is_overloaded(u32::MAX, u32::MAX));
    }
}
