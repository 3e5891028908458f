//! Ranks that can be compared with each other.

use crate::RankRecord;
use crate::groups::groups;

/// Returns the ranks of each class, by number: those with equal devices, or with equal instruction
/// sets of their matrix products. Ranks all have micro-batches of one size.
pub fn classes(ranks: &[RankRecord]) -> Vec<Vec<usize>> {
    let device = |rank: &RankRecord| rank.device.as_ref().map(|device| device.name.clone());
    let key = |rank: &RankRecord| (device(rank), rank.matmul_kernel.clone());
    groups(ranks.iter().map(|rank| (rank.rank, key(rank))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::finished;

    #[test]
    fn ranks_of_one_kernel_are_a_class() {
        let of = |(rank, kernel): (usize, &&str)| RankRecord {
            rank,
            matmul_kernel: Some((*kernel).to_owned()),
            ..finished().ranks[0].clone()
        };
        let ranks: Vec<_> = ["avx512", "avx2", "avx512"].iter().enumerate().map(of).collect();
        assert_eq!(classes(&ranks), [vec![0, 2], vec![1]]);
    }
}
