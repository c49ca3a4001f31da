//! Questions to rtnetlink (which way leads to an address, which filters stand at a hook), and filters that it sets.

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

const REPLY_BYTES: usize = 32 << 10;
const HEADER: usize = size_of::<libc::nlmsghdr>();
const RTMSG: usize = 12;
const TCMSG: usize = 20;

const RTA_DST: u16 = 1;
const RTA_OIF: u16 = 4;
const RTA_GATEWAY: u16 = 5;
const IFINFOMSG: usize = 16;
const IFLA_ADDRESS: u16 = 1;
const NDMSG: usize = 12;
const NDA_DST: u16 = 1;
const NDA_LLADDR: u16 = 2;
const TCA_KIND: u16 = 1;
const TCA_OPTIONS: u16 = 2;
const NLA_F_NESTED: u16 = 1 << 15;

/// The hooks of clsact (`TC_H_CLSACT` with `TC_H_MIN_INGRESS` and `TC_H_MIN_EGRESS`), and clsact itself.
pub const INGRESS: u32 = 0xffff_fff2;
pub const EGRESS: u32 = 0xffff_fff3;
const CLSACT: u32 = 0xffff_fff1;
const CLSACT_HANDLE: u32 = 0xffff_0000;

/// How an address is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    pub interface: u32,
    /// It is an address of this host.
    pub local: bool,
    /// The router on the way.
    pub gateway: Option<IpAddr>,
}

/// A filter at a hook.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Filter {
    pub handle: u32,
    pub priority: u16,
    pub kind: String,
}

/// The route that the kernel would take to `address`.
pub fn route(address: IpAddr) -> io::Result<Route> {
    let (family, octets) = family(address);
    // struct rtmsg: family, prefix length of the destination, and ten bytes of no interest.
    let mut body = vec![0u8; RTMSG];
    body[0] = family;
    body[1] = (octets.len() * 8) as u8;
    let mut destination = Attributes::default();
    destination.put(RTA_DST, &octets);
    body.extend_from_slice(&destination.0);
    let mut route = None;
    ask(libc::RTM_GETROUTE, 0, &body, |kind, reply| {
        if kind != libc::RTM_NEWROUTE || reply.len() < RTMSG {
            return;
        }
        let local = reply[7] == libc::RTN_LOCAL;
        let find = |wanted| attributes(&reply[RTMSG..]).find(|(kind, _)| *kind == wanted).map(|(_, value)| value);
        if let Some(Ok(index)) = find(RTA_OIF).map(TryInto::try_into) {
            let gateway = find(RTA_GATEWAY).and_then(to_address);
            route = Some(Route { interface: u32::from_ne_bytes(index), local, gateway });
        }
    })?;
    route.ok_or_else(|| io::Error::from_raw_os_error(libc::ENETUNREACH))
}

/// The link address of an interface.
pub fn link_address(interface: u32) -> io::Result<[u8; 6]> {
    // struct ifinfomsg: family, type, interface, and eight bytes of no interest.
    let mut body = vec![0u8; IFINFOMSG];
    body[4..8].copy_from_slice(&interface.to_ne_bytes());
    let mut address = None;
    ask(libc::RTM_GETLINK, 0, &body, |_, reply| {
        let value = attributes(reply.get(IFINFOMSG..).unwrap_or_default()).find(|(kind, _)| *kind == IFLA_ADDRESS);
        address = value.and_then(|(_, value)| value.try_into().ok());
    })?;
    address.ok_or_else(|| io::Error::from_raw_os_error(libc::EADDRNOTAVAIL))
}

/// The link address of a neighbour, if the kernel knows it.
pub fn neighbour(interface: u32, address: IpAddr) -> io::Result<[u8; 6]> {
    // struct ndmsg: family and padding, interface, and four bytes of no interest.
    let (family, octets) = family(address);
    let mut body = vec![0u8; NDMSG];
    body[0] = family;
    body[4..8].copy_from_slice(&interface.to_ne_bytes());
    let mut destination = Attributes::default();
    destination.put(NDA_DST, &octets);
    body.extend_from_slice(&destination.0);
    let mut found = None;
    ask(libc::RTM_GETNEIGH, 0, &body, |_, reply| {
        let value = attributes(reply.get(NDMSG..).unwrap_or_default()).find(|(kind, _)| *kind == NDA_LLADDR);
        found = value.and_then(|(_, value)| value.try_into().ok());
    })?;
    found.ok_or_else(|| io::Error::from_raw_os_error(libc::EHOSTUNREACH))
}

