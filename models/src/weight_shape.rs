//! Shapes of the weights of matrix products, by their role.

use crate::config::{Family, ModelConfig};
use crate::meter::Role;
use record::WeightShape;

/// Returns the shape of the weight of a role; `None` for roles without a product by a weight.
pub fn weight_shape(config: &ModelConfig, role: Role) -> Option<WeightShape> {
    let expanded = match config.family {
        Family::Gpt => config.feed_forward,
        Family::Llama(_) => 2 * config.feed_forward,
    };
    let width = config.width;
    let shape = |inputs, outputs| Some(WeightShape { inputs, outputs });
    match role {
        Role::AttentionIn => shape(width, config.qkv_width()),
        Role::AttentionOut => shape(width, width),
        Role::Expand => shape(width, expanded),
        Role::Contract => shape(config.feed_forward, width),
        Role::Head => shape(width, config.vocabulary),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::presets;

    #[test]
    fn shapes_are_those_of_the_layers() {
        let of = |name: &str, role| {
            let shape = weight_shape(&presets::load(name).unwrap().model, role)?;
            Some([shape.inputs, shape.outputs])
        };
        assert_eq!(of("gpt2-124m", Role::Expand), Some([768, 3072]));
        assert_eq!(of("llama3-8b", Role::Expand), Some([4096, 2 * 14336]), "gate and up");
        assert_eq!(of("llama3-8b", Role::AttentionIn), Some([4096, 4096 + 2 * 1024]));
        assert_eq!(of("llama3-8b", Role::Contract), Some([14336, 4096]));
        assert_eq!(of("llama3-8b", Role::Head), Some([4096, 128_256]));
        assert_eq!(of("llama3-8b", Role::Norm), None);
    }
}
