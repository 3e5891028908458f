//! Survey of the tiers, as the test sees them: without the code under test, by the names of files
//! alone, and by what the test has damaged itself.

use std::collections::BTreeSet;
use std::ffi::OsString;
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
    /// Parses `sSSSSSSSSS-aAAAA-NNNNNNNN`.
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

/// Folders of checkpoints on a tier, committed or not.
fn folders(tier: &Path) -> Vec<PathBuf> {
    let Some(Ok(entries)) = run_folder(tier).map(fs::read_dir) else { return Vec::new() };
    let paths = entries.map(|entry| entry.unwrap().path());
    paths.filter(|path| checkpoint(path).is_some()).collect()
}

fn checkpoint(folder: &Path) -> Option<Committed> {
    Committed::parse(folder.file_name()?.to_str()?)
}

/// Returns whether a checkpoint counts: a removal that was cut short leaves both files.
fn has_manifest(folder: &Path) -> bool {
    folder.join("MANIFEST.json").exists() && !folder.join("MANIFEST.deleted").exists()
}

/// Returns the checkpoints that a tier has committed.
pub(crate) fn committed(tier: &Path) -> BTreeSet<Committed> {
    let committed = folders(tier).into_iter().filter(|folder| has_manifest(folder));
    committed.filter_map(|folder| checkpoint(&folder)).collect()
}

/// Names of the indexes of a checkpoint: those of ranks whose files are all there.
pub(crate) fn indexes(tier: &Path, name: &str) -> BTreeSet<OsString> {
    let names = files(tier, name).into_iter().filter_map(|path| path.file_name().map(Into::into));
    names.filter(|name: &OsString| name.to_str().unwrap().ends_with(".idx.json")).collect()
}

/// Files of checkpoints that a tier has not committed.
pub(crate) fn uncommitted_files(tier: &Path) -> Vec<PathBuf> {
    let others = folders(tier).into_iter().filter(|folder| !has_manifest(folder));
    others.flat_map(files_in).collect()
}

/// Files of a committed checkpoint.
pub(crate) fn files(tier: &Path, name: &str) -> Vec<PathBuf> {
    files_in(run_folder(tier).unwrap().join(name))
}

fn files_in(folder: PathBuf) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![folder];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() { &mut folders } else { &mut found }.push(path);
        }
    }
    found.sort();
    found
}
