//! Reasons of refusals that the error itself does not tell: on network file systems the owner of a
//! folder, and the user as the server sees him, decide.

use std::fmt::Write;
use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::io::Errno;
use rustix::process::geteuid;

use crate::tier::{Filesystem, Medium};

/// What the system tells of a path that it has refused, as the end of a sentence; empty for other
/// errors.
pub(super) fn reason(path: &Path, error: &io::Error) -> String {
    let number = error.raw_os_error().map(Errno::from_raw_os_error);
    match number {
        Some(Errno::ACCESS | Errno::PERM) => denied(path).unwrap_or_default(),
        Some(Errno::STALE) => "; its server no longer knows the folder, which was removed or is \
             exported anew: mount it again on this host"
            .to_owned(),
        Some(Errno::ROFS) => format!("; mounted read-only ({})", filesystem(path).0),
        _ => String::new(),
    }
}

/// Who owns the nearest folder that can be seen, and who this process is.
fn denied(path: &Path) -> Option<String> {
    let (folder, metadata) = path.ancestors().find_map(|folder| {
        let metadata = fs::metadata(folder).ok()?;
        Some((folder, metadata))
    })?;
    let (name, medium) = filesystem(folder);
    let own = geteuid().as_raw();
    let mut text = format!("; {} ({name}) {}", folder.display(), owner(&metadata));
    let _ = write!(text, ", this process is uid {own}"); // strings take all
    if own != 0 {
        text += ": give it to that user, or name another folder";
    } else if medium != Medium::Disk {
        text += ", which a server maps to nobody (root_squash): run as the owner, or export the \
                 folder with no_root_squash";
    }
    Some(text)
}

fn owner(metadata: &Metadata) -> String {
    let mode = metadata.mode() & 0o7777;
    format!("belongs to uid {}, gid {}, mode {mode:04o}", metadata.uid(), metadata.gid())
}

fn filesystem(path: &Path) -> (String, Medium) {
    match Filesystem::of(path) {
        Ok(Filesystem { name, medium }) => (name, medium),
        Err(_) => ("unknown file system".to_owned(), Medium::Unknown),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owner_and_user_of_a_denied_path_are_named() {
        let folder = tempfile::tempdir().unwrap();
        let error = io::Error::from(Errno::ACCESS);
        let found = reason(&folder.path().join("no/such"), &error);
        let own = geteuid().as_raw();
        assert!(found.contains(&format!("belongs to uid {own}, gid ")), "{found}");
        assert!(found.contains(&format!(", mode 0700, this process is uid {own}")), "{found}");
    }

    #[test]
    fn other_errors_have_no_reason() {
        let here = Path::new(".");
        assert_eq!(reason(here, &io::Error::from(Errno::NOENT)), "");
        assert_eq!(reason(here, &io::Error::other("no number")), "");
        let stale = reason(here, &io::Error::from(Errno::STALE));
        assert!(stale.contains("mount it again"), "{stale}");
    }
}
