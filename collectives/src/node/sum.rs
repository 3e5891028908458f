//! Sums of several ranks' elements, in the order of the ranks.

use std::ops::AddAssign;

use super::stream;

/// Elements that are summed at a time: small enough to stay in the first-level cache.
const TILE: usize = 1024;

/// Adds all ranks' elements in the order of the ranks into `own`, which holds those of rank `me`.
/// Where `copy` is given, it gets the sums too, past the caches.
///
/// # Panics
/// When lengths differ.
pub(crate) fn in_order<'a, E: Copy + Default + AddAssign + 'a>(
    own: &mut [E],
    me: usize,
    ranks: usize,
    of: impl Fn(usize) -> &'a [E],
    mut copy: Option<&mut [E]>,
) {
    for start in (0..own.len()).step_by(TILE) {
        let range = start..own.len().min(start + TILE);
        let sums = &mut own[range.clone()];
        let theirs = |rank: usize| &of(rank)[range.clone()];
        match me {
            0 => {}
            1 => add(sums, theirs(0)), // the sum of two has the same bits in either order
            _ => {
                let mut before = [E::default(); TILE];
                let before = &mut before[..sums.len()];
                before.copy_from_slice(theirs(0));
                (1..me).for_each(|rank| add(before, theirs(rank)));
                add(sums, before);
            }
        }
        (me + 1..ranks).for_each(|rank| add(sums, theirs(rank)));
        if let Some(copy) = &mut copy {
            stream::copy(sums, &mut copy[range.clone()]);
        }
    }
}

fn add<E: Copy + AddAssign>(sums: &mut [E], addends: &[E]) {
    assert_eq!(sums.len(), addends.len(), "lengths of addends");
    for (sum, addend) in sums.iter_mut().zip(addends) {
        *sum += *addend;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Numbers whose sum depends on the order.
    fn number(rank: usize, index: usize) -> f32 {
        let mixed = (index * 7919 + rank * 104_729) % 1009;
        mixed as f32 * 10f32.powi((mixed % 9) as i32 - 4) - 0.3
    }

    #[test]
    fn the_order_is_the_ranks_whoever_sums() {
        for (ranks, len) in [(1, 10), (2, 5000), (3, TILE), (5, 2 * TILE + 1), (4, 0)] {
            let all: Vec<Vec<f32>> = (0..ranks)
                .map(|rank| (0..len).map(|index| number(rank, index)).collect())
                .collect();
            let expected: Vec<u32> = (0..len)
                .map(|index| {
                    let first = all[0][index];
                    (1..ranks).fold(first, |sum, rank| sum + all[rank][index]).to_bits()
                })
                .collect();
            for me in 0..ranks {
                let (mut own, mut copy) = (all[me].clone(), vec![0.0; len]);
                in_order(&mut own, me, ranks, |rank| &all[rank], Some(&mut copy));
                let bits = |sums: &[f32]| sums.iter().map(|sum| sum.to_bits()).collect::<Vec<_>>();
                assert!(bits(&own) == expected, "rank {me} of {ranks}, {len} elements");
                assert!(bits(&copy) == expected, "the copy of rank {me} of {ranks}");
            }
        }
    }
}
