//! Properties that runs must share to be compared by default: workload, world size and its
//! division, and machine type.

use std::fmt;

use record::{MeshSizes, Record};

/// A workload on a number of machines of one type; its text is a folder.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key {
    workload: String,
    machine: String,
}

impl Key {
    /// Builds a key from its folders.
    pub(super) fn new(workload: &str, machine: &str) -> Self {
        Self { workload: workload.to_owned(), machine: machine.to_owned() }
    }

    /// Returns the key of a record.
    pub fn of(record: &Record) -> Self {
        let machine = format!("{}{}", machine_type(record), division(record));
        let name = format!("{}-{}", record.workload.name, record.workload.id);
        Self::new(&folder_name(&name), &folder_name(&machine))
    }
}

impl Key {
    /// Returns whether the other key is of the same workload on another machine.
    pub(super) fn is_other_machine_of(&self, other: &Self) -> bool {
        self.workload == other.workload && self.machine != other.machine
    }
}

impl fmt::Display for Key {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}/{}", self.workload, self.machine)
    }
}

/// Returns the number of ranks with the type of the first one's machine.
pub(super) fn machine_type(record: &Record) -> String {
    let gpu = record.ranks.first().and_then(|rank| rank.device.as_ref());
    let cpu = record.environment.machine.cpu_model.as_deref();
    let machine = gpu.map(|gpu| gpu.name.as_str()).or(cpu).unwrap_or("unknown");
    let ranks = record.ranks.len();
    let threads = record.ranks.first().map_or(0, |rank| rank.threads);
    match gpu {
        Some(_) => format!("{ranks}x-{machine}"),
        None => format!("{ranks}x{threads}-threads-{machine}"),
    }
}

/// Returns the division of ranks and state: runs have the same text if each rank of them does the
/// same work and sends the same data. That is so for ranks in either dimension alone, with the same
/// state shared in effect.
fn division(record: &Record) -> String {
    let sizes = MeshSizes::of(&record.ranks);
    let sizes = sizes.map(|MeshSizes { data, shard }| format!("-data{data}-shard{shard}"));
    let in_effect = record.sharded_in_effect();
    let sharded = (in_effect != "none").then(|| format!("-{in_effect}"));
    let keeps_weights = in_effect == "weights" && record.run["parallel"]["reshard"] == false;
    let kept = keeps_weights.then(|| "-kept".to_owned());
    [sizes, sharded, kept].into_iter().flatten().collect()
}

fn folder_name(text: &str) -> String {
    text.chars().map(safe).collect()
}

/// Replaces a character that is unsafe in file names or keys of object stores.
pub(super) fn safe(character: char) -> char {
    let is_safe = character.is_ascii_alphanumeric() || "-._".contains(character);
    if is_safe { character } else { '-' }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use serde_json::json;

    use super::*;
    use record::fixtures::comparable;
    use record::{MeshPlace, RankRecord};

    #[test]
    fn a_key_is_a_folder() {
        let mut record = comparable();
        record.environment.machine.cpu_model = Some("AMD EPYC 9B14 / 2".to_owned());
        let key = Key::of(&record).to_string();
        assert_eq!(key, "smoke-0123456789ab/2x1-threads-AMD-EPYC-9B14---2");
    }

    /// A run of four ranks in dimensions of these sizes, of which one may be the rest.
    fn divided(sizes: [usize; 2], sharded: &str) -> Record {
        let mut record = comparable();
        let [data, shard] = sizes;
        record.run["parallel"] = json!({ "data": data, "shard": shard, "sharded": sharded });
        let rank = record.ranks[0].clone();
        let place = |number| MeshPlace { data: number / shard, shard: number % shard };
        let mesh = |number| (data > 1 && shard > 1).then(|| place(number));
        let rank = |number| RankRecord { rank: number, mesh: mesh(number), ..rank.clone() };
        record.ranks = (0..4).map(rank).collect();
        record
    }

    fn key(sizes: [usize; 2], sharded: &str) -> String {
        Key::of(&divided(sizes, sharded)).to_string()
    }

    #[test]
    fn the_division_among_ranks_is_in_the_key() {
        let flat = key([1, 0], "none");
        assert!(flat.ends_with("/4x1-threads-unknown"), "{flat}");
        for (sizes, sharded, division) in [
            ([2, 2], "none", "-data2-shard2"),
            ([2, 2], "optimizer", "-data2-shard2-optimizer"),
            ([1, 4], "gradients", "-gradients"),
            ([1, 0], "weights", "-weights"),
            ([0, 1], "weights", "-gradients"),
        ] {
            assert_eq!(key(sizes, sharded), format!("{flat}{division}"));
        }
        let mut kept = divided([1, 4], "weights");
        kept.run["parallel"]["reshard"] = false.into();
        assert_eq!(Key::of(&kept).to_string(), format!("{flat}-weights-kept"));
    }

    #[test]
    fn divisions_that_compute_and_send_the_same_have_the_same_key() {
        for sharded in ["none", "optimizer", "gradients"] {
            let expected = key([1, 0], sharded);
            for sizes in [[0, 1], [4, 1], [1, 4], [4, 0]] {
                assert_eq!(key(sizes, sharded), expected, "{sizes:?}, {sharded}");
            }
        }
        for sizes in [[0, 1], [4, 1], [4, 0]] {
            assert_eq!(key(sizes, "weights"), key(sizes, "gradients"), "{sizes:?}");
        }
        let alone = |sharded: &str| {
            let mut record = divided([1, 0], sharded);
            record.ranks.truncate(1);
            record.run["parallel"]["reshard"] = false.into();
            Key::of(&record)
        };
        for sharded in ["optimizer", "gradients", "weights"] {
            assert_eq!(alone(sharded), alone("none"), "{sharded}");
        }
    }

    #[test]
    fn a_record_of_an_earlier_version_has_the_key_of_today() {
        let mut former = divided([1, 0], "optimizer");
        former.run = json!({ "run": { "engine": "fused", "shard_optimizer": true } });
        let bytes = serde_json::to_vec(&former.sealed()).unwrap();
        let former = Record::parse(Path::new("record.json"), &bytes).unwrap();
        assert_eq!(Key::of(&former).to_string(), key([1, 0], "optimizer"));
    }
}
