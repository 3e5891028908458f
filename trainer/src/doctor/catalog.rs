//! Catalog of all checks by name, and the selection of required checks.

use std::collections::BTreeSet;

use launch::doctor::{CheckDesc, HOST_CHECKS};

use super::{alike, clock, gpu_health, gpus, links, object_store, tiers, transports, xid};

/// Returns all checks, in the order of the table.
pub(super) fn catalog() -> Vec<&'static CheckDesc> {
    let of_hosts = HOST_CHECKS.iter().map(|check| check.desc());
    let others = [
        &gpus::GPUS,
        &gpu_health::ECC,
        &xid::XID,
        &gpu_health::CLOCKS,
        &gpu_health::MEMORY,
        &gpu_health::PCIE,
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

/// Checks that must pass: their warnings and skips are failures.
#[derive(Debug, Clone, Default)]
pub struct Required(BTreeSet<String>);

impl Required {
    /// Requires the checks of these names.
    ///
    /// # Errors
    /// A sentence about a name that no check has.
    pub fn of(names: &[String]) -> Result<Self, String> {
        let known: Vec<_> = catalog().iter().map(|desc| desc.name).collect();
        match names.iter().find(|name| !known.contains(&name.as_str())) {
            Some(name) => Err(format!("{name}: expected one of: {}", known.join(", "))),
            None => Ok(Self(names.iter().cloned().collect())),
        }
    }

    pub(super) fn contains(&self, name: &str) -> bool {
        self.0.contains(name)
    }
}

#[cfg(test)]
mod tests {
    use std::fmt::Write;
    use std::path::Path;

    use super::*;

    /// Returns the table of docs/doctor.md.
    fn documented() -> String {
        let mut text =
            "| check | who | looks at | warns and fails | what to do | its fault is planted by |\n\
             | --- | --- | --- | --- | --- | --- |\n"
                .to_owned();
        for desc in catalog() {
            let CheckDesc { name, scope, inspects, thresholds, remedy, fault, .. } = desc;
            let who = scope.name();
            let (file, test) = fault.split_once(": ").expect("a file and a test");
            writeln!(
                text,
                "| `{name}` | {who} | {inspects} | {thresholds} | {remedy} | `{test}` in `{file}` |"
            )
            .unwrap();
        }
        text
    }

    /// Compares the documentation with the catalog. To rewrite it:
    /// `YARDSTICK_UPDATE_GOLDEN=1 cargo test --profile testing --workspace doctor`.
    #[test]
    fn the_documentation_has_every_check() {
        const START: &str = "<!-- The table is generated: see trainer/src/doctor/catalog.rs -->\n";
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/doctor.md");
        let page = std::fs::read_to_string(&path).unwrap();
        let (before, rest) = page.split_once(START).unwrap();
        let (_, after) = rest.split_once("\n\n").unwrap();
        let expected = format!("{before}{START}{}\n{after}", documented());
        if std::env::var_os("YARDSTICK_UPDATE_GOLDEN").is_some() {
            std::fs::write(&path, &expected).unwrap();
            return;
        }
        assert_eq!(page, expected, "the checks have changed");
    }

    /// Returns the test with this name in a file, up to its closing brace.
    fn test_of<'a>(text: &'a str, name: &str) -> Option<&'a str> {
        let start = text.find(&format!("#[test]\n    fn {name}()"));
        let start = start.or_else(|| text.find(&format!("#[test]\nfn {name}()")))?;
        let line = text[start..].lines().nth(1)?;
        let indent = &line[..line.len() - line.trim_start().len()];
        let end = text[start..].find(&format!("\n{indent}}}\n"))?;
        Some(&text[start..start + end])
    }

    /// Returns a type name, as in `RdmaPorts` for `rdma_ports`.
    fn type_name(check: &str) -> String {
        let word = |word: &str| word[..1].to_uppercase() + &word[1..];
        check.split('_').map(word).collect()
    }

    #[test]
    fn every_check_has_a_test_that_plants_its_fault() {
        for desc in catalog() {
            let (file, test) = desc.fault.split_once(": ").unwrap();
            let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(file);
            let text = std::fs::read_to_string(&path).unwrap_or_default();
            let found = test_of(&text, test);
            let found = found.unwrap_or_else(|| panic!("{}: no {}", desc.name, desc.fault));
            let name = desc.name;
            let names = [format!("\"{name}\""), type_name(name), name.to_uppercase() + ".name"];
            let is_named = names.iter().any(|name| found.contains(name));
            // A file of one check does not say which check it tests.
            let is_of_file = file.ends_with(&format!("/{name}.rs"));
            assert!(is_named || is_of_file, "{}: it does not look at {name}", desc.fault);
        }
    }

    #[test]
    fn names_are_unique_and_unknown_ones_are_refused() {
        let names: Vec<_> = catalog().iter().map(|desc| desc.name.to_owned()).collect();
        assert_eq!(names.iter().collect::<BTreeSet<_>>().len(), names.len());
        let required = Required::of(&names).unwrap();
        assert!(required.contains("gdr") && required.contains("memlock"));
        let error = Required::of(&["grd".to_owned()]).unwrap_err();
        assert!(error.starts_with("grd: expected one of: shm, memlock,"), "{error}");
    }
}
