//! Certificates for balancers and backends, from an authority of their own.

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair, KeyUsagePurpose};

/// What a peer is. Its certificate says so, and the other side checks it: a backend cannot pose as a balancer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Hands connections out.
    Balancer,
    /// Takes them.
    Backend,
}

impl Role {
    /// A word.
    pub fn name(self) -> &'static str {
        match self {
            Role::Balancer => "balancer",
            Role::Backend => "backend",
        }
    }

    /// The name (RFC 5280, section 4.2.1.6) in the certificates of all peers of this role.
    pub fn certificate_name(self) -> &'static str {
        match self {
            Role::Balancer => "balancer.handoff.underdeck.internal",
            Role::Backend => "backend.handoff.underdeck.internal",
        }
    }

    /// Whom this one talks to.
    pub fn other(self) -> Role {
        match self {
            Role::Balancer => Role::Backend,
            Role::Backend => Role::Balancer,
        }
    }
}

/// PEM texts. The authority's key is not kept: make all certificates at once.
#[derive(Debug)]
pub struct Keys {
    /// The authority's certificate, for all.
    pub authority: String,
    /// Name, certificate and key of each peer.
    pub peers: Vec<(String, String, String)>,
}

/// Why no certificates were made.
#[derive(Debug, thiserror::Error)]
pub enum KeysError {
    /// It becomes a file's name.
    #[error("{0:?} cannot be a peer's name: use letters, digits, `-`, `_` and `.`, not `authority`, each name once")]
    Name(String),
    /// The library for cryptography.
    #[error(transparent)]
    Crypto(#[from] rcgen::Error),
}

/// Makes an authority and a certificate for each peer.
///
/// # Errors
/// [`KeysError`]: for a name that cannot be a file's, or if the library for cryptography fails.
pub fn make(wanted: &[(String, Role)]) -> Result<Keys, KeysError> {
    for (at, (name, _)) in wanted.iter().enumerate() {
        let plain = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte));
        let again = wanted[..at].iter().any(|(other, _)| other == name);
        if !plain || again || name.is_empty() || name.starts_with('.') || name == "authority" {
            return Err(KeysError::Name(name.clone()));
        }
    }
    let mut params = CertificateParams::new(Vec::new())?;
    params.distinguished_name.push(DnType::CommonName, "underdeck handoff");
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    let authority = CertifiedIssuer::self_signed(params, KeyPair::generate()?)?;
    let mut peers = Vec::new();
    for (name, role) in wanted {
        let mut params = CertificateParams::new(vec![role.certificate_name().to_owned()])?;
        params.distinguished_name.push(DnType::CommonName, name.as_str());
        let key = KeyPair::generate()?;
        let certificate = params.signed_by(&key, &authority)?;
        peers.push((name.clone(), certificate.pem(), key.serialize_pem()));
    }
    Ok(Keys { authority: authority.pem(), peers })
}
