//! The slow tier of tc: rules of the classifier flower, which network cards take over (`skip_sw`).
//!
//! Such a rule does by itself what the program of the fast tier does with the help of the routing table: it matches one
//! connection's packets, gives them another destination and the link addresses of the next hop, and sends them out.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr};

use crate::netlink::{self, Attributes};
use crate::slow::{SlowError, SlowTier};
use crate::{Flow, Target};

/// Before the programs of the fast tier where they hang at clsact too. A priority has one protocol.
const PRIORITY_V4: u16 = 0xdea;
const PRIORITY_V6: u16 = 0xdeb;

const ETH_P_IP: u16 = 0x0800;
const ETH_P_IPV6: u16 = 0x86dd;

// include/uapi/linux/pkt_cls.h
const FLOWER_ACT: u16 = 3;
const FLOWER_ETH_TYPE: u16 = 8;
const FLOWER_IP_PROTO: u16 = 9;
/// Source, then two further on the destination; in between their masks, without which all bits count.
const FLOWER_IPV4: u16 = 10;
const FLOWER_IPV6: u16 = 14;
const FLOWER_TCP_SOURCE: u16 = 18;
const FLOWER_TCP_DESTINATION: u16 = 19;
const FLOWER_FLAGS: u16 = 22;
const SKIP_SW: u32 = 2;
const ACT_KIND: u16 = 1;
const ACT_OPTIONS: u16 = 2;
const ACT_PIPE: i32 = 3;
const ACT_STOLEN: i32 = 4;

// include/uapi/linux/tc_act/tc_pedit.h, tc_csum.h, tc_mirred.h
const PEDIT_PARMS_EX: u16 = 4;
const PEDIT_KEYS_EX: u16 = 5;
const PEDIT_KEY_EX: u16 = 6;
const PEDIT_HEADER_TYPE: u16 = 1;
const PEDIT_COMMAND: u16 = 2;
const HEADER_ETHERNET: u16 = 1;
const HEADER_IPV4: u16 = 2;
const HEADER_IPV6: u16 = 3;
const HEADER_TCP: u16 = 4;
const CSUM_PARMS: u16 = 1;
const CSUM_IPV4_HEADER: u32 = 1;
const CSUM_TCP: u32 = 8;
const MIRRED_PARMS: u16 = 2;
const EGRESS_REDIRECT: i32 = 1;

/// Rules of flower at the ingress of an interface. One for each interface: it removes what an earlier one has left.
///
/// Calls are made in the network namespace of the thread that makes them, which must be the interface's.
#[derive(Debug)]
pub struct Flower {
    interface: u32,
    hardware: bool,
    /// The hook was not there before.
    made_hook: bool,
    handles: HashMap<Flow, u32>,
    next: u32,
}

impl Flower {
    /// Prepares an interface. With `hardware` only rules that its network card takes are set; without, the kernel carries
    /// them out, which is good for tests only: the fast tier does the same for less, and packets that the kernel has put
    /// together (GRO) keep a wrong checksum.
    ///
    /// # Errors
    /// [`SlowError::Unsupported`] if the kernel or (`hardware`) the card lacks what is needed. Nothing is left behind.
    pub fn attach(interface: u32, hardware: bool) -> Result<Flower, SlowError> {
        let made_hook = match netlink::clsact(interface, true) {
            Ok(()) => true,
            Err(error) if error.raw_os_error() == Some(libc::EEXIST) => false,
            Err(error) => return Err(unsupported("clsact:", &error)),
        };
        let mut flower = Flower { interface, hardware, made_hook, handles: HashMap::new(), next: 1 };
        flower.flush();
        // A rule for documentation addresses tells whether all is there.
        let nobody = |port| SocketAddr::new([192, 0, 2, 1].into(), port);
        let flow = Flow { local: nobody(1), peer: nobody(2) };
        let next_hop = NextHop { source: [0; 6], destination: [0; 6] };
        let target = Target { address: nobody(3), interface };
        flower.set(&flow, &target, &next_hop).map_err(|error| {
            unsupported("cls_flower, act_pedit, act_csum and act_mirred, or a card that takes them:", &error)
        })?;
        flower.remove(&flow)?;
        Ok(flower)
    }

    fn set(&mut self, flow: &Flow, target: &Target, next_hop: &NextHop) -> io::Result<()> {
        let handle = self.next;
        let filter =
            netlink::TcMessage { interface: self.interface, handle, parent: netlink::INGRESS, info: info(flow) };
        netlink::add_filter(&filter, "flower", &options(flow, target, next_hop, self.hardware))?;
        self.next = self.next.wrapping_add(1).max(1);
        self.handles.insert(*flow, handle);
        Ok(())
    }

