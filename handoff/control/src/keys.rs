//! Certificates for balancers and backends, from an authority of their own.

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair, KeyUsagePurpose};

/// The name that every peer's certificate carries: whoever has one belongs to the installation.
pub const PEER_NAME: &str = "peer.handoff.underdeck.internal";

/// PEM texts. The authority's key is not kept: make all certificates at once.
#[derive(Debug)]
pub struct Keys {
    /// The authority's certificate, for all.
    pub authority: String,
    /// Name, certificate and key of each peer.
    pub peers: Vec<(String, String, String)>,
}

/// Makes an authority and a certificate for each name.
///
/// # Errors
/// If the library for cryptography fails.
pub fn make(names: &[String]) -> Result<Keys, rcgen::Error> {
    let mut params = CertificateParams::new(Vec::new())?;
    params.distinguished_name.push(DnType::CommonName, "underdeck handoff");
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    let authority = CertifiedIssuer::self_signed(params, KeyPair::generate()?)?;
    let mut peers = Vec::new();
    for name in names {
        let mut params = CertificateParams::new(vec![PEER_NAME.to_owned()])?;
        params.distinguished_name.push(DnType::CommonName, name.as_str());
        let key = KeyPair::generate()?;
        let certificate = params.signed_by(&key, &authority)?;
        peers.push((name.clone(), certificate.pem(), key.serialize_pem()));
    }
    Ok(Keys { authority: authority.pem(), peers })
}
