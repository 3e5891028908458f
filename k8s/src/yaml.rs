//! Documents of a YAML stream.

use serde::Serialize;

use super::error::Result;

/// Serializes a document of a YAML stream.
pub(super) fn document(object: &impl Serialize) -> Result<String> {
    let yaml = serde_saphyr::to_string(object)?;
    Ok(format!("---\n{}\n", yaml.trim_end()))
}
