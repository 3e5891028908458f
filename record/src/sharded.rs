//! State that the ranks of a run share in effect, whatever its setting.

use crate::record::Record;
use crate::sections::MeshSizes;

impl Record {
    /// Returns the kind of state that ranks share in effect: the value of `parallel.sharded` with
    /// which runs compute and send the same. That is `none` for a single rank, and `gradients`
    /// instead of `weights` where each rank is a shard group of its own, which holds all weights.
    pub fn sharded_in_effect(&self) -> &str {
        let sharded = self.run["parallel"]["sharded"].as_str().unwrap_or("none");
        match sharded {
            _ if self.ranks.len() <= 1 => "none",
            "weights" if self.shard_ranks() == 1 => "gradients",
            sharded => sharded,
        }
    }

    /// Returns the number of ranks in a shard group.
    fn shard_ranks(&self) -> usize {
        let parallel = &self.run["parallel"];
        let ranks = self.ranks.len();
        // With ranks in two dimensions, they have places.
        match MeshSizes::of(&self.ranks) {
            Some(sizes) => sizes.shard,
            None if parallel["shard"] == 1 || parallel["data"] == ranks => 1,
            None => ranks,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use crate::fixtures::finished;
    use crate::sections::{MeshPlace, RankRecord};

    /// Sharded in effect by four ranks in dimensions of these sizes, of which one may be the rest.
    fn in_effect(sizes: [usize; 2], sharded: &str) -> String {
        let mut record = finished();
        let [data, shard] = sizes;
        record.run["parallel"] = json!({ "data": data, "shard": shard, "sharded": sharded });
        let rank = record.ranks[0].clone();
        let place = |rank: usize| MeshPlace { data: rank / shard, shard: rank % shard };
        let mesh = |rank| (data > 1 && shard > 1).then(|| place(rank));
        record.ranks =
            (0..4).map(|number| RankRecord { mesh: mesh(number), ..rank.clone() }).collect();
        record.sharded_in_effect().to_owned()
    }

    #[test]
    fn weights_of_a_shard_group_of_one_rank_are_not_shared() {
        for sizes in [[0, 1], [4, 1], [4, 0]] {
            assert_eq!(in_effect(sizes, "weights"), "gradients", "{sizes:?}");
            assert_eq!(in_effect(sizes, "optimizer"), "optimizer", "{sizes:?}");
        }
        for sizes in [[1, 0], [1, 4], [0, 4], [2, 2]] {
            for sharded in ["none", "optimizer", "gradients", "weights"] {
                assert_eq!(in_effect(sizes, sharded), sharded, "{sizes:?}");
            }
        }
    }

    #[test]
    fn a_single_rank_shares_nothing() {
        let mut record = finished();
        record.ranks.truncate(1);
        for sharded in ["none", "optimizer", "gradients", "weights"] {
            record.run["parallel"] = json!({ "data": 1, "shard": 0, "sharded": sharded });
            assert_eq!(record.sharded_in_effect(), "none");
        }
    }

    #[test]
    fn a_record_without_the_setting_shares_nothing() {
        assert_eq!(finished().sharded_in_effect(), "none");
    }
}
