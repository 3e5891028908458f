//! Places where a library was looked for, and the copies of it that cannot be used.

use std::fmt;
use std::path::PathBuf;

use super::search::PATH_VARIABLE;
use super::{DriverStatus, Version};

/// Places where no copy of a library was found that can be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Searched {
    /// The names of its file, best first.
    pub file_names: Vec<String>,
    /// The dynamic loader was asked for these names.
    pub asked_loader: bool,
    /// The folders.
    pub folders: Vec<PathBuf>,
    /// Copies that cannot be used.
    pub rejected: Vec<Rejected>,
}

/// A copy of a library that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rejected {
    /// The file; only its name where the dynamic loader cannot load it.
    pub path: PathBuf,
    /// Reason why it cannot be used.
    pub fault: Fault,
}

/// Reason why a copy of a library cannot be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fault {
    /// The dynamic loader cannot load it, as its message says.
    NotLoadable(String),
    /// It is older than what this program needs.
    TooOld {
        /// Its version.
        found: Version,
        /// The oldest that is enough.
        needed: Version,
    },
    /// It is older or newer than what this program was written for, or is another library.
    FunctionMissing {
        /// The first function that it lacks.
        function: &'static str,
        /// Its version, if it reports one.
        version: Option<Version>,
    },
    /// This copy of the driver does not start: it is a stub, or another driver's.
    NotStarting(DriverStatus),
    /// The compiler knows none of the GPUs.
    OtherArchitectures {
        /// The architectures of the GPUs, as in `sm_120a`.
        needed: Vec<String>,
        /// Its version, if it reports one.
        version: Option<Version>,
    },
}

impl Searched {
    /// Returns whether there is a copy of the driver that does not start.
    pub(super) fn has_not_starting(&self) -> bool {
        self.rejected.iter().any(|copy| matches!(copy.fault, Fault::NotStarting(_)))
    }

    /// Versions of the copies, if each of them is too old and there is one.
    pub(super) fn too_old(&self) -> Option<TooOld> {
        let mut copies = self.rejected.iter().map(|Rejected { path, fault }| match fault {
            Fault::TooOld { found, needed } => {
                Some((*needed, format!("{found} ({})", path.display())))
            }
            _ => None,
        });
        let (needed, first) = copies.next()??;
        let mut found = vec![first];
        for copy in copies {
            found.push(copy?.1);
        }
        Some(TooOld { needed, found: found.join(" and ") })
    }
}

/// Copies of a library that are too old.
pub(super) struct TooOld {
    pub(super) needed: Version,
    /// Version and file of each.
    pub(super) found: String,
}

impl fmt::Display for Searched {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = self.file_names.join(" or ");
        let folders: Vec<_> = self.folders.iter().map(|f| f.display().to_string()).collect();
        let folders = if folders.is_empty() { "no folder".into() } else { folders.join(", ") };
        if self.asked_loader {
            write!(formatter, "looked for {names} by the dynamic loader and in {folders}")?;
        } else {
            write!(formatter, "looked for {names} in {folders} ({PATH_VARIABLE}) only")?;
        }
        self.rejected.iter().try_for_each(|rejected| write!(formatter, ", where {rejected}"))
    }
}

impl fmt::Display for Rejected {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} {}", self.path.display(), self.fault)
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotLoadable(reason) => write!(formatter, "cannot be loaded ({reason})"),
            Self::TooOld { found, needed } => {
                write!(formatter, "is version {found}, expected {needed} or newer")
            }
            Self::FunctionMissing { function, version } => {
                let version = text(*version);
                write!(formatter, "lacks the function {function} (version {version})")
            }
            Self::NotStarting(status) => write!(formatter, "does not start: {status}"),
            Self::OtherArchitectures { needed, version } => {
                let [needed, version] = [needed.join(" or "), text(*version)];
                write!(formatter, "does not compile for {needed} (version {version})")
            }
        }
    }
}

fn text(version: Option<Version>) -> String {
    version.map_or("unknown".to_owned(), |version| version.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn searched(asked_loader: bool) -> Searched {
        let too_short = Fault::NotLoadable("too short".into());
        let lacks = Fault::FunctionMissing { function: "get", version: None };
        let rejected = [("/a/libx.so.1", too_short), ("/b/libx.so.1", lacks)];
        let rejected = rejected.map(|(path, fault)| Rejected { path: path.into(), fault });
        Searched {
            file_names: vec!["libx.so.2".into(), "libx.so.1".into()],
            asked_loader,
            folders: vec!["/a".into(), "/b".into()],
            rejected: rejected.to_vec(),
        }
    }

    #[test]
    fn a_search_is_told_in_one_sentence() {
        assert_eq!(
            searched(true).to_string(),
            "looked for libx.so.2 or libx.so.1 by the dynamic loader and in /a, /b, \
             where /a/libx.so.1 cannot be loaded (too short), \
             where /b/libx.so.1 lacks the function get (version unknown)"
        );
        let only = searched(false).to_string();
        assert!(only.contains("in /a, /b (YARDSTICK_CUDA_PATH) only"), "{only}");
    }

    #[test]
    fn copies_that_are_all_too_old_are_told_with_their_versions() {
        assert!(searched(true).too_old().is_none());
        let version = |minor| Version { major: 9, minor, patch: Some(1) };
        let fault = |minor| Fault::TooOld { found: version(minor), needed: version(28) };
        let copy = |path: &str, minor| Rejected { path: path.into(), fault: fault(minor) };
        let rejected = vec![copy("/a/libx.so.1", 17), copy("/b/libx.so.1", 19)];
        let old = Searched { rejected, ..searched(true) }.too_old().unwrap();
        assert_eq!(old.found, "9.17.1 (/a/libx.so.1) and 9.19.1 (/b/libx.so.1)");
        assert_eq!(old.needed, version(28));
        let mixed = [copy("/a/libx.so.1", 17), searched(true).rejected.remove(0)];
        assert!(Searched { rejected: mixed.to_vec(), ..searched(true) }.too_old().is_none());
    }
}
