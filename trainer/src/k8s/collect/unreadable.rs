//! Records that cannot be read: torn, or of another version.

use serde::Serialize;

/// One of them.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Unreadable {
    /// Name of its folder or file.
    pub(crate) name: String,
    /// Name of its job; `None` where only the record would say it.
    pub(crate) job: Option<String>,
    /// When its run started, as far as that is known without it.
    pub(crate) unix_ms: u64,
    /// The file, and why.
    pub(crate) text: String,
    /// Whether a job may be judged by it.
    pub(crate) is_newest: bool,
}

impl Unreadable {
    pub(super) fn new(name: String, job: Option<String>) -> Self {
        Self { name, job, unix_ms: 0, text: String::new(), is_newest: true }
    }
}
