//! Rule about skipped tests: each `#[ignore]` is listed with a reason, and the list has no stale
//! entry.

use std::collections::BTreeSet;

use syn::visit::{self, Visit};

use crate::files::File;

const SKIPS: &str = "tests/skips.toml";

pub(crate) fn violations(files: &[File]) -> Vec<String> {
    let Some(list) = files.iter().find(|file| file.path == SKIPS) else {
        return vec![format!("{SKIPS}:1: is missing")];
    };
    let listed = match listed(list) {
        Ok(listed) => listed,
        Err(violation) => return vec![violation],
    };
    let mut found = Vec::new();
    let mut all = BTreeSet::new();
    let has_some = |file: &&File| file.extension() == "rs" && file.text.contains("#[ignore");
    for file in files.iter().filter(has_some) {
        for Ignored { name, line } in ignored(file) {
            if !listed.contains(&name) {
                found.push(file.at(line, format!("#[ignore] on {name}, not in {SKIPS}")));
            }
            all.insert(name);
        }
    }
    let stale = listed.difference(&all);
    found.extend(stale.map(|name| format!("{SKIPS}:1: no #[ignore] on a test {name}")));
    found
}

/// Test with `#[ignore]`.
struct Ignored {
    name: String,
    /// Line of its `fn`, counted from 1.
    line: usize,
}

#[derive(Default)]
struct Collector(Vec<Ignored>);

impl<'ast> Visit<'ast> for Collector {
    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        if item.attrs.iter().any(|attribute| attribute.path().is_ident("ignore")) {
            let line = item.sig.fn_token.span.start().line;
            self.0.push(Ignored { name: item.sig.ident.to_string(), line });
        }
        visit::visit_item_fn(self, item);
    }
}

fn ignored(file: &File) -> Vec<Ignored> {
    let mut collector = Collector::default();
    if let Some(parsed) = file.parse() {
        collector.visit_file(&parsed);
    }
    collector.0
}

/// Last parts of the names of the listed tests.
fn listed(file: &File) -> Result<BTreeSet<String>, String> {
    let table: toml::Table = file.text.parse().map_err(|error| file.at(1, error))?;
    let entries = table.get("skip").and_then(toml::Value::as_array).cloned().unwrap_or_default();
    let mut names = BTreeSet::new();
    for entry in entries {
        let text = |key| entry.get(key).and_then(toml::Value::as_str).unwrap_or("").trim();
        let test = text("test");
        let reason = text("reason");
        if test.is_empty() || reason.is_empty() {
            return Err(file.at(1, format!("an entry lacks test or reason: {entry}")));
        }
        names.insert(test.rsplit("::").next().unwrap_or(test).to_owned());
    }
    Ok(names)
}

#[test]
fn skips_without_entry_reason_or_test_are_found() {
    let ignored = "#[test]\n#[ignore = \"needs a GPU\"]\nfn slow() {}\n#[test]\nfn b() {}\n";
    let check =
        |list: &str| violations(&[File::sample("a.rs", ignored), File::sample(SKIPS, list)]);
    let entry = "[[skip]]\ntest = \"tests::slow\"\nreason = \"needs a GPU\"\n";
    assert_eq!(check(entry), [""; 0]);
    assert_eq!(check(""), ["a.rs:3: #[ignore] on slow, not in tests/skips.toml"]);
    assert_eq!(check("[[skip]]\ntest = \"slow\"\n").len(), 1, "no reason");
    assert_eq!(check("skip = [").len(), 1, "not TOML");
    let stale = entry.replace("slow", "gone");
    assert_eq!(check(&format!("{entry}{stale}")).len(), 1, "stale entry");
    assert_eq!(violations(&[]).len(), 1, "no list");
}
