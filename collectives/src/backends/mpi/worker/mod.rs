//! The communication thread, and what callers hand over to it.

pub(super) mod handle;
pub(super) mod thread;
