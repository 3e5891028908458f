//! Digest of weights: a sum over elements, which ranks that own different elements can add up.

use rayon::prelude::*;
use record::WeightsDigest;

use crate::rng::{Purpose, Stream};

/// Elements that one task adds up.
const CHUNK: usize = 1 << 15;

/// Returns the part of the weights' digest that these elements of a tensor have, from its element
/// `first` on. The digest of a model is the sum of those of all its elements, in any order and any
/// pieces.
///
/// Each element contributes the product of a random number of 128 bits, a function of the tensor's
/// name and the element's index, and its own bits with a one after them, so that zeros count as
/// well. That is multilinear hashing (Carter and Wegman 1979, "Universal classes of hash
/// functions"): two models that differ, be it by two elements that were exchanged, have the same
/// sum with a probability of at most 2^-96.
pub fn digest_elements(tensor: &str, first: usize, elements: &[f32]) -> WeightsDigest {
    let stream = Stream::new(0, Purpose::Digest).named(tensor);
    let [high, low] = [0, 1].map(|half| stream.child(half));
    let sums = elements.par_chunks(CHUNK).enumerate().map(|(chunk, elements)| {
        let start = (first + chunk * CHUNK) as u64;
        let mut sum = 0_u128;
        for (index, element) in (start..).zip(elements) {
            let random = u128::from(high.bits(index)) << 64 | u128::from(low.bits(index));
            let factor = u64::from(element.to_bits()) << 1 | 1;
            sum = sum.wrapping_add(random.wrapping_mul(u128::from(factor)));
        }
        WeightsDigest::new(sum)
    });
    sums.sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Numbers of which no two are equal, and more than one task's.
    fn elements() -> Vec<f32> {
        let stream = Stream::new(1, Purpose::Test);
        (0..2 * CHUNK as u64 + 17).map(|index| stream.signed(index) as f32).collect()
    }

    /// Digests in records are compared with those of other versions.
    #[test]
    fn digests_are_frozen() {
        assert_eq!(digest_elements("empty", 0, &[]), WeightsDigest::default());
        let found = digest_elements("h.0.ln_1.weight", 5, &[1.0, -0.5, f32::NAN]);
        assert_eq!(found.to_string(), "v2:e63591ab77f4d4a7bd70b5acc11b3ddc");
    }

    #[test]
    fn pieces_add_up_to_the_whole_in_any_order() {
        let elements = elements();
        let whole = digest_elements("a", 0, &elements);
        for cut in [1, 100, CHUNK - 1, CHUNK, elements.len() - 1] {
            let (head, tail) = elements.split_at(cut);
            let parts = [digest_elements("a", cut, tail), digest_elements("a", 0, head)];
            assert_eq!(parts.into_iter().sum::<WeightsDigest>(), whole, "cut at {cut}");
        }
    }

    #[test]
    fn every_change_is_seen() {
        let elements = elements();
        let whole = digest_elements("a", 0, &elements);
        let is_seen = |changed: &[f32]| digest_elements("a", 0, changed) != whole;
        let last = elements.len() - 1;
        for [one, other] in [[0, 1], [0, last], [7, CHUNK], [CHUNK + 1, last]] {
            let mut swapped = elements.clone();
            swapped.swap(one, other);
            assert!(is_seen(&swapped), "elements {one} and {other} are exchanged");
            let mut changed = elements.clone();
            changed[one] = -changed[one];
            assert!(is_seen(&changed), "the sign of element {one}");
            changed[one] = f32::from_bits(elements[one].to_bits() ^ 1);
            assert!(is_seen(&changed), "the last bit of element {one}");
        }
        let mut moved = elements.clone();
        moved.rotate_left(1);
        assert!(is_seen(&moved), "all elements by one");
        assert!(is_seen(&elements[..last]), "an element less");
        let [zero, negative_zero] = [0.0_f32, -0.0].map(|zero| digest_elements("a", 0, &[zero]));
        assert_ne!(zero, negative_zero);
        assert_ne!(zero, WeightsDigest::default(), "zeros count");
    }

    #[test]
    fn exchanged_tensors_are_seen() {
        let [one, other] = [&[1.0, 2.0, 3.0], &[4.0, 5.0, 6.0]];
        let both = |a: &[f32], b: &[f32]| -> WeightsDigest {
            [digest_elements("a", 0, a), digest_elements("b", 0, b)].into_iter().sum()
        };
        assert_ne!(both(one, other), both(other, one));
    }
}
