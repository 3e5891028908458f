//! The `[model]` section in TOML: one flat table, with keys that only one family has.

use serde::{Deserialize, Serialize};

use super::{Family, Llama, ModelConfig, RopeScaling};
use crate::Error;

/// A family's name.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Name {
    Gpt,
    Llama,
}

/// Every key. Those of another family are absent, also in the hashed form, so that a new key does
/// not change the ids of workloads without it.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Keys {
    family: Name,
    layers: usize,
    width: usize,
    heads: usize,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    key_value_heads: Option<usize>,
    feed_forward: usize,
    vocabulary: usize,
    context: usize,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    norm_epsilon: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    rope_theta: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    tied: Option<bool>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    rope_scaling: Option<RopeScaling>,
}

impl Keys {
    /// Absent keys get their defaults, so that stating a default changes nothing.
    fn llama(&self) -> Llama {
        let plain = Llama::plain(self.heads);
        Llama {
            key_value_heads: self.key_value_heads.unwrap_or(plain.key_value_heads),
            norm_epsilon: self.norm_epsilon.unwrap_or(plain.norm_epsilon),
            rope_theta: self.rope_theta.unwrap_or(plain.rope_theta),
            rope_scaling: self.rope_scaling,
            tied: self.tied.unwrap_or(plain.tied),
        }
    }

    fn refuse_llama_keys(&self) -> Result<(), Error> {
        let found = [
            ("key_value_heads", self.key_value_heads.map(|value| value.to_string())),
            ("norm_epsilon", self.norm_epsilon.map(|value| value.to_string())),
            ("rope_theta", self.rope_theta.map(|value| value.to_string())),
            ("rope_scaling", self.rope_scaling.map(|value| format!("{value:?}"))),
            ("tied", self.tied.filter(|tied| !tied).map(|value| value.to_string())),
        ];
        match found.into_iter().find_map(|(key, value)| Some((key, value?))) {
            None => Ok(()),
            Some((key, value)) => {
                let expected = "no such key in the GPT family (model.family = \"llama\" has it)";
                Err(Error::invalid(format!("model.{key}"), value, expected))
            }
        }
    }
}

impl TryFrom<Keys> for ModelConfig {
    type Error = Error;

    fn try_from(keys: Keys) -> Result<Self, Error> {
        let family = match keys.family {
            Name::Gpt => {
                keys.refuse_llama_keys()?;
                Family::Gpt
            }
            Name::Llama => Family::Llama(keys.llama()),
        };
        let Keys { layers, width, heads, feed_forward, vocabulary, context, .. } = keys;
        Ok(Self { family, layers, width, heads, feed_forward, vocabulary, context })
    }
}

impl From<ModelConfig> for Keys {
    fn from(config: ModelConfig) -> Self {
        let ModelConfig { family, layers, width, heads, feed_forward, vocabulary, context } =
            config;
        let llama = match family {
            Family::Gpt => None,
            Family::Llama(llama) => Some(llama),
        };
        Self {
            family: if llama.is_some() { Name::Llama } else { Name::Gpt },
            layers,
            width,
            heads,
            key_value_heads: llama.map(|llama| llama.key_value_heads),
            feed_forward,
            vocabulary,
            context,
            norm_epsilon: llama.map(|llama| llama.norm_epsilon),
            rope_theta: llama.map(|llama| llama.rope_theta),
            tied: llama.map(|llama| llama.tied),
            rope_scaling: llama.and_then(|llama| llama.rope_scaling),
        }
    }
}
