//! Types that all backends share: the trait, operations and their buffers, and the safe interfaces.

pub(crate) mod all_to_all;
mod blocking;
pub(crate) mod bucket;
mod buffer;
pub(crate) mod collective;
pub(crate) mod dtype;
pub(crate) mod error;
pub(crate) mod group;
pub(crate) mod incoming;
pub(crate) mod message;
pub(crate) mod operation;
pub(crate) mod outstanding;
pub(crate) mod raw_buffer;
pub(crate) mod traffic;
mod validate;
