//! Boxes that cover a range of elements: each element once, in order, and few boxes.

use checkpoint::{Dtype, TensorBox};

/// Small generator (Knuth's MMIX constants), so that a failure can be repeated from its seed.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % bound
    }
}

/// Row-major numbers of the elements of a box.
fn numbers(tensor: &TensorBox) -> Vec<usize> {
    let mut numbers = vec![0];
    for dimension in 0..tensor.shape.len() {
        let inner = |outer: &usize| {
            let first = outer * tensor.shape[dimension] + tensor.offset[dimension];
            first..first + tensor.extent[dimension]
        };
        numbers = numbers.iter().flat_map(inner).collect();
    }
    numbers
}

#[test]
fn boxes_hold_each_element_of_the_range_once_in_order() {
    for seed in 0..2000 {
        let mut random = Random(seed);
        let dimensions = random.below(4);
        let shape: Vec<usize> =
            (0..dimensions).map(|_| [0, 1, 2, 3, 7, 16, 40][random.below(7)]).collect();
        let len: usize = shape.iter().product();
        let a = random.below(len + 1);
        let b = random.below(len + 1);
        let range = a.min(b)..a.max(b);
        let boxes = TensorBox::covering("t", Dtype::F32, &shape, range.clone());
        assert!(boxes.iter().all(|tensor| tensor.shape == shape), "seed {seed}");
        assert!(boxes.iter().flat_map(numbers).eq(range), "seed {seed}: {boxes:?}");
        assert!(boxes.len() <= 2 * dimensions + 1, "seed {seed}: {boxes:?}");
    }
}

#[test]
fn a_matrix_gives_the_end_of_a_row_rows_and_the_start_of_one() {
    let boxes = |range| -> Vec<_> {
        let boxes = TensorBox::covering("t", Dtype::F32, &[5, 4], range).into_iter();
        boxes.map(|tensor| (tensor.offset, tensor.extent)).collect()
    };
    let pair = |offset: [usize; 2], extent: [usize; 2]| (offset.to_vec(), extent.to_vec());
    assert_eq!(boxes(3..18), [pair([0, 3], [1, 1]), pair([1, 0], [3, 4]), pair([4, 0], [1, 2])]);
    assert_eq!(boxes(0..20), [pair([0, 0], [5, 4])]);
    assert_eq!(boxes(5..7), [pair([1, 1], [1, 2])]);
    assert_eq!(boxes(8..8), []);
}

#[test]
#[should_panic(expected = "elements 0..21 of 20")]
fn a_range_beyond_the_tensor_is_a_bug() {
    TensorBox::covering("t", Dtype::F32, &[5, 4], 0..21);
}
