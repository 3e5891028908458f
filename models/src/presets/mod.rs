//! Built-in workloads by name, and workloads as TOML.

use crate::{Error, Workload};

/// Names and texts, smallest first.
const PRESETS: [(&str, &str); 14] = [
    ("smoke", include_str!("smoke.toml")),
    ("llama-smoke", include_str!("llama-smoke.toml")),
    ("gpt2-124m", include_str!("gpt2-124m.toml")),
    ("smollm-135m", include_str!("smollm-135m.toml")),
    ("gpt2-355m", include_str!("gpt2-355m.toml")),
    ("gpt2-774m", include_str!("gpt2-774m.toml")),
    ("gpt2-1558m", include_str!("gpt2-1558m.toml")),
    ("gpt3-1.3b", include_str!("gpt3-1.3b.toml")),
    ("gpt3-6.7b", include_str!("gpt3-6.7b.toml")),
    ("llama3-8b", include_str!("llama3-8b.toml")),
    ("gpt3-13b", include_str!("gpt3-13b.toml")),
    ("llama2-70b", include_str!("llama2-70b.toml")),
    ("llama3-70b", include_str!("llama3-70b.toml")),
    ("gpt3-175b", include_str!("gpt3-175b.toml")),
];

/// Names of all presets, smallest model first.
pub fn names() -> impl ExactSizeIterator<Item = &'static str> {
    PRESETS.iter().map(|(name, _)| *name)
}

/// The TOML text of a preset, with its comments.
pub fn text(name: &str) -> Option<&'static str> {
    PRESETS.iter().find(|(known, _)| *known == name).map(|(_, text)| *text)
}

/// The workload of a preset.
///
/// # Panics
/// Panics if a built-in text does not parse, which a test rules out.
pub fn load(name: &str) -> Option<Workload> {
    text(name).map(|text| parse(text, name).unwrap_or_else(|error| panic!("{error}")))
}

/// Parses a workload from TOML; `origin` is the file or preset of the text.
///
/// Values are not checked: call [`Workload::validate`] after overrides are applied.
///
/// # Errors
/// [`Error::Parse`] naming the line and the unknown or ill-typed key.
pub fn parse(text: &str, origin: &str) -> Result<Workload, Error> {
    toml::from_str(text).map_err(|error| Error::Parse {
        origin: origin.to_owned(),
        message: error.to_string().trim_end().to_owned(),
    })
}

/// The workload as TOML that [`parse`] reads back identically.
///
/// # Panics
/// Panics if an integer exceeds what TOML holds (2^63 - 1).
pub fn to_toml(workload: &Workload) -> String {
    toml::to_string(workload).unwrap_or_else(|error| panic!("{error}: {workload:?}"))
}

#[cfg(test)]
mod tests;
