//! Seeded permutation without a table, computed one element at a time.
//!
//! An unbalanced Feistel network permutes all numbers of a given bit width whatever its round
//! function (Luby, Rackoff 1988, "How to construct pseudorandom permutations"). Applying it until
//! the number falls below `size` (cycle walking) makes it a permutation of `0..size` (Black,
//! Rogaway 2002, "Ciphers with arbitrary finite domains"). That takes less than two applications on
//! average, because more than half of the numbers of that width are below `size`.

use models::rng::Stream;

const ROUNDS: usize = 8; // even, so that the halves end up with their original widths

/// Bijection of `0..size`, O(1) in time and memory.
#[derive(Debug, Clone, Copy)]
pub(super) struct Permutation {
    size: u64,
    left_bits: u32,
    right_bits: u32,
    rounds: [Stream; ROUNDS],
}

impl Permutation {
    /// Creates the permutation of `0..size` that belongs to a random stream.
    ///
    /// # Panics
    /// If `size` is 0.
    pub(super) fn new(size: u64, stream: Stream) -> Self {
        assert!(size > 0, "a permutation of nothing");
        let bits = u64::BITS - (size - 1).leading_zeros();
        let rounds = std::array::from_fn(|round| stream.child(round as u64));
        Self { size, left_bits: bits / 2, right_bits: bits - bits / 2, rounds }
    }

    /// Returns the image of `index`.
    ///
    /// # Panics
    /// If `index` is not below the size.
    pub(super) fn get(&self, index: u64) -> u64 {
        assert!(index < self.size, "index {index} of a permutation of {}", self.size);
        let mut value = self.feistel(index);
        while value >= self.size {
            value = self.feistel(value);
        }
        value
    }

    fn feistel(&self, value: u64) -> u64 {
        let mut left_bits = self.left_bits;
        let mut right_bits = self.right_bits;
        let mut left = value >> right_bits;
        let mut right = value & mask(right_bits);
        for round in self.rounds {
            left ^= round.bits(right) & mask(left_bits);
            std::mem::swap(&mut left, &mut right);
            std::mem::swap(&mut left_bits, &mut right_bits);
        }
        (left << right_bits) | right
    }
}

fn mask(bits: u32) -> u64 {
    (1 << bits) - 1 // bits is at most 32: half of 64
}

#[cfg(test)]
mod tests {
    use models::rng::Purpose;

    use super::*;

    fn permutation(size: u64, seed: u64) -> Vec<u64> {
        let permutation = Permutation::new(size, Stream::new(seed, Purpose::Order));
        (0..size).map(|index| permutation.get(index)).collect()
    }

    #[test]
    fn every_size_is_a_bijection() {
        for size in (1..200).chain([255, 256, 257, 1000, 4096, 65_537]) {
            let mut image = permutation(size, size);
            image.sort_unstable();
            assert!(image.into_iter().eq(0..size), "size {size}");
        }
    }

    #[test]
    fn seeds_give_unrelated_orders() {
        let first = permutation(1000, 1);
        let second = permutation(1000, 2);
        let same = first.iter().zip(&second).filter(|(a, b)| a == b).count();
        assert!(same < 10, "{same} of 1000 at the same position; 1 is expected");
        let fixed = (0..).zip(&first).filter(|(index, value)| index == *value).count();
        assert!(fixed < 10, "{fixed} fixed points; 1 is expected");
    }

    #[test]
    fn neighbours_are_spread() {
        let order = permutation(100_000, 3);
        let steps: f64 = order.windows(2).map(|pair| pair[0].abs_diff(pair[1]) as f64).sum();
        let mean = steps / 99_999.0 / 100_000.0;
        assert!((mean - 1.0 / 3.0).abs() < 0.01, "mean distance {mean}, 1/3 for a random order");
    }

    #[test]
    fn the_largest_sizes_work() {
        let permutation = Permutation::new(u64::MAX, Stream::new(1, Purpose::Order));
        assert_ne!(permutation.get(0), permutation.get(u64::MAX - 1));
    }
}