    /// Removes all rules of this kind.
    fn flush(&mut self) {
        for (priority, protocol) in [(PRIORITY_V4, ETH_P_IP), (PRIORITY_V6, ETH_P_IPV6)] {
            let info = u32::from(priority) << 16 | u32::from(protocol.to_be());
            let all = netlink::TcMessage { interface: self.interface, handle: 0, parent: netlink::INGRESS, info };
            // There are none, as a rule.
            let _ = netlink::remove_filter(&all);
        }
        self.handles.clear();
    }
}

impl SlowTier for Flower {
    fn insert(&mut self, flow: &Flow, target: &Target) -> Result<(), SlowError> {
        let refused = |error: io::Error| SlowError::Refused(error.to_string());
        let next_hop = NextHop::of(target).map_err(refused)?;
        self.set(flow, target, &next_hop).map_err(refused)
    }

    fn remove(&mut self, flow: &Flow) -> Result<(), SlowError> {
        let Some(handle) = self.handles.get(flow).copied() else { return Ok(()) };
        let info = info(flow);
        let filter = netlink::TcMessage { interface: self.interface, handle, parent: netlink::INGRESS, info };
        match netlink::remove_filter(&filter) {
            Err(error) if error.raw_os_error() != Some(libc::ENOENT) => Err(SlowError::Refused(error.to_string())),
            _ => {
                self.handles.remove(flow);
                Ok(())
            }
        }
    }
}

impl Drop for Flower {
    fn drop(&mut self) {
        self.flush();
        let others = |hook| netlink::filters(self.interface, hook).is_ok_and(|filters| !filters.is_empty());
        if self.made_hook && !others(netlink::INGRESS) && !others(netlink::EGRESS) {
            let _ = netlink::clsact(self.interface, false);
        }
    }
}

fn unsupported(what: &str, error: &io::Error) -> SlowError {
    SlowError::Unsupported(format!("this needs {what} {error}"))
}

/// Link addresses of a packet on its way to the next hop.
struct NextHop {
    source: [u8; 6],
    destination: [u8; 6],
}

impl NextHop {
    /// As the kernel knows them now; the fast tier has it find them out.
    fn of(target: &Target) -> io::Result<NextHop> {
        let route = netlink::route(target.address.ip())?;
        let gateway = route.gateway.unwrap_or(target.address.ip());
        Ok(NextHop {
            source: netlink::link_address(target.interface)?,
            destination: netlink::neighbour(target.interface, gateway)?,
        })
    }
}

/// Priority and protocol.
fn info(flow: &Flow) -> u32 {
    let (priority, protocol) = if flow.peer.is_ipv4() { (PRIORITY_V4, ETH_P_IP) } else { (PRIORITY_V6, ETH_P_IPV6) };
    u32::from(priority) << 16 | u32::from(protocol.to_be())
}

fn octets(ip: IpAddr) -> Vec<u8> {
    match ip {
        IpAddr::V4(v4) => v4.octets().to_vec(),
        IpAddr::V6(v6) => v6.octets().to_vec(),
    }
}

fn options(flow: &Flow, target: &Target, next_hop: &NextHop, hardware: bool) -> Attributes {
    let v4 = flow.peer.is_ipv4();
    let (protocol, address) = if v4 { (ETH_P_IP, FLOWER_IPV4) } else { (ETH_P_IPV6, FLOWER_IPV6) };
    let mut options = Attributes::default();
    options.put(FLOWER_ETH_TYPE, &protocol.to_be_bytes());
    options.put(FLOWER_IP_PROTO, &[libc::IPPROTO_TCP as u8]);
    options.put(address, &octets(flow.peer.ip()));
    options.put(address + 2, &octets(flow.local.ip()));
    options.put(FLOWER_TCP_SOURCE, &flow.peer.port().to_be_bytes());
    options.put(FLOWER_TCP_DESTINATION, &flow.local.port().to_be_bytes());
    let checksums = CSUM_TCP | if v4 { CSUM_IPV4_HEADER } else { 0 };
    let mirred = [EGRESS_REDIRECT.to_ne_bytes(), target.interface.to_ne_bytes()].concat();
    let actions: [(&str, Attributes); 3] = [
        ("pedit", pedit(&edits(target, next_hop))),
        ("csum", parameters(CSUM_PARMS, ACT_PIPE, &checksums.to_ne_bytes())),
        ("mirred", parameters(MIRRED_PARMS, ACT_STOLEN, &mirred)),
    ];
    let mut list = Attributes::default();
    for (number, (kind, parameters)) in (1..).zip(&actions) {
        let mut action = Attributes::default();
        action.put_name(ACT_KIND, kind);
        action.nest(ACT_OPTIONS, parameters);
        list.nest(number, &action);
    }
    options.nest(FLOWER_ACT, &list);
    if hardware {
        options.put(FLOWER_FLAGS, &SKIP_SW.to_ne_bytes());
    }
    options
}

