//! All checks by name, and which of them have to pass.

use std::collections::BTreeSet;

use launch::doctor::{About, HOST_CHECKS};

use super::{alike, clock, gpus, links, object_store, tiers, transports};

/// All checks, in the order of the table.
pub(super) fn catalog() -> Vec<&'static About> {
    let of_hosts = HOST_CHECKS.iter().map(|check| check.about());
    let others = [
        &gpus::GPUS,
        &gpus::ECC,
        &gpus::XID,
        &gpus::CLOCKS,
        &tiers::NVME,
        &tiers::SHARED,
        &object_store::OBJECT_STORE,
        &alike::VERSIONS,
        &alike::NODES,
        &clock::CLOCK,
        &links::LINKS,
        &transports::TRANSPORTS,
        &transports::GDR,
    ];
    of_hosts.chain(others).collect()
}

/// Checks that have to pass: warnings and skips of them are failures.
#[derive(Debug, Clone, Default)]
pub(crate) struct Required(BTreeSet<String>);

impl Required {
    /// Of these names.
    ///
    /// # Errors
    /// A sentence about a name that no check has.
    pub(crate) fn of(names: &[String]) -> Result<Self, String> {
        let known: Vec<_> = catalog().iter().map(|about| about.name).collect();
        match names.iter().find(|name| !known.contains(&name.as_str())) {
            Some(name) => Err(format!("--require {name}: expected one of: {}", known.join(", "))),
            None => Ok(Self(names.iter().cloned().collect())),
        }
    }

    pub(super) fn contains(&self, name: &str) -> bool {
        self.0.contains(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_unknown_ones_are_refused() {
        let names: Vec<_> = catalog().iter().map(|about| about.name.to_owned()).collect();
        assert_eq!(names.iter().collect::<BTreeSet<_>>().len(), names.len());
        let required = Required::of(&names).unwrap();
        assert!(required.contains("gdr") && required.contains("memlock"));
        let error = Required::of(&["grd".to_owned()]).unwrap_err();
        assert!(error.starts_with("--require grd: expected one of: shm, memlock,"), "{error}");
    }
}
