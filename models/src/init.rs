//! Initial weights: a pure function of seed, tensor name and element.

use rayon::prelude::*;

use crate::Layout;
use crate::layout::Init;
use crate::rng::{Purpose, Stream};

/// Elements that one task draws.
const CHUNK: usize = 1 << 15;

/// Fills a flat buffer with the initial weights, and with zeros between the tensors.
///
/// Values depend on the tensor's name and the element's index in it, not on where the layout puts
/// the tensor, so every engine, world size and layout starts from the same model.
///
/// # Panics
/// Panics if the buffer is not as long as the layout.
pub fn init_weights(layout: &Layout, seed: u64, weights: &mut [f32]) {
    assert_eq!(weights.len(), layout.len(), "length of the flat weights");
    let root = Stream::new(seed, Purpose::Weights);
    let mut end = 0;
    for tensor in layout.tensors() {
        weights[end..tensor.range.start].fill(0.0);
        let values = &mut weights[tensor.range.clone()];
        match tensor.init {
            Init::Zeros => values.fill(0.0),
            Init::Ones => values.fill(1.0),
            Init::Normal(deviation) => normal(root.child(key(&tensor.name)), deviation, values),
        }
        end = tensor.range.end;
    }
    weights[end..].fill(0.0);
}

/// A distinct number for every name.
fn key(name: &str) -> u64 {
    let mut bytes = [0; 8];
    bytes.copy_from_slice(&blake3::hash(name.as_bytes()).as_bytes()[..8]);
    u64::from_le_bytes(bytes)
}

/// Standard normals times `deviation`; element i is number i of the stream.
fn normal(stream: Stream, deviation: f32, values: &mut [f32]) {
    values.par_chunks_mut(CHUNK).enumerate().for_each(|(chunk, values)| {
        let start = (chunk * CHUNK) as u64;
        for (index, value) in (start..).zip(values) {
            *value = deviation * stream.normal(index) as f32;
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::presets;

    fn smoke() -> Layout {
        Layout::new(&presets::load("smoke").unwrap().model)
    }

    fn filled(layout: &Layout, seed: u64) -> Vec<f32> {
        let mut weights = vec![f32::NAN; layout.len()];
        init_weights(layout, seed, &mut weights);
        weights
    }

    #[test]
    fn values_do_not_depend_on_the_layout_and_padding_is_zero() {
        let tight = smoke();
        let starts: Vec<usize> =
            tight.segments().iter().enumerate().map(|(i, s)| s.range.start + 384 * i).collect();
        let placed = tight.with_starts(&starts, tight.len() + 384 * starts.len());
        let expected = filled(&tight, 7);
        let mut found = filled(&placed, 7);
        for (from, to) in tight.tensors().iter().zip(placed.tensors()) {
            assert_eq!(expected[from.range.clone()], found[to.range.clone()], "{}", to.name);
            found[to.range.clone()].fill(0.0);
        }
        assert!(found.iter().all(|value| *value == 0.0), "padding");
    }

    #[test]
    fn matrices_are_normal_norms_one_biases_zero() {
        let layout = smoke();
        let weights = filled(&layout, 7);
        for tensor in layout.tensors() {
            let values = &weights[tensor.range.clone()];
            let count = values.len() as f64;
            let mean = values.iter().map(|v| f64::from(*v)).sum::<f64>() / count;
            let square = values.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>() / count;
            match tensor.init {
                Init::Zeros => assert!(values.iter().all(|v| *v == 0.0)),
                Init::Ones => assert!(values.iter().all(|v| *v == 1.0)),
                Init::Normal(deviation) => {
                    let deviation = f64::from(deviation);
                    let name = &tensor.name;
                    assert!(mean.abs() < 5.0 * deviation / count.sqrt(), "{name}: mean {mean}");
                    let spread = (square / deviation.powi(2) - 1.0).abs();
                    assert!(spread < 5.0 * (2.0 / count).sqrt(), "{name}: spread {spread}");
                }
            }
        }
    }

    #[test]
    fn tensors_and_seeds_differ() {
        let layout = smoke();
        let first = filled(&layout, 7);
        let other = filled(&layout, 8);
        let at = |weights: &[f32], name: &str| weights[layout.tensor(name).unwrap().range.start];
        let one = "h.0.attn.c_attn.weight";
        let two = "h.1.attn.c_attn.weight";
        assert_ne!(at(&first, one), at(&first, two));
        assert_ne!(at(&first, one), at(&other, one));
    }
}
