//! Sizes that no model has, so that no product of dimensions can wrap.
//!
//! Each bound is far above any real model and far below what 64 bits hold: whatever passes can be
//! multiplied out in bytes, told as a memory plan, and refused by it.

use crate::{Error, ModelConfig};

const LAYERS_MAX: usize = 1 << 16;
const DIMENSION_MAX: usize = 1 << 24;
/// Workspaces of attention grow with its square.
const HEAD_WIDTH_MAX: usize = 1 << 12;
/// Parameters of a model; elements of one micro-batch that all layers keep of one kind.
const ELEMENTS_MAX: u128 = 1 << 48;

/// Checks the dimensions of a model, which are at least 1 and divide as they should.
pub(crate) fn check_model(config: &ModelConfig) -> Result<(), Error> {
    for (key, value, most) in [
        ("model.layers", config.layers, LAYERS_MAX),
        ("model.width", config.width, DIMENSION_MAX),
        ("model.feed_forward", config.feed_forward, DIMENSION_MAX),
        ("model.vocabulary", config.vocabulary, DIMENSION_MAX),
        ("model.context", config.context, DIMENSION_MAX),
    ] {
        if value > most {
            return Err(Error::invalid(key, value, format!("at most {most}")));
        }
    }
    if config.head_width() > HEAD_WIDTH_MAX {
        let least = config.width.div_ceil(HEAD_WIDTH_MAX);
        let expected = format!("at least {least}, for heads of at most {HEAD_WIDTH_MAX}");
        return Err(Error::invalid("model.heads", config.heads, expected));
    }
    let found = parameters_at_most(config);
    if found > ELEMENTS_MAX {
        let expected = format!(
            "fewer layers or smaller dimensions: at most {ELEMENTS_MAX} parameters, not {found}"
        );
        return Err(Error::invalid("model.width", config.width, expected));
    }
    Ok(())
}

/// The parameters of a model without norms and biases, in whichever family has the most.
fn parameters_at_most(config: &ModelConfig) -> u128 {
    let [layers, width, feed_forward, vocabulary, context] =
        [config.layers, config.width, config.feed_forward, config.vocabulary, config.context]
            .map(|dimension| dimension as u128);
    (layers * (4 * width + 3 * feed_forward) + 2 * vocabulary + context) * width
}

/// Checks a micro-batch of B = `micro_sequences` and T = `sequence_tokens` of a checked model.
pub(crate) fn check_batch(
    config: &ModelConfig,
    micro_sequences: usize,
    sequence_tokens: usize,
) -> Result<(), Error> {
    let [layers, width, feed_forward, vocabulary, micro_sequences, sequence_tokens] = [
        config.layers,
        config.width,
        config.feed_forward,
        config.vocabulary,
        micro_sequences,
        sequence_tokens,
    ]
    .map(|dimension| dimension as u128);
    let tokens_max = ELEMENTS_MAX / (layers * feed_forward.max(3 * width)).max(vocabulary).max(1);
    for (key, found, most) in [
        ("batch.sequence_tokens", sequence_tokens, tokens_max),
        ("batch.micro_sequences", micro_sequences, tokens_max / sequence_tokens.max(1)),
    ] {
        if found > most {
            return Err(Error::invalid(key, found, format!("at most {most} with this model")));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::Layout;
    use crate::presets;

    /// The largest model that passes is still told exactly: nothing wraps.
    #[test]
    fn what_passes_can_be_multiplied_out() {
        let mut config = presets::load("smoke").unwrap().model;
        (config.layers, config.feed_forward) = (1, 1);
        (config.width, config.heads) = (1 << 22, 1 << 10);
        (config.vocabulary, config.context) = (1 << 22, 1 << 24);
        config.validate().unwrap();
        let parameters = Layout::new(&config).parameters() as u128;
        assert!(parameters > parameters_at_most(&config) / 2 && parameters < ELEMENTS_MAX);
        let (most, width) = (ELEMENTS_MAX as usize, 3 * config.width);
        config.check_batch(most / width, 1).unwrap();
        let error = config.check_batch(most / width + 1, 1).unwrap_err().to_string();
        assert!(error.contains(&format!("at most {}", most / width)), "{error}");
        let bytes = |items: Vec<(String, u64)>| items.iter().map(|item| item.1 as f64).sum::<f64>();
        let plan = bytes(crate::fused::activation_bytes(&config, most / width, 1, 1));
        assert!(plan > 4.0 * most as f64 && plan < 1e18, "{plan:e} bytes");
    }

    #[test]
    fn the_logits_bound_a_batch_too() {
        let mut config = presets::load("smoke").unwrap().model;
        config.vocabulary = DIMENSION_MAX;
        config.check_batch(1 << 17, 128).unwrap();
        let error = config.check_batch(1 << 18, 128).unwrap_err().to_string();
        assert!(error.contains("batch.micro_sequences"), "{error}");
        config.layers = LAYERS_MAX;
        (config.width, config.context) = (DIMENSION_MAX, DIMENSION_MAX);
        let error = config.check_batch(1, DIMENSION_MAX).unwrap_err().to_string();
        assert!(error.contains("batch.sequence_tokens"), "{error}");
    }
}
