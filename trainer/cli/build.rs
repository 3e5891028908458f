//! The commit and the features of this build, for `yardstick --version` and for records.
//!
//! It runs again, and the crate is compiled again, when HEAD moves. It also runs when a source file
//! of the workspace changes, but then the crate is compiled again anyway.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Overrides what git says: for images, which are built from a source archive.
const COMMIT_VARIABLE: &str = "YARDSTICK_COMMIT";

fn main() {
    let sources = sources(Path::new("../.."));
    for path in &sources {
        rerun_if_changed(path);
    }
    println!("cargo::rerun-if-env-changed={COMMIT_VARIABLE}");
    let given = std::env::var(COMMIT_VARIABLE).unwrap_or_default();
    let commit = match given.trim() {
        "" => from_git(&sources),
        given => Some(given.to_owned()),
    };
    let commit = commit.unwrap_or_default(); // empty: unknown
    let shown = if commit.is_empty() { "unknown" } else { &commit };
    println!("cargo::rustc-env={COMMIT_VARIABLE}={commit}");
    println!(
        "cargo::rustc-env=YARDSTICK_VERSION={} (commit {shown}, features: {})",
        env!("CARGO_PKG_VERSION"),
        features()
    );
}

/// Everything that the binary is made of: manifests, build scripts and source folders.
fn sources(workspace: &Path) -> Vec<PathBuf> {
    let mut paths = vec![workspace.join("Cargo.toml"), workspace.join("Cargo.lock")];
    let entries = std::fs::read_dir(workspace).into_iter().flatten().flatten();
    let mut crates: Vec<_> = entries.map(|entry| entry.path()).collect();
    crates.push(workspace.join("trainer/cli"));
    crates.retain(|path| path.join("Cargo.toml").is_file());
    crates.sort();
    for path in crates {
        paths.extend(["Cargo.toml", "build.rs", "src"].map(|name| path.join(name)));
    }
    paths.retain(|path| path.exists());
    paths
}

/// A path that does not exist would make the script run every time.
fn rerun_if_changed(path: &Path) {
    if path.exists() {
        println!("cargo::rerun-if-changed={}", path.display());
    }
}

/// The commit of HEAD, with `-dirty` if one of `sources` differs from it. `None` without git, and
/// where the sources lie in a folder that git tracks for another project.
fn from_git(sources: &[PathBuf]) -> Option<String> {
    let top = git(&["rev-parse", "--show-toplevel"])?;
    if Path::new(&top).canonicalize().ok()? != Path::new("../..").canonicalize().ok()? {
        return None;
    }
    for file in ["HEAD", "logs/HEAD"] {
        rerun_if_changed(Path::new(&git(&["rev-parse", "--git-path", file])?));
    }
    let commit = git(&["rev-parse", "--short=12", "HEAD"])?;
    let mut status = vec!["--no-optional-locks", "status", "--porcelain", "--"];
    status.extend(sources.iter().filter_map(|path| path.to_str()));
    let is_dirty = !git(&status)?.is_empty();
    Some(if is_dirty { format!("{commit}-dirty") } else { commit })
}

/// What git prints; `None` if it fails or is not installed.
fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").args(arguments).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| text.trim().to_owned())
}

/// The features of this build, separated by commas.
fn features() -> String {
    let enabled = std::env::var("CARGO_CFG_FEATURE").unwrap_or_default();
    let names: Vec<_> = enabled.split(',').filter(|name| !["", "default"].contains(name)).collect();
    if names.is_empty() { "none".to_owned() } else { names.join(", ") }
}
