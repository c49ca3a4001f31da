//! `abi/underdeck_mesh.h`, mirrored.
#![allow(missing_docs, non_camel_case_types, non_upper_case_globals, non_snake_case, reason = "as in the header")]
#![allow(clippy::all, clippy::undocumented_unsafe_blocks, reason = "generated")]

include!(concat!(env!("OUT_DIR"), "/underdeck_mesh.rs"));

impl ud_address {
    /// An IPv4-mapped IPv6 address is the IPv4 address.
    #[must_use]
    pub fn new(address: std::net::IpAddr, port: u16) -> Self {
        let mut ip = [0; 4];
        let octets = match address {
            std::net::IpAddr::V4(address) => address.to_ipv6_mapped(),
            std::net::IpAddr::V6(address) => address,
        }
        .octets();
        for (word, bytes) in ip.iter_mut().zip(octets.chunks_exact(4)) {
            *word = u32::from_ne_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        }
        Self { ip, port: port.into() }
    }

    /// Address and port.
    #[must_use]
    pub fn parts(&self) -> (std::net::IpAddr, u16) {
        let mut octets = [0; 16];
        for (bytes, word) in octets.chunks_exact_mut(4).zip(self.ip) {
            bytes.copy_from_slice(&word.to_ne_bytes());
        }
        (std::net::IpAddr::from(octets).to_canonical(), u16::try_from(self.port).unwrap_or(0))
    }
}
