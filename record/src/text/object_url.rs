//! Addresses of object stores.

/// Schemes of object stores.
pub const OBJECT_STORES: [&str; 3] = ["s3", "gs", "az"];

/// Returns whether a text is a URL of an object store, and not a path.
pub fn is_remote(text: &str) -> bool {
    text.split_once("://").is_some_and(|(scheme, _)| OBJECT_STORES.contains(&scheme))
}
