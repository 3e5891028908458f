//! The communication thread, and the table through which callers submit operations to it.

pub(super) mod handle;
pub(super) mod thread;
