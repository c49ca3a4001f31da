//! A certificate for loopback and a client that trusts it.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::pki_types::CertificateDer;
use rustls::{ClientConfig, RootCertStore};

use crate::LabError;
use crate::error::While;

/// A self-signed certificate on disk.
#[derive(Clone, Debug)]
pub struct Certificate {
    /// The certificate, PEM.
    pub cert: PathBuf,
    /// Its key, PEM.
    pub key: PathBuf,
    /// The certificate and the key in one file, as HAProxy wants them.
    pub both: PathBuf,
    der: CertificateDer<'static>,
}

impl Certificate {
    /// Makes one for `localhost` in `dir`.
    pub fn make(dir: &Path) -> Result<Self, LabError> {
        let made = rcgen::generate_simple_self_signed(["localhost".to_owned(), "127.0.0.1".to_owned()])
            .map_err(|error| LabError::Tls(error.to_string()))?;
        let (cert, key, both) = (dir.join("cert.pem"), dir.join("key.pem"), dir.join("both.pem"));
        let write = |path: &Path, text: &str| std::fs::write(path, text).doing(|| format!("write {}", path.display()));
        let (cert_pem, key_pem) = (made.cert.pem(), made.signing_key.serialize_pem());
        write(&cert, &cert_pem)?;
        write(&key, &key_pem)?;
        write(&both, &format!("{cert_pem}{key_pem}"))?;
        Ok(Self { cert, key, both, der: made.cert.der().clone() })
    }

    /// A client configuration that trusts this certificate only.
    pub fn client(&self) -> Result<Arc<ClientConfig>, LabError> {
        let mut roots = RootCertStore::empty();
        roots.add(self.der.clone()).map_err(|error| LabError::Tls(error.to_string()))?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| LabError::Tls(error.to_string()))?
            .with_root_certificates(roots)
            .with_no_client_auth();
        Ok(Arc::new(config))
    }
}
