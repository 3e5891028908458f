//! Initial weights: a pure function of seed, tensor name and element.

use rayon::prelude::*;

use crate::Layout;
use crate::layout::{Init, Tensor};
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
    let mut end = 0;
    for tensor in layout.tensors() {
        weights[end..tensor.range.start].fill(0.0);
        init_elements(tensor, seed, 0, &mut weights[tensor.range.clone()]);
        end = tensor.range.end;
    }
    weights[end..].fill(0.0);
}

/// Fills the initial values of a tensor's elements from its element `first` on. Each has the value
/// that [`init_weights`] gives it.
pub fn init_elements(tensor: &Tensor, seed: u64, first: usize, values: &mut [f32]) {
    match tensor.init {
        Init::Zeros => values.fill(0.0),
        Init::Ones => values.fill(1.0),
        Init::Normal(deviation) => {
            let stream = Stream::new(seed, Purpose::Weights).named(&tensor.name);
            normal(stream, deviation, first, values);
        }
    }
}

/// Standard normals times `deviation`, from number `first` of the stream on.
fn normal(stream: Stream, deviation: f32, first: usize, values: &mut [f32]) {
    values.par_chunks_mut(CHUNK).enumerate().for_each(|(chunk, values)| {
        let start = (first + chunk * CHUNK) as u64;
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

    /// Ranges that begin and end anywhere, of one element and of more than a task's.
    #[test]
    fn any_range_of_a_tensor_has_the_values_of_the_whole() {
        let layout = smoke();
        let whole = filled(&layout, 7);
        for tensor in layout.tensors() {
            let values = &whole[tensor.range.clone()];
            let len = values.len();
            for range in [0..1, 1..2, len - 1..len, 3..len, 1..len - 2, len / 3..2 * len / 3 + 1] {
                let mut found = vec![f32::NAN; range.len()];
                init_elements(tensor, 7, range.start, &mut found);
                assert_eq!(found, values[range.clone()], "{} {range:?}", tensor.name);
            }
        }
        let largest = layout.tensors().iter().map(|tensor| tensor.range.len()).max();
        assert!(largest > Some(CHUNK), "several tasks");
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