fn family(address: IpAddr) -> (u8, Vec<u8>) {
    match address {
        IpAddr::V4(v4) => (libc::AF_INET as u8, v4.octets().to_vec()),
        IpAddr::V6(v6) => (libc::AF_INET6 as u8, v6.octets().to_vec()),
    }
}

fn to_address(octets: &[u8]) -> Option<IpAddr> {
    let v4 = <[u8; 4]>::try_from(octets).map(IpAddr::from);
    v4.or_else(|_| <[u8; 16]>::try_from(octets).map(IpAddr::from)).ok()
}

/// `struct tcmsg`.
pub struct TcMessage {
    pub interface: u32,
    pub handle: u32,
    pub parent: u32,
    /// Priority and protocol of a filter.
    pub info: u32,
}

impl TcMessage {
    fn body(&self) -> Vec<u8> {
        [0, self.interface, self.handle, self.parent, self.info].map(u32::to_ne_bytes).concat()
    }
}

/// Makes or removes the hooks of an interface.
pub fn clsact(interface: u32, make: bool) -> io::Result<()> {
    let mut body = TcMessage { interface, handle: CLSACT_HANDLE, parent: CLSACT, info: 0 }.body();
    let mut kind = Attributes::default();
    kind.put_name(TCA_KIND, "clsact");
    body.extend_from_slice(&kind.0);
    let (request, flags) = match make {
        true => (libc::RTM_NEWQDISC, libc::NLM_F_CREATE | libc::NLM_F_EXCL),
        false => (libc::RTM_DELQDISC, 0),
    };
    ask(request, (flags | libc::NLM_F_ACK) as u16, &body, |_, _| ())
}

/// Sets a filter that is not there yet.
pub fn add_filter(filter: &TcMessage, kind: &str, options: &Attributes) -> io::Result<()> {
    let mut body = filter.body();
    let mut attributes = Attributes::default();
    attributes.put_name(TCA_KIND, kind);
    attributes.nest(TCA_OPTIONS, options);
    body.extend_from_slice(&attributes.0);
    let flags = libc::NLM_F_ACK | libc::NLM_F_CREATE | libc::NLM_F_EXCL;
    ask(libc::RTM_NEWTFILTER, flags as u16, &body, |_, _| ())
}

/// Removes a filter; without a handle all of its priority.
pub fn remove_filter(filter: &TcMessage) -> io::Result<()> {
    ask(libc::RTM_DELTFILTER, libc::NLM_F_ACK as u16, &filter.body(), |_, _| ())
}

/// Attributes of a message: length, type, value, padding.
#[derive(Clone, Debug, Default)]
pub struct Attributes(Vec<u8>);

impl Attributes {
    pub fn put(&mut self, kind: u16, value: &[u8]) {
        self.0.extend_from_slice(&(4 + value.len() as u16).to_ne_bytes());
        self.0.extend_from_slice(&kind.to_ne_bytes());
        self.0.extend_from_slice(value);
        self.0.resize(self.0.len().next_multiple_of(4), 0);
    }

    /// A text with the zero at its end.
    pub fn put_name(&mut self, kind: u16, name: &str) {
        self.put(kind, &[name.as_bytes(), &[0]].concat());
    }

    pub fn nest(&mut self, kind: u16, inner: &Attributes) {
        self.put(kind | NLA_F_NESTED, &inner.0);
    }
}

