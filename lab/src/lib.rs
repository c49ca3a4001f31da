//! Test hosts, real proxies and clients as fixtures; tests and bench only.
