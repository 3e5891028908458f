//! Records that cannot be read: torn, or of another version.

use serde::Serialize;

/// A record that cannot be read.
#[derive(Debug, Clone, Serialize)]
pub struct Unreadable {
    /// Name of its folder or file.
    pub name: String,
    /// Name of its job; `None` if only the record would name it.
    pub job: Option<String>,
    /// Start of its run, as far as that is known without the record.
    pub unix_ms: u64,
    /// File and error.
    pub text: String,
    /// True if the verdict of a job may depend on it.
    pub is_newest: bool,
}

impl Unreadable {
    pub(super) fn new(name: String, job: Option<String>) -> Self {
        Self { name, job, unix_ms: 0, text: String::new(), is_newest: true }
    }
}
