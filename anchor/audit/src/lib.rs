//! Reads proxy configurations and says where payload stays untouched.
