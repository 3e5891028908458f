//! Rules about the project as a whole: its map, its dependencies, its skipped tests.

use std::collections::BTreeSet;

use crate::files::File;
use crate::functions;

const ARCHITECTURE: &str = "ARCHITECTURE.md";
const SKIPS: &str = "tests/skips.toml";

pub(crate) fn violations(files: &[File]) -> Vec<String> {
    let mut found = architecture(files);
    found.extend(files.iter().flat_map(dependency_reasons));
    found.extend(files.iter().filter_map(|file| functions::of(file).err()));
    found.extend(skips(files));
    found
}

fn named<'a>(files: &'a [File], path: &str) -> Option<&'a File> {
    files.iter().find(|file| file.path == path)
}

/// The map has every top-level folder (crates are among them).
fn architecture(files: &[File]) -> Vec<String> {
    let Some(map) = named(files, ARCHITECTURE) else {
        return vec![format!("{ARCHITECTURE}:1: is missing")];
    };
    let folders: BTreeSet<_> =
        files.iter().filter_map(|file| Some(file.path.split_once('/')?.0)).collect();
    folders
        .into_iter()
        .filter(|folder| !names_folder(&map.text, folder))
        .map(|folder| map.at(1, format!("does not name the folder `{folder}/`")))
        .collect()
}

fn names_folder(text: &str, folder: &str) -> bool {
    let is_word = |c: char| c.is_alphanumeric() || "_-./".contains(c);
    text.match_indices(&format!("{folder}/"))
        .any(|(start, _)| !text[..start].chars().next_back().is_some_and(is_word))
}

/// Every dependency of the workspace has a comment on its line that says why it is there.
fn dependency_reasons(file: &File) -> Vec<String> {
    if file.path != "Cargo.toml" {
        return Vec::new();
    }
    let mut section = "";
    let mut found = Vec::new();
    for (i, line) in file.text.lines().enumerate() {
        if line.starts_with('[') {
            section = line;
        }
        let is_dependency = section == "[workspace.dependencies]"
            && line.contains(" = ")
            && !line.trim_start().starts_with('#')
            && !line.contains("path = ");
        if is_dependency && !line.contains(" # ") {
            let name = line.split_whitespace().next().unwrap_or("");
            found.push(file.at(i + 1, format!("{name} has no reason after a #")));
        }
    }
    found
}

/// Ignored tests are listed with a reason, and the list has no stale entry.
fn skips(files: &[File]) -> Vec<String> {
    let listed = match named(files, SKIPS).map(listed_skips) {
        Some(Ok(listed)) => listed,
        Some(Err(violation)) => return vec![violation],
        None => return vec![format!("{SKIPS}:1: is missing")],
    };
    let mut found = Vec::new();
    let mut ignored = BTreeSet::new();
    for file in files.iter().filter(|file| file.extension() == "rs") {
        let functions = functions::of(file).unwrap_or_default(); // the error is its own violation
        for function in functions.into_iter().filter(|function| function.is_ignored) {
            if !listed.contains(&function.name) {
                let text = format!("#[ignore] on {}, not in {SKIPS}", function.name);
                found.push(file.at(function.line, text));
            }
            ignored.insert(function.name);
        }
    }
    for name in listed.difference(&ignored) {
        found.push(format!("{SKIPS}:1: no #[ignore] on a test {name}"));
    }
    found
}

/// Last parts of the names of the listed tests.
fn listed_skips(file: &File) -> Result<BTreeSet<String>, String> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_incomplete_map_is_found() {
        let folder = File::sample("models/src/lib.rs", "");
        let map = |text: &str| File::sample(ARCHITECTURE, text);
        assert_eq!(architecture(&[File::sample("a.md", "")]).len(), 1);
        let missing = [map("see other_models/ and x/models/\n"), folder];
        assert_eq!(architecture(&missing).len(), 1);
        let folder = File::sample("models/src/lib.rs", "");
        assert_eq!(architecture(&[map("`models/` computes\n"), folder]).len(), 0);
    }

    #[test]
    fn dependencies_without_a_reason_are_found() {
        let text = "[workspace.dependencies]\n# The house.\nhouse = { path = \"h\" }\n\
                    good = \"1\" # errors\nbad = \"1\"\n\n[profile.release]\ndebug = \"x\"\n";
        let found = dependency_reasons(&File::sample("Cargo.toml", text));
        assert_eq!(found, ["Cargo.toml:5: bad has no reason after a #"]);
        assert_eq!(dependency_reasons(&File::sample("a/Cargo.toml", text)).len(), 0);
    }

    #[test]
    fn skips_without_entry_reason_or_test_are_found() {
        let ignored = "#[test]\n#[ignore = \"needs a GPU\"]\nfn slow() {}\n#[test]\nfn b() {}\n";
        let check = |list: &str| skips(&[File::sample("a.rs", ignored), File::sample(SKIPS, list)]);
        let entry = "[[skip]]\ntest = \"tests::slow\"\nreason = \"needs a GPU\"\n";
        assert_eq!(check(entry).len(), 0);
        assert_eq!(check("").len(), 1, "not listed");
        assert_eq!(check("[[skip]]\ntest = \"slow\"\n").len(), 1, "no reason");
        assert_eq!(check("skip = [").len(), 1, "not TOML");
        let stale = entry.replace("slow", "gone");
        assert_eq!(check(&format!("{entry}{stale}")).len(), 1, "stale entry");
        assert_eq!(skips(&[]).len(), 1, "no list");
    }
}
