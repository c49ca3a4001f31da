//! Edits of headers, in Envoy's order.

use crate::form::{HeaderEditMode, HeaderEdits};

/// Applies edits: first what is removed, then what is set, then what is added. Whether a header is there is asked
/// after the removals and before anything is set.
pub fn apply(headers: &mut Vec<(String, String)>, edits: &HeaderEdits) {
    headers.retain(|(name, _)| !edits.remove.contains(name));
    let is_there: Vec<bool> = edits.add.iter().map(|edit| headers.iter().any(|(name, _)| *name == edit.name)).collect();
    let (mut set, mut add) = (Vec::new(), Vec::new());
    for (edit, is_there) in edits.add.iter().zip(is_there) {
        match edit.mode {
            HeaderEditMode::Append => add.push(edit),
            HeaderEditMode::AddIfAbsent if !is_there => add.push(edit),
            HeaderEditMode::Set => set.push(edit),
            HeaderEditMode::SetIfPresent if is_there => set.push(edit),
            HeaderEditMode::AddIfAbsent | HeaderEditMode::SetIfPresent => {}
        }
    }
    for edit in set {
        headers.retain(|(name, _)| *name != edit.name);
        headers.push((edit.name.clone(), edit.value.clone()));
    }
    headers.extend(add.into_iter().map(|edit| (edit.name.clone(), edit.value.clone())));
}
