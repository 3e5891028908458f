//! Groups of ranks that are alike.

/// Returns the ranks of each group with equal keys, both in the order of `ranks`.
pub fn groups<K: PartialEq>(ranks: impl Iterator<Item = (usize, K)>) -> Vec<Vec<usize>> {
    let mut groups: Vec<(K, Vec<usize>)> = Vec::new();
    for (rank, key) in ranks {
        match groups.iter_mut().find(|group| group.0 == key) {
            Some(group) => group.1.push(rank),
            None => groups.push((key, vec![rank])),
        }
    }
    groups.into_iter().map(|group| group.1).collect()
}
