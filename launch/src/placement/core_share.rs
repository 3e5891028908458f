//! Ranks of a machine that may run on the same cores.

use super::location::RankLocation;

/// Position of a rank among those on its machine that may run on exactly the same cores.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct CoreShare {
    /// 0 to count - 1.
    pub(super) index: usize,
    /// Number of ranks that share the cores, including this one.
    pub(super) count: usize,
    /// Number of threads that this rank's parts of its cores add up to, if other ranks may run on
    /// some of the cores but not on all, so that no core is this rank's alone.
    pub(super) overlapping_threads: Option<usize>,
}

impl CoreShare {
    /// Computes the share of one rank among all; `locations` has one entry per rank.
    ///
    /// # Panics
    /// If there is no such rank.
    pub(super) fn new(rank: usize, locations: &[RankLocation]) -> Self {
        let own = &locations[rank];
        let is_sharing = |other: &&RankLocation| {
            own.is_on_same_machine(other) && have_same_cores(&own.cores, &other.cores)
        };
        let count = locations.iter().filter(is_sharing).count();
        let neighbours: Vec<_> =
            locations.iter().filter(|other| own.is_on_same_machine(other)).collect();
        let ranks_on = |core| neighbours.iter().filter(|other| other.cores.contains(core)).count();
        let ranks: Vec<_> = own.cores.iter().map(ranks_on).collect();
        let parts: f64 = ranks.iter().map(|&ranks| 1.0 / ranks as f64).sum();
        let is_overlapping = ranks.iter().any(|&ranks| ranks > count);
        Self {
            index: locations[..rank].iter().filter(is_sharing).count(),
            count,
            // Rounding may make three thirds slightly less than one.
            overlapping_threads: is_overlapping.then_some((parts + 1e-6) as usize),
        }
    }
}

fn have_same_cores(a: &[usize], b: &[usize]) -> bool {
    a.len() == b.len() && a.iter().all(|core| b.contains(core))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn location(host: &str, boot_id: &str, cores: &[usize]) -> RankLocation {
        RankLocation { host: host.to_owned(), boot_id: boot_id.to_owned(), cores: cores.to_vec() }
    }

    fn shares(locations: &[RankLocation]) -> Vec<(usize, usize, Option<usize>)> {
        let share = |rank| CoreShare::new(rank, locations);
        let shares = (0..locations.len()).map(share);
        shares.map(|s| (s.index, s.count, s.overlapping_threads)).collect()
    }

    #[test]
    fn only_ranks_with_the_same_cores_on_the_same_machine_share_them() {
        let ranks = [
            location("a", "x", &[0, 1]),
            location("a", "x", &[1, 0]),
            location("a", "x", &[2, 3]),
            location("b", "y", &[0, 1]),
        ];
        assert_eq!(shares(&ranks), [(0, 2, None), (1, 2, None), (0, 1, None), (0, 1, None)]);
    }

    #[test]
    fn pods_of_one_machine_share_its_cores() {
        let pods = [location("pod-0", "x", &[0, 1]), location("pod-1", "x", &[0, 1])];
        assert_eq!(shares(&pods), [(0, 2, None), (1, 2, None)]);
        // The host is all that is known if the kernel hides its boot id.
        let hidden = [location("pod-0", "", &[0, 1]), location("pod-1", "", &[0, 1])];
        assert_eq!(shares(&hidden), [(0, 1, None), (0, 1, None)]);
        let one = [location("pod-0", "", &[0, 1]), location("pod-0", "", &[0, 1])];
        assert_eq!(shares(&one), [(0, 2, None), (1, 2, None)]);
    }

    #[test]
    fn cores_that_overlap_in_part_are_no_rank_s_alone() {
        let ranks = [location("a", "x", &[0, 1]), location("a", "x", &[1])];
        assert_eq!(shares(&ranks), [(0, 1, Some(1)), (0, 1, Some(0))]);
        let three = [
            location("a", "x", &[0, 1, 2, 3, 4, 5]),
            location("a", "x", &[0, 1, 2, 3, 4, 5]),
            location("b", "x", &[3, 4, 5]),
        ];
        assert_eq!(shares(&three), [(0, 2, Some(2)), (1, 2, Some(2)), (0, 1, Some(1))]);
    }
}