/// `struct tc_gen`: only what follows on the action is set.
fn generic(then: i32) -> Vec<u8> {
    [[0; 4], [0; 4], then.to_ne_bytes(), [0; 4], [0; 4]].concat()
}

fn parameters(kind: u16, then: i32, more: &[u8]) -> Attributes {
    let mut all = Attributes::default();
    all.put(kind, &[&generic(then), more].concat());
    all
}

/// Four bytes of a header: those under the mask stay, the others become `value`.
#[derive(Debug, PartialEq, Eq)]
struct Edit {
    header: u16,
    offset: u32,
    keep: [u8; 4],
    value: [u8; 4],
}

/// What makes a packet one for the target.
fn edits(target: &Target, next_hop: &NextHop) -> Vec<Edit> {
    let whole = |header, at: u32, bytes: &[u8]| -> Vec<Edit> {
        let words = (at..).step_by(4).zip(bytes.chunks_exact(4));
        let edit = |(offset, word): (u32, &[u8])| Edit {
            header,
            offset,
            keep: [0; 4],
            value: word.try_into().expect("chunks of four"),
        };
        words.map(edit).collect()
    };
    // Offsets of the destination in RFC 791 and RFC 8200.
    let (header, at) = if target.address.is_ipv4() { (HEADER_IPV4, 16) } else { (HEADER_IPV6, 24) };
    let mut edits = whole(HEADER_ETHERNET, 0, &[next_hop.destination, next_hop.source].concat());
    edits.extend(whole(header, at, &octets(target.address.ip())));
    let [high, low] = target.address.port().to_be_bytes();
    edits.push(Edit { header: HEADER_TCP, offset: 0, keep: [255, 255, 0, 0], value: [0, 0, high, low] });
    edits
}

/// `struct tc_pedit_sel` with its keys, and the header that each key is about.
fn pedit(edits: &[Edit]) -> Attributes {
    let mut selector = generic(ACT_PIPE);
    // Number of keys, flags, padding.
    selector.extend_from_slice(&[edits.len() as u8, 0, 0, 0]);
    let mut headers = Attributes::default();
    for edit in edits {
        // Mask, value, offset; the rest is for offsets that depend on the packet.
        for word in [edit.keep, edit.value, edit.offset.to_ne_bytes(), [0; 4], [0; 4], [0; 4]] {
            selector.extend_from_slice(&word);
        }
        let mut key = Attributes::default();
        key.put(PEDIT_HEADER_TYPE, &edit.header.to_ne_bytes());
        key.put(PEDIT_COMMAND, &0u16.to_ne_bytes());
        headers.nest(PEDIT_KEY_EX, &key);
    }
    let mut all = Attributes::default();
    all.put(PEDIT_PARMS_EX, &selector);
    all.nest(PEDIT_KEYS_EX, &headers);
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the kernel does with edits.
    fn edited(packet: &[u8], edits: &[Edit], ip: usize, tcp: usize) -> Vec<u8> {
        let mut packet = packet.to_vec();
        for edit in edits {
            let header = match edit.header {
                HEADER_ETHERNET => 0,
                HEADER_TCP => tcp,
                _ => ip,
            };
            for at in 0..4 {
                let byte = &mut packet[header + edit.offset as usize + at];
                *byte = *byte & edit.keep[at] ^ edit.value[at];
            }
        }
        packet
    }

    #[test]
    fn only_the_addresses_of_the_next_hop_and_the_target_change() {
        let next_hop = NextHop { source: [2; 6], destination: [3; 6] };
        for (address, ip_header, destination) in [("192.0.2.7:8080", 20, 14 + 16), ("[2001:db8::7]:8080", 40, 14 + 24)]
        {
            let target = Target { address: address.parse().unwrap(), interface: 5 };
            let before: Vec<u8> = (0..14 + ip_header + 20).collect();
            let tcp = 14 + usize::from(ip_header);
            let mut expected = before.clone();
            expected[..12].copy_from_slice(&[3, 3, 3, 3, 3, 3, 2, 2, 2, 2, 2, 2]);
            let ip = octets(target.address.ip());
            expected[destination..destination + ip.len()].copy_from_slice(&ip);
            expected[tcp + 2..tcp + 4].copy_from_slice(&8080u16.to_be_bytes());
            assert_eq!(edited(&before, &edits(&target, &next_hop), 14, tcp), expected, "{address}");
        }
    }
}
