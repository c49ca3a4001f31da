//! GRPCRoute: each entry of `rules` is one rule, and Envoy's, because gRPC is HTTP/2.

use crate::form::{Reason, RuleKind};
use crate::read::set::{Document, Set};
use crate::read::yaml::Node;

pub(in crate::read) fn grpc_route(set: &mut Set, document: &Document<'_>) {
    let rules = document.node.path(&["spec", "rules"]).map_or(&[][..], Node::items);
    for (index, node) in rules.iter().enumerate() {
        let mut notes = document.notes();
        notes.add(Reason::Http2, node, "gRPC");
        let title = format!("{} rules[{index}]", document.title());
        set.rule(RuleKind::Route, title, document.at(node), notes);
    }
}
