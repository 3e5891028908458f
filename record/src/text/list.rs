//! Lists of ranks and hosts.

/// Maximum number of ranks or hosts that a text lists; the record has all.
const LISTED_MAX: usize = 8;

/// Joins the first items with commas, and adds the number of the others.
pub fn list(items: &[String]) -> String {
    match items.len().saturating_sub(LISTED_MAX) {
        0 => items.join(", "),
        more => format!("{} and {more} more", items[..LISTED_MAX].join(", ")),
    }
}
