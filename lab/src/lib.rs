//! Real proxies, backends, clients and load generators as fixtures; for tests and bench only.
//!
//! In the order of the path of the data: [`client`] -> [`proxy`] -> [`backend`] (misbehaves on demand) or [`files`]
//! (nginx with sendfile). For measuring: [`load`] -> [`proxy`] or [`relay`] -> [`origin`], each in a [`place`], maybe with a
//! [`network`] between them. For the handoff engine: [`download`] -> [`fleet`], at a [`site`]. For the mesh engine: the five
//! services of [`timeline`] in a [`group`]. [`twin`] sends one exchange through two proxies and says where they differ;
//! [`engine`] reads the counters of the library in a proxy.

pub mod backend;
pub mod behaviour;
pub mod client;
pub mod content;
pub mod corrupt;
pub mod download;
pub mod engine;
mod error;
pub mod files;
pub mod fleet;
pub mod group;
pub mod http;
pub mod load;
pub mod loss;
pub mod network;
pub mod origin;
pub mod place;
pub mod ports;
pub mod proc;
pub mod process;
pub mod proxy;
pub mod relay;
pub mod site;
pub mod timeline;
pub mod tls;
pub mod tools;
pub mod twin;
pub mod wait;

pub use error::LabError;
