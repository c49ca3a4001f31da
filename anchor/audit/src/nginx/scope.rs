//! Blocks within blocks, and which value of a directive is in effect in the innermost one.

use super::tree::Directive;

/// One block and what is around it.
#[derive(Clone, Copy)]
pub(super) struct Scope<'a> {
    parent: Option<&'a Scope<'a>>,
    own: &'a [Directive],
}

impl<'a> Scope<'a> {
    pub(super) fn root(own: &'a [Directive]) -> Self {
        Self { parent: None, own }
    }

    pub(super) fn inside(&'a self, own: &'a [Directive]) -> Self {
        Self { parent: Some(self), own }
    }

    /// The directives of this name in effect: those of the innermost block that has any. nginx inherits a list of
    /// values (error_page, access_log, sub_filter) only if the inner block has none of them.
    pub(super) fn all(&self, name: &str) -> Vec<&'a Directive> {
        let own: Vec<_> = self.own(name).collect();
        match self.parent {
            Some(parent) if own.is_empty() => parent.all(name),
            _ => own,
        }
    }

    /// The directive of this name in effect.
    pub(super) fn get(&self, name: &str) -> Option<&'a Directive> {
        self.all(name).last().copied()
    }

    /// The directive in effect, if its first argument is not `off`.
    pub(super) fn get_unless_off(&self, name: &str) -> Option<&'a Directive> {
        self.get(name).filter(|d| d.arg(0) != "off")
    }

    /// Directives of this name in this very block.
    pub(super) fn own(&self, name: &str) -> impl Iterator<Item = &'a Directive> + use<'a, '_> {
        let name = name.to_owned();
        self.own.iter().filter(move |d| d.name == name)
    }

    /// Every directive in this block and around it, the inner ones first.
    pub(super) fn every(&self) -> Vec<&'a Directive> {
        let mut all: Vec<_> = self.own.iter().collect();
        if let Some(parent) = self.parent {
            all.extend(parent.every());
        }
        all
    }
}