/// The filters at a hook of an interface; `parent` is the kernel's number of the hook.
pub fn filters(interface: u32, parent: u32) -> io::Result<Vec<Filter>> {
    // struct tcmsg: family and padding, interface, handle, parent, info.
    let mut body = vec![0u8; TCMSG];
    body[4..8].copy_from_slice(&interface.to_ne_bytes());
    body[12..16].copy_from_slice(&parent.to_ne_bytes());
    let mut filters = Vec::new();
    ask(libc::RTM_GETTFILTER, libc::NLM_F_DUMP as u16, &body, |kind, reply| {
        if kind != libc::RTM_NEWTFILTER || reply.len() < TCMSG {
            return;
        }
        let word = |at: usize| u32::from_ne_bytes(reply[at..at + 4].try_into().expect("four bytes"));
        let kind = attributes(&reply[TCMSG..]).find(|(kind, _)| *kind == TCA_KIND).map(|(_, value)| value);
        let kind = kind.unwrap_or_default().split(|byte| *byte == 0).next().unwrap_or_default();
        let handle = word(8);
        // A priority is listed once more with the handle 0.
        if handle != 0 {
            let kind = String::from_utf8_lossy(kind).into_owned();
            filters.push(Filter { handle, priority: (word(16) >> 16) as u16, kind });
        }
    })?;
    Ok(filters)
}

fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let length = usize::from(u16::from_ne_bytes(bytes.get(0..2)?.try_into().ok()?));
        let kind = u16::from_ne_bytes(bytes.get(2..4)?.try_into().ok()?);
        let value = bytes.get(4..length)?;
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, value))
    })
}

/// Sends one request, and shows each message of the answer.
fn ask(kind: u16, flags: u16, body: &[u8], mut each: impl FnMut(u16, &[u8])) -> io::Result<()> {
    let socket = socket()?;
    let mut request = Vec::with_capacity(HEADER + body.len());
    request.extend_from_slice(&((HEADER + body.len()) as u32).to_ne_bytes());
    request.extend_from_slice(&kind.to_ne_bytes());
    request.extend_from_slice(&(libc::NLM_F_REQUEST as u16 | flags).to_ne_bytes());
    request.extend_from_slice(&[0; 8]);
    request.extend_from_slice(body);
    // SAFETY: the kernel reads the request.
    if unsafe { libc::send(socket.as_raw_fd(), request.as_ptr().cast(), request.len(), 0) } < 0 {
        return Err(io::Error::last_os_error());
    }
    let mut reply = vec![0u8; REPLY_BYTES];
    loop {
        // SAFETY: the kernel writes at most that many bytes.
        let got = unsafe { libc::recv(socket.as_raw_fd(), reply.as_mut_ptr().cast(), reply.len(), 0) };
        if got < 0 {
            let error = io::Error::last_os_error();
            if error.kind() == io::ErrorKind::Interrupted {
                continue;
            }
            return Err(error);
        }
        if messages(&reply[..got as usize], &mut each)? {
            return Ok(());
        }
    }
}

/// True if these were the last ones.
fn messages(mut bytes: &[u8], each: &mut impl FnMut(u16, &[u8])) -> io::Result<bool> {
    while bytes.len() >= HEADER {
        let length = u32::from_ne_bytes(bytes[0..4].try_into().expect("four bytes")) as usize;
        let kind = u16::from_ne_bytes(bytes[4..6].try_into().expect("two bytes"));
        let flags = u16::from_ne_bytes(bytes[6..8].try_into().expect("two bytes"));
        let Some(body) = bytes.get(HEADER..length) else { return Err(io::ErrorKind::InvalidData.into()) };
        match i32::from(kind) {
            libc::NLMSG_DONE => return Ok(true),
            libc::NLMSG_ERROR => {
                let error = body.get(0..4).map_or(0, |code| i32::from_ne_bytes(code.try_into().expect("four bytes")));
                return if error == 0 { Ok(true) } else { Err(io::Error::from_raw_os_error(-error)) };
            }
            _ => each(kind, body),
        }
        if flags & libc::NLM_F_MULTI as u16 == 0 {
            return Ok(true);
        }
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    Ok(false)
}

fn socket() -> io::Result<OwnedFd> {
    // SAFETY: makes a descriptor that nobody else has.
    match unsafe { libc::socket(libc::AF_NETLINK, libc::SOCK_RAW | libc::SOCK_CLOEXEC, libc::NETLINK_ROUTE) } {
        // SAFETY: it was just made.
        fd @ 0.. => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
        _ => Err(io::Error::last_os_error()),
    }
}
