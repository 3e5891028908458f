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
        let gpu = record.ranks.first().and_then(|rank| rank.device.as_ref());
        let cpu = record.environment.machine.cpu_model.as_deref();
        let machine = gpu.map(|gpu| gpu.name.as_str()).or(cpu).unwrap_or("unknown");
        let ranks = record.ranks.len();
        let threads = record.ranks.first().map_or(0, |rank| rank.threads);
        let machine = match gpu {
            Some(_) => format!("{ranks}x-{machine}"),
            None => format!("{ranks}x{threads}-threads-{machine}"),
        };
        let division = division(record);
        let machine = format!("{machine}{division}");
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

/// Returns the sizes of the dimensions, where there are ranks in both, and what is sharded.
fn division(record: &Record) -> String {
    let sizes = MeshSizes::of(&record.ranks);
    let sizes = sizes.map(|MeshSizes { data, shard }| format!("-data{data}-shard{shard}"));
    let sharded = record.run["parallel"]["sharded"].as_str().filter(|sharded| *sharded != "none");
    let sharded = sharded.map(|sharded| format!("-{sharded}"));
    format!("{}{}", sizes.unwrap_or_default(), sharded.unwrap_or_default())
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

    #[test]
    fn the_division_among_ranks_is_in_the_key() {
        let mut record = comparable();
        let flat = Key::of(&record).to_string();
        record.run["parallel"]["sharded"] = "optimizer".into();
        assert_eq!(Key::of(&record).to_string(), format!("{flat}-optimizer"));
        let rank = record.ranks[0].clone();
        record.ranks = (0..4)
            .map(|number| {
                let place = MeshPlace { data: number / 2, shard: number % 2 };
                RankRecord { rank: number, mesh: Some(place), ..rank.clone() }
            })
            .collect();
        let key = Key::of(&record).to_string();
        assert!(key.ends_with("-data2-shard2-optimizer"), "{key}");
    }
}
