//! What is on the tiers, as the test sees it: without the code under test, by the names of files
//! alone, and by what the test has damaged itself.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// A committed checkpoint in the order of ages. Its name begins with its step; the order is first
/// that of attempts.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Committed {
    attempt: u64,
    pub(crate) step: u64,
    pub(crate) name: String,
}

impl Committed {
    /// From `sSSSSSSSSS-aAAAA-NNNNNNNN`.
    fn parse(name: &str) -> Option<Self> {
        let (step, rest) = name.strip_prefix('s')?.split_once("-a")?;
        let (attempt, _) = rest.split_once('-')?;
        let attempt = attempt.parse().ok()?;
        Some(Self { attempt, step: step.parse().ok()?, name: name.to_owned() })
    }
}

/// The folder of the only run on a tier, if there is one.
fn run_folder(tier: &Path) -> Option<PathBuf> {
    Some(fs::read_dir(tier).ok()?.next()?.unwrap().path())
}

/// What a tier has committed.
pub(crate) fn committed(tier: &Path) -> BTreeSet<Committed> {
    let Some(folder) = run_folder(tier) else { return BTreeSet::new() };
    let Ok(entries) = fs::read_dir(folder) else { return BTreeSet::new() };
    let has_manifest = |path: &PathBuf| path.join("MANIFEST.json").exists();
    let paths = entries.map(|entry| entry.unwrap().path()).filter(has_manifest);
    paths.filter_map(|path| Committed::parse(path.file_name()?.to_str()?)).collect()
}

/// Files of a committed checkpoint.
pub(crate) fn files(tier: &Path, name: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![run_folder(tier).unwrap().join(name)];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() { &mut folders } else { &mut found }.push(path);
        }
    }
    found.sort();
    found
}
