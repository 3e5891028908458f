//! Folders that a daemon of `mpirun` leaves when it is killed. Process ids repeat in containers, so
//! that the next daemon may mistake the folder for its own, and then fails to start.

use std::fs;
use std::path::{Path, PathBuf};

/// Prefixes of such folders: Open MPI 5's and 4's.
const PREFIXES: [&str; 2] = ["prted.", "ompi."];

/// Removes them from the folder of temporary files, and returns those removed. No launcher may be
/// running on the host.
pub(super) fn remove(temporary: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(temporary).into_iter().flatten().flatten();
    let is_leftover = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        PREFIXES.iter().any(|prefix| name.starts_with(prefix))
    };
    let found = entries.map(|entry| entry.path()).filter(is_leftover);
    found.filter(|path| fs::remove_dir_all(path).is_ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_folders_of_launchers_are_removed() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["prted.host.12.1000/dir", "ompi.host.1000/pid.7", "ompi-data", "mine"] {
            fs::create_dir_all(folder.path().join(name)).unwrap();
        }
        let mut removed = remove(folder.path());
        removed.sort();
        let expected = ["ompi.host.1000", "prted.host.12.1000"];
        assert_eq!(removed, expected.map(|name| folder.path().join(name)));
        assert!(folder.path().join("mine").is_dir() && folder.path().join("ompi-data").is_dir());
        assert!(!removed[0].exists());
    }
}
