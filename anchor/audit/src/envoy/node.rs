//! YAML and JSON as a tree that remembers where everything stands.

use std::fmt;
use std::sync::Arc;

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_saphyr::Spanned;

use crate::error::AuditError;
use crate::position::Position;

/// A value and its place.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Node {
    value: Value,
    line: u32,
    col: u32,
}

#[derive(Debug, Clone, PartialEq)]
enum Value {
    Null,
    /// Strings, numbers and booleans alike, as text.
    Scalar(String),
    List(Vec<Node>),
    Map(Vec<(String, Node)>),
}

static NULL: Node = Node { value: Value::Null, line: 1, col: 1 };

impl Node {
    /// Parses one document.
    pub(super) fn parse(file: &Arc<str>, text: &str) -> Result<Self, AuditError> {
        serde_saphyr::from_str(text).map_err(|error| {
            let (line, col) = error.location().map_or((1, 1), |l| (number(l.line()), number(l.column())));
            let what = error.without_snippet().to_string();
            AuditError::Syntax { file: file.to_string(), line, col, what }
        })
    }

    /// The member of a map; a null where there is none. Both spellings of protobuf's JSON names are taken.
    pub(super) fn get(&self, name: &str) -> &Node {
        let members = self.members();
        let found = members.iter().find(|(key, _)| key == name);
        found.or_else(|| members.iter().find(|(key, _)| *key == camel(name))).map_or(&NULL, |(_, node)| node)
    }

    /// Follows members one after the other.
    pub(super) fn path(&self, names: &[&str]) -> &Node {
        names.iter().fold(self, |node, name| node.get(name))
    }

    pub(super) fn exists(&self) -> bool {
        self.value != Value::Null
    }

    pub(super) fn text(&self) -> &str {
        if let Value::Scalar(text) = &self.value { text } else { "" }
    }

    pub(super) fn is_true(&self) -> bool {
        self.text() == "true"
    }

    /// The items of a list; none, if it is none.
    pub(super) fn items(&self) -> &[Node] {
        if let Value::List(items) = &self.value { items } else { &[] }
    }

    pub(super) fn members(&self) -> &[(String, Node)] {
        if let Value::Map(members) = &self.value { members } else { &[] }
    }

    pub(super) fn at(&self, file: &Arc<str>) -> Position {
        Position { file: file.clone(), line: self.line.max(1), col: self.col.max(1) }
    }

    /// This node and everything in it.
    pub(super) fn everything(&self) -> Vec<&Node> {
        let mut all = vec![self];
        let mut next = 0;
        while next < all.len() {
            let node = all[next];
            all.extend(node.items());
            all.extend(node.members().iter().map(|(_, n)| n));
            next += 1;
        }
        all
    }
}

/// `static_resources` as `staticResources`.
fn camel(name: &str) -> String {
    let mut upper = false;
    let mut out = String::new();
    for c in name.chars() {
        match c {
            '_' => upper = true,
            c if upper => {
                out.push(c.to_ascii_uppercase());
                upper = false;
            }
            c => out.push(c),
        }
    }
    out
}

fn number(n: impl TryInto<u32>) -> u32 {
    n.try_into().unwrap_or(u32::MAX)
}

impl<'de> Deserialize<'de> for Node {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let spanned = Spanned::<Value>::deserialize(deserializer)?;
        let at = spanned.referenced;
        Ok(Self { value: spanned.value, line: number(at.line()), col: number(at.column()) })
    }
}

impl<'de> Deserialize<'de> for Value {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ValueVisitor)
    }
}

struct ValueVisitor;

impl<'de> Visitor<'de> for ValueVisitor {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_bool<E>(self, v: bool) -> Result<Value, E> {
        Ok(Value::Scalar(v.to_string()))
    }

    fn visit_i64<E>(self, v: i64) -> Result<Value, E> {
        Ok(Value::Scalar(v.to_string()))
    }

    fn visit_u64<E>(self, v: u64) -> Result<Value, E> {
        Ok(Value::Scalar(v.to_string()))
    }

    fn visit_f64<E>(self, v: f64) -> Result<Value, E> {
        Ok(Value::Scalar(v.to_string()))
    }

    fn visit_str<E>(self, v: &str) -> Result<Value, E> {
        Ok(Value::Scalar(v.to_owned()))
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_none<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        Value::deserialize(deserializer)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut access: A) -> Result<Value, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = access.next_element()? {
            items.push(item);
        }
        Ok(Value::List(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Value, A::Error> {
        let mut members = Vec::new();
        while let Some(member) = access.next_entry()? {
            members.push(member);
        }
        Ok(Value::Map(members))
    }
}
