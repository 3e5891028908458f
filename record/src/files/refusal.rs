//! Reasons for refusals that the error does not contain: on network file systems, access depends on
//! the owner of a folder and on the user as the server sees it.

use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::io::Errno;
use rustix::process::geteuid;

use super::filesystem::{Filesystem, Medium};

/// Owner, user and file system of a refused path, as the end of a sentence; empty for other errors.
pub(super) fn reason(path: &Path, operation: &str, error: &io::Error) -> String {
    let number = error.raw_os_error().map(Errno::from_raw_os_error);
    match number {
        Some(Errno::ACCESS | Errno::PERM) => denied(path, operation).unwrap_or_default(),
        Some(Errno::STALE) => "; its server no longer knows the folder, which was removed or is \
             exported anew: mount it again on this host"
            .to_owned(),
        Some(Errno::ROFS) => {
            let name = Filesystem::of(path).map(|found| format!(" ({})", found.name));
            format!("; mounted read-only{}", name.unwrap_or_default())
        }
        _ => String::new(),
    }
}

/// Owner of the file or folder whose permissions decide, and the user of this process.
fn denied(path: &Path, operation: &str) -> Option<String> {
    // Changes of names in a folder need permissions of the folder.
    let is_of_folder = ["create", "rename", "replace", "link", "unlink", "remove"]
        .iter()
        .any(|it| operation.starts_with(it));
    let decides = path.ancestors().skip(usize::from(is_of_folder));
    let (decides, metadata) = decides.map(named).find_map(|path| {
        let metadata = fs::metadata(path).ok()?;
        Some((path, metadata))
    })?;
    let Filesystem { name, medium } = Filesystem::of(decides).ok()?;
    let own = geteuid().as_raw();
    let owner = owner(&metadata);
    let mut text = format!("; {} ({name}) {owner}, this process is uid {own}", decides.display());
    if own == 0 && (medium == Medium::Network || name == "fuse") {
        text += ", which a server maps to nobody (root_squash): run as the owner, or export the \
                 folder with no_root_squash";
    } else if own != 0 && own != metadata.uid() {
        text += ": give it to that user, or name another folder";
    }
    Some(text)
}

/// Returns the path, or `.` for the empty ancestor of a relative path.
fn named(path: &Path) -> &Path {
    if path.as_os_str().is_empty() { Path::new(".") } else { path }
}

fn owner(metadata: &Metadata) -> String {
    let mode = metadata.mode() & 0o7777;
    format!("belongs to uid {}, gid {}, mode {mode:04o}", metadata.uid(), metadata.gid())
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn owner_and_user_of_a_denied_path_are_named() {
        let folder = tempfile::tempdir().unwrap();
        fs::set_permissions(folder.path(), Permissions::from_mode(0o750)).unwrap();
        let error = io::Error::from(Errno::ACCESS);
        let found = reason(&folder.path().join("no/such"), "read", &error);
        let own = geteuid().as_raw();
        assert!(found.contains(&format!("belongs to uid {own}, gid ")), "{found}");
        assert!(found.contains(&format!(", mode 0750, this process is uid {own}")), "{found}");
    }

    /// Creating or removing a file depends on its folder, reading it on the file itself.
    #[test]
    fn what_decides_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        fs::write(&file, "").unwrap();
        let error = io::Error::from(Errno::PERM);
        for (operation, decides) in [("open", &*file), ("remove", folder.path())] {
            let found = reason(&file, operation, &error);
            assert!(found.starts_with(&format!("; {} (", decides.display())), "{found}");
            assert!(!found.contains("give it"), "it is its own: {found}");
        }
        assert!(reason(Path::new("no/such"), "read", &error).starts_with("; . ("));
    }

    #[test]
    fn other_errors_have_no_reason() {
        let here = Path::new(".");
        assert_eq!(reason(here, "read", &io::Error::from(Errno::NOENT)), "");
        assert_eq!(reason(here, "read", &io::Error::other("no number")), "");
        let stale = reason(here, "read", &io::Error::from(Errno::STALE));
        assert!(stale.contains("mount it again"), "{stale}");
    }
}
