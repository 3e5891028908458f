//! Validation of a model's dimensions.
//!
//! Upper bounds keep products of dimensions from overflowing. Each is far above any real model and
//! far below what 64 bits hold: the bytes of every accepted model can be computed, and the memory
//! plan refuses models that do not fit the machine.

use super::{Family, MicroBatch, ModelConfig};
use crate::Error;

const LAYERS_MAX: usize = 1 << 16;
const DIMENSION_MAX: usize = 1 << 24;
/// Workspaces of attention grow with its square.
const HEAD_WIDTH_MAX: usize = 1 << 12;
/// Parameters of a model; elements that all layers save for backward of one tensor.
const ELEMENTS_MAX: u128 = 1 << 48;

impl ModelConfig {
    /// Checks a micro-batch of this model.
    ///
    /// # Errors
    /// [`Error::Invalid`] naming the key when B is 0, T is not in 1 to the context, or both are
    /// larger than any memory.
    pub fn check_micro_batch(&self, micro_batch: MicroBatch) -> Result<(), Error> {
        let MicroBatch { sequences, tokens } = micro_batch;
        if sequences == 0 {
            return Err(Error::invalid("batch.micro_sequences", 0, "at least 1"));
        }
        if !(1..=self.context).contains(&tokens) {
            let expected = format!("1 to model.context = {}", self.context);
            return Err(Error::invalid("batch.sequence_tokens", tokens, expected));
        }
        check_micro_batch_size(self, micro_batch)
    }

    /// Checks every dimension.
    ///
    /// # Errors
    /// [`Error::Invalid`] naming the key.
    pub fn validate(&self) -> Result<(), Error> {
        let positive = [
            ("model.layers", self.layers),
            ("model.width", self.width),
            ("model.heads", self.heads),
            ("model.feed_forward", self.feed_forward),
            ("model.context", self.context),
        ];
        for (key, value) in positive {
            if value == 0 {
                return Err(Error::invalid(key, value, "a number of at least 1"));
            }
        }
        if self.vocabulary < 2 {
            return Err(Error::invalid("model.vocabulary", self.vocabulary, "at least 2"));
        }
        if !self.width.is_multiple_of(self.heads) {
            let expected = format!("a divisor of model.width = {}", self.width);
            return Err(Error::invalid("model.heads", self.heads, expected));
        }
        check_size(self)?;
        match self.family {
            Family::Gpt => Ok(()),
            Family::Llama(llama) => llama.validate(self.heads, self.head_width()),
        }
    }
}

/// Checks the upper bounds of a model whose dimensions are at least 1 and divide as they should.
fn check_size(config: &ModelConfig) -> Result<(), Error> {
    for (key, value, max) in [
        ("model.layers", config.layers, LAYERS_MAX),
        ("model.width", config.width, DIMENSION_MAX),
        ("model.feed_forward", config.feed_forward, DIMENSION_MAX),
        ("model.vocabulary", config.vocabulary, DIMENSION_MAX),
        ("model.context", config.context, DIMENSION_MAX),
    ] {
        if value > max {
            return Err(Error::invalid(key, value, format!("at most {max}")));
        }
    }
    if config.head_width() > HEAD_WIDTH_MAX {
        let least = config.width.div_ceil(HEAD_WIDTH_MAX);
        let expected = format!("at least {least}, for heads of at most {HEAD_WIDTH_MAX}");
        return Err(Error::invalid("model.heads", config.heads, expected));
    }
    let found = parameters_max(config);
    if found > ELEMENTS_MAX {
        let expected = format!(
            "fewer layers or smaller dimensions: at most {ELEMENTS_MAX} parameters, not {found}"
        );
        return Err(Error::invalid("model.width", config.width, expected));
    }
    Ok(())
}

/// The parameters of a model without norms and biases, in whichever family has the most.
fn parameters_max(config: &ModelConfig) -> u128 {
    let [layers, width, feed_forward, vocabulary, context] =
        [config.layers, config.width, config.feed_forward, config.vocabulary, config.context]
            .map(|dimension| dimension as u128);
    (layers * (4 * width + 3 * feed_forward) + 2 * vocabulary + context) * width
}

/// Checks the upper bounds of a micro-batch of a checked model.
fn check_micro_batch_size(config: &ModelConfig, micro_batch: MicroBatch) -> Result<(), Error> {
    let [layers, width, feed_forward, vocabulary, sequences, tokens] = [
        config.layers,
        config.width,
        config.feed_forward,
        config.vocabulary,
        micro_batch.sequences,
        micro_batch.tokens,
    ]
    .map(|dimension| dimension as u128);
    let tokens_max = ELEMENTS_MAX / (layers * feed_forward.max(3 * width)).max(vocabulary).max(1);
    for (key, found, max) in [
        ("batch.sequence_tokens", tokens, tokens_max),
        ("batch.micro_sequences", sequences, tokens_max / tokens.max(1)),
    ] {
        if found > max {
            return Err(Error::invalid(key, found, format!("at most {max} with this model")));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use device::Allocator;

    use super::*;
    use crate::fused::{Fused, Options};
    use crate::workload::Compute;
    use crate::{Layout, presets};

    #[test]
    fn the_largest_model_that_passes_overflows_nothing() {
        let mut config = presets::load("smoke").unwrap().model;
        (config.layers, config.feed_forward) = (1, 1);
        (config.width, config.heads) = (1 << 22, 1 << 10);
        (config.vocabulary, config.context) = (1 << 22, 1 << 24);
        config.validate().unwrap();
        let parameters = Layout::new(&config).parameters() as u128;
        assert!(parameters > parameters_max(&config) / 2 && parameters < ELEMENTS_MAX);
        let max = ELEMENTS_MAX as usize / (3 * config.width);
        let micro_batch = |sequences| MicroBatch { sequences, tokens: 1 };
        config.check_micro_batch(micro_batch(max)).unwrap();
        let error = config.check_micro_batch(micro_batch(max + 1)).unwrap_err().to_string();
        assert!(error.contains(&format!("at most {max}")), "{error}");
        let plan = Allocator::counting();
        let options = Options { threads: 1, ..Compute::F32.into() };
        let layout = Layout::new(&config);
        Fused::new(&config, layout, micro_batch(max), options, &plan).unwrap();
        let planned = plan.total_bytes() as f64;
        assert!(planned > 4.0 * ELEMENTS_MAX as f64 && planned < 1e18, "{planned:e} bytes");
    }

    #[test]
    fn logits_bound_a_micro_batch_too() {
        let mut config = presets::load("smoke").unwrap().model;
        config.vocabulary = DIMENSION_MAX;
        let micro_batch = |sequences| MicroBatch { sequences, tokens: 128 };
        config.check_micro_batch(micro_batch(1 << 17)).unwrap();
        let error = config.check_micro_batch(micro_batch(1 << 18)).unwrap_err().to_string();
        assert!(error.contains("batch.micro_sequences"), "{error}");
        config.layers = LAYERS_MAX;
        (config.width, config.context) = (DIMENSION_MAX, DIMENSION_MAX);
        let longest = MicroBatch { sequences: 1, tokens: DIMENSION_MAX };
        let error = config.check_micro_batch(longest).unwrap_err().to_string();
        assert!(error.contains("batch.sequence_tokens"), "{error}");
    }
}
