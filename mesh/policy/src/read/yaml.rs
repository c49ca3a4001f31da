//! YAML and JSON as a tree that remembers where everything stands.

use std::sync::Arc;

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_saphyr::Spanned;

use super::SyntaxError;
use crate::form::Origin;

/// A value and its place (both from 1; 0 where the library does not say).
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Node {
    pub(super) value: Value,
    line: u32,
    col: u32,
}

#[derive(Debug, Clone, PartialEq)]
pub(super) enum Value {
    Null,
    Bool(bool),
    /// As text.
    Number(String),
    Text(String),
    List(Vec<Node>),
    Map(Vec<(Node, Node)>),
}

impl Node {
    /// The member of a map, unless it is null.
    pub(super) fn get(&self, name: &str) -> Option<&Node> {
        self.members().iter().find(|(key, _)| key.text() == name).map(|(_, node)| node).filter(|node| !node.is_null())
    }

    /// Follows members one after the other.
    pub(super) fn path(&self, names: &[&str]) -> Option<&Node> {
        names.iter().try_fold(self, |node, name| node.get(name))
    }

    pub(super) fn is_null(&self) -> bool {
        self.value == Value::Null
    }

    /// A string, or the text of a number; else an empty string.
    pub(super) fn text(&self) -> &str {
        match &self.value {
            Value::Text(text) | Value::Number(text) => text,
            Value::Bool(true) => "true",
            Value::Bool(false) => "false",
            _ => "",
        }
    }

    /// The items of a list; none, if it is none.
    pub(super) fn items(&self) -> &[Node] {
        if let Value::List(items) = &self.value { items } else { &[] }
    }

    pub(super) fn members(&self) -> &[(Node, Node)] {
        if let Value::Map(members) = &self.value { members } else { &[] }
    }

    pub(super) fn at(&self, file: &Arc<str>) -> Origin {
        Origin { file: file.clone(), line: self.line.max(1), col: self.col.max(1) }
    }

    /// This node and everything in it.
    pub(super) fn everything(&self) -> Vec<&Node> {
        let mut all = vec![self];
        let mut next = 0;
        while next < all.len() {
            let node = all[next];
            all.extend(node.items());
            all.extend(node.members().iter().flat_map(|(key, value)| [key, value]));
            next += 1;
        }
        all
    }

    fn shift(&mut self, lines: u32) {
        self.line += lines;
        match &mut self.value {
            Value::List(items) => items.iter_mut().for_each(|item| item.shift(lines)),
            Value::Map(members) => members.iter_mut().for_each(|(key, value)| {
                key.shift(lines);
                value.shift(lines);
            }),
            _ => {}
        }
    }
}

/// The documents of a file. One that is broken does not hide the others.
pub(super) fn documents(file: &Arc<str>, text: &str) -> Vec<Result<Node, SyntaxError>> {
    chunks(text).into_iter().filter_map(|(lines, chunk)| document(file, lines, &chunk)).collect()
}

/// The text of each document and the number of lines before it.
///
/// A line that begins with `---` always ends a document: no scalar may hold one (YAML 1.2.2, section 9.1.2).
fn chunks(text: &str) -> Vec<(u32, String)> {
    let mut chunks = vec![(0, String::new())];
    for (number, line) in (0_u32..).zip(text.split_inclusive('\n')) {
        let marker =
            line.strip_prefix("---").filter(|rest| rest.is_empty() || rest.starts_with([' ', '\t', '\r', '\n']));
        if marker.is_some() {
            chunks.push((number, String::new()));
        }
        if let Some((_, chunk)) = chunks.last_mut() {
            chunk.push_str(line);
        }
    }
    let is_content =
        |line: &str| !matches!(line.trim_start().chars().next(), None | Some('#' | '%')) && line.trim() != "---";
    chunks.retain(|(_, chunk)| chunk.lines().any(is_content));
    chunks
}

fn document(file: &Arc<str>, lines: u32, text: &str) -> Option<Result<Node, SyntaxError>> {
    match serde_saphyr::from_str::<Node>(text) {
        Ok(mut node) => {
            node.shift(lines);
            (!node.is_null()).then_some(Ok(node))
        }
        Err(error) => {
            let (line, col) = error.location().map_or((1, 1), |l| (number(l.line()), number(l.column())));
            let origin = Origin { file: file.clone(), line: line.max(1) + lines, col: col.max(1) };
            let template = text.contains("{{");
            Some(Err(SyntaxError { origin, what: without_place(error.without_snippet().to_string()), template }))
        }
    }
}

/// The library counts lines from the start of the document; the place stands before the message already.
fn without_place(mut message: String) -> String {
    let end = message.rfind(" at line ").filter(|at| {
        message[at + 9..].chars().all(|c| c.is_ascii_digit() || c == ',' || c == ' ' || "column".contains(c))
    });
    if let Some(end) = end {
        message.truncate(end);
    }
    message
}

fn number(n: impl TryInto<u32>) -> u32 {
    n.try_into().unwrap_or(u32::MAX / 2)
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

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a value")
    }

    fn visit_bool<E>(self, v: bool) -> Result<Value, E> {
        Ok(Value::Bool(v))
    }

    fn visit_i64<E>(self, v: i64) -> Result<Value, E> {
        Ok(Value::Number(v.to_string()))
    }

    fn visit_u64<E>(self, v: u64) -> Result<Value, E> {
        Ok(Value::Number(v.to_string()))
    }

    fn visit_f64<E>(self, v: f64) -> Result<Value, E> {
        Ok(Value::Number(v.to_string()))
    }

    fn visit_str<E>(self, v: &str) -> Result<Value, E> {
        Ok(Value::Text(v.to_owned()))
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
