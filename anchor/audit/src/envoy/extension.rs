//! Which extension does what to bodies.

use std::sync::{Arc, LazyLock};

use super::node::Node;
use crate::findings::Hit;

/// Where an extension stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Category {
    Http,
    Network,
    Listener,
    Transport,
}

impl Category {
    fn prefix(self) -> &'static str {
        match self {
            Self::Http => "filters.http.",
            Self::Network => "filters.network.",
            Self::Listener => "filters.listener.",
            Self::Transport => "transport_sockets.",
        }
    }
}

/// Category, name, and the code of the finding; `-`: none.
static TABLE: LazyLock<Vec<(Category, &'static str, &'static str)>> = LazyLock::new(|| {
    let mut category = Category::Http;
    let mut table = Vec::new();
    for line in include_str!("../../tables/envoy.txt").lines().filter(|l| !l.starts_with('#')) {
        match line {
            "[http]" => category = Category::Http,
            "[network]" => category = Category::Network,
            "[listener]" => category = Category::Listener,
            "[transport]" => category = Category::Transport,
            _ => {
                let mut words = line.split_whitespace();
                let code = words.next().unwrap_or_default();
                table.extend(words.map(|name| (category, name, code)));
            }
        }
    }
    table
});

/// An extension's name within its category: of its type, or else of its `name`.
pub(super) fn name_of(extension: &Node, category: Category) -> &str {
    let wrapped = extension.get("typed_config");
    // TypedStruct carries the real type in `type_url`.
    let types = [wrapped.get("type_url"), wrapped.get("@type"), extension.get("name")];
    for text in types.into_iter().map(Node::text) {
        if let Some((_, rest)) = text.split_once(category.prefix()) {
            return rest.split('.').next().unwrap_or(rest);
        }
    }
    let name = extension.get("name").text();
    name.strip_prefix("envoy.").unwrap_or(name)
}

/// What an extension in this place means.
pub(super) fn hit(extension: &Node, category: Category, file: &Arc<str>) -> Option<Hit> {
    let name = name_of(extension, category);
    let known = TABLE.iter().find(|(c, n, _)| *c == category && *n == name);
    match known.map_or("UDE002", |(_, _, code)| code) {
        "-" => None,
        code => Some(Hit::new(code, &extension.at(file), display(extension, name))),
    }
}

pub(super) fn display(extension: &Node, name: &str) -> String {
    match extension.get("name").text() {
        "" if name.is_empty() => "extension without a type".to_owned(),
        "" => name.to_owned(),
        full => full.to_owned(),
    }
}
