//! Lists of ranks and hosts.

/// How many ranks or hosts a text lists; the record has all.
const LISTED_MAX: usize = 8;

/// The first items with commas between them, and the number of the others.
pub fn list(items: &[String]) -> String {
    match items.len().saturating_sub(LISTED_MAX) {
        0 => items.join(", "),
        more => format!("{} and {more} more", items[..LISTED_MAX].join(", ")),
    }
}
