//! What the engine must leave out.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

use serde::Serialize;

use crate::address::Address;

/// Which payload must not be anchored, by the address that the engine sees when it receives it.
///
/// Its text form is the value of the environment variable `UNDERDECK_LEAVE_OUT`: entries with a comma between them,
/// `rx-server:ADDRESS` for requests on connections accepted at a local address, `rx-client:ADDRESS` for responses from
/// a peer. `ADDRESS` is `*`, `*:PORT`, `IP:PORT` (IPv6 in brackets) or `unix:PATH`. An empty text leaves out nothing.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Plan {
    /// Local addresses of listeners whose requests are copied.
    pub requests: BTreeSet<Address>,
    /// Addresses of upstream servers whose responses are copied.
    pub responses: BTreeSet<Address>,
}

/// An entry of a plan's text that is not of its form.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{entry}` is not rx-server:ADDRESS or rx-client:ADDRESS, with ADDRESS *, *:PORT, IP:PORT or unix:PATH")]
pub struct PlanError {
    /// The entry as it was given.
    pub entry: String,
}

impl Plan {
    /// Leaves out requests that arrive at `address`.
    pub fn leave_out_requests(&mut self, address: Address) {
        add(&mut self.requests, address);
    }

    /// Leaves out responses from `address`.
    pub fn leave_out_responses(&mut self, address: Address) {
        add(&mut self.responses, address);
    }

    /// Whether requests that arrive at `address` may be anchored.
    pub fn may_anchor_requests(&self, address: &Address) -> bool {
        !self.requests.iter().any(|left_out| left_out.overlaps(address))
    }

    /// Whether responses from `address` may be anchored.
    pub fn may_anchor_responses(&self, address: &Address) -> bool {
        !self.responses.iter().any(|left_out| left_out.overlaps(address))
    }

    /// Whether nothing at all may be anchored.
    pub fn leaves_out_everything(&self) -> bool {
        self.requests.contains(&Address::Every) && self.responses.contains(&Address::Every)
    }
}

/// Keeps the set free of entries that another one covers.
fn add(set: &mut BTreeSet<Address>, address: Address) {
    if set.iter().any(|there| there.covers(&address)) {
        return;
    }
    set.retain(|there| !address.covers(there));
    set.insert(address);
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let requests = self.requests.iter().map(|a| ("rx-server", a));
        let responses = self.responses.iter().map(|a| ("rx-client", a));
        for (n, (role, address)) in requests.chain(responses).enumerate() {
            write!(f, "{}{role}:{address}", if n == 0 { "" } else { "," })?;
        }
        Ok(())
    }
}

impl FromStr for Plan {
    type Err = PlanError;

    fn from_str(text: &str) -> Result<Self, PlanError> {
        let mut plan = Self::default();
        for entry in text.split(',').map(str::trim).filter(|e| !e.is_empty()) {
            let bad = || PlanError { entry: entry.to_owned() };
            let (role, address) = entry.split_once(':').ok_or_else(bad)?;
            let address = address.parse().map_err(|()| bad())?;
            match role {
                "rx-server" => plan.leave_out_requests(address),
                "rx-client" => plan.leave_out_responses(address),
                _ => return Err(bad()),
            }
        }
        Ok(plan)
    }
}
