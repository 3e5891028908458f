//! Numbers with their nouns.

/// Formats a number with a noun in singular or plural.
pub fn count(number: usize, one: &str) -> String {
    format!("{number} {one}{}", if number == 1 { "" } else { "s" })
}
