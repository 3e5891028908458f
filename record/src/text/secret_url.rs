//! An address that may carry a password, which is used and never shown.

use std::fmt;

use serde::{Deserialize, Serialize, Serializer};

use super::redaction::{is_redacted, redacted};

/// A URL or a folder. It is printed and stored without its user, password and query, so a stored
/// address that had one cannot be used again: see [`SecretUrl::is_redacted`].
#[derive(Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(transparent)]
pub struct SecretUrl(String);

impl SecretUrl {
    /// Returns the whole address, for a connection only.
    pub fn expose(&self) -> &str {
        &self.0
    }

    /// Returns whether no address is configured.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns whether the address has a part that is not shown.
    pub fn has_secret(&self) -> bool {
        self.is_redacted() || redacted(&self.0) != self.0
    }

    /// Returns whether the address was stored without its secret and read back.
    pub fn is_redacted(&self) -> bool {
        is_redacted(&self.0)
    }
}

impl fmt::Display for SecretUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&redacted(&self.0))
    }
}

impl fmt::Debug for SecretUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", redacted(&self.0))
    }
}

impl Serialize for SecretUrl {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_connection_gets_the_secret() {
        let url: SecretUrl = serde_json::from_str(r#""http://user:PASS@host""#).unwrap();
        let stored = serde_json::to_string(&url).unwrap();
        assert_eq!(stored, r#""http://***@host""#);
        assert_eq!(format!("{url} {url:?}"), r#"http://***@host "http://***@host""#);
        assert_eq!(url.expose(), "http://user:PASS@host");
        let read: SecretUrl = serde_json::from_str(&stored).unwrap();
        assert!(read.is_redacted() && !url.is_redacted());
    }
}
