//! Records that cannot be read: torn, or of another version.

use serde::Serialize;

/// One of them.
#[derive(Debug, Clone, Serialize)]
pub struct Unreadable {
    /// Name of its folder or file.
    pub name: String,
    /// Name of its job; `None` where only the record would say it.
    pub job: Option<String>,
    /// When its run started, as far as that is known without it.
    pub unix_ms: u64,
    /// The file, and why.
    pub text: String,
    /// Whether a job may be judged by it.
    pub is_newest: bool,
}

impl Unreadable {
    pub(super) fn new(name: String, job: Option<String>) -> Self {
        Self { name, job, unix_ms: 0, text: String::new(), is_newest: true }
    }
}
