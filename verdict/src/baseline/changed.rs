//! Detection of changed machines. A run without a baseline is compared with earlier records of its
//! workload on the same hosts: there they were machines of another type, or had more ranks.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};

use record::text::count;

use super::key::machine_type;
use super::{Baselines, Key, StoredRecord};
use crate::error::Error;
use record::{JobRecord, RankRecord, Record};

impl Baselines {
    /// Describes how a host of this run differs from its state when the same workload ran on it, on
    /// at least as many ranks, and was kept under another key, before anything was kept under this
    /// one. `None` if no such record shares a host, and once the records of this key were promoted.
    ///
    /// # Errors
    /// When records cannot be read.
    pub fn changed_machine(&self, new: &Record) -> Result<Option<String>, Error> {
        let own = Key::of(new);
        if self.is_promoted(&own)? {
            return Ok(None);
        }
        let since = self.since(&own, &self.records(&own)?)?;
        let since = since.unwrap_or(u64::MAX).min(new.started_unix_ms());
        for key in self.keys()? {
            if !own.is_other_machine_of(&key) {
                continue;
            }
            let kept = self.records(&key)?;
            let mut earlier =
                kept.iter().rev().filter(|kept| kept.record.started_unix_ms() < since);
            if let Some(text) = earlier.find_map(|kept| changed(kept, new)) {
                let copied = self.copied(&key)?.map(|copied| copied.from);
                let copied =
                    copied.map(|from| format!("; these are copies of {from}: promote there"));
                return Ok(Some(text + &copied.unwrap_or_default()));
            }
        }
        Ok(None)
    }
}

/// Selects the oldest record of each machine: it is older than a run if any of its records is.
pub(super) fn first_of_machines<'a>(records: impl Iterator<Item = &'a Record>) -> Vec<&'a Record> {
    let mut records: Vec<_> = records.collect();
    records.sort_by_key(|record| record.started_unix_ms());
    let mut known = BTreeSet::new();
    let shows_another = |record: &&'a Record| {
        let before = known.len();
        known.extend(record.ranks.iter().map(machine_of));
        known.len() > before
    };
    records.into_iter().filter(shows_another).collect()
}

/// Describes the change of the hosts that both ran on.
fn changed(kept: &StoredRecord, new: &Record) -> Option<String> {
    let text = match kept.record.ranks.len().cmp(&new.ranks.len()) {
        Ordering::Less => None,
        // It was another division of the same machine's ranks.
        Ordering::Equal if machine_type(&kept.record) == machine_type(new) => None,
        Ordering::Equal => another_machine(&kept.record, new),
        Ordering::Greater => fewer_ranks(&kept.record, new),
    };
    Some(format!("{} (by {})", text?, kept.path.display()))
}

/// Describes where ranks of the earlier run are missing, unless the runs are of different benchmark
/// jobs.
fn fewer_ranks(kept: &Record, new: &Record) -> Option<String> {
    let is_other_job = |(kept, new): (&JobRecord, &JobRecord)| kept.id != new.id;
    if kept.job.as_ref().zip(new.job.as_ref()).is_some_and(is_other_job) {
        return None;
    }
    let before = ranks_of_machines(kept);
    let now = ranks_of_machines(new);
    if !before.keys().any(|machine| now.contains_key(machine)) {
        return None;
    }
    let (machine, was, is) = before.into_iter().find_map(|(machine, was)| {
        let is = now.get(machine).copied().unwrap_or(0);
        (is < was).then_some((machine, was, is))
    })?;
    Some(format!("{machine} had {}, has {is}: a GPU or a host lost?", count(was, "rank")))
}

/// Counts the ranks of each machine.
fn ranks_of_machines(record: &Record) -> BTreeMap<&str, usize> {
    let mut found = BTreeMap::new();
    record.ranks.iter().for_each(|rank| *found.entry(machine_of(rank)).or_default() += 1);
    found
}

/// Describes the change of the first host that both ran on, with as many ranks.
fn another_machine(kept: &Record, new: &Record) -> Option<String> {
    let before = first_ranks(kept);
    let now = first_ranks(new);
    let (machine, was, is) =
        now.into_iter().find_map(|(machine, is)| Some((machine, *before.get(machine)?, is)))?;
    let mut changes = Vec::new();
    if device_of(was) != device_of(is) {
        changes.push(format!("had {}, has {}", device_of(was), device_of(is)));
    }
    if was.threads != is.threads {
        let (was, is) = (was.threads, is.threads);
        changes.push(format!("had {was} threads per rank, has {is}: SMT, cpuset, quota?"));
    }
    // The record has only the CPU model of rank 0's host.
    let first = |record: &Record| record.ranks.first().map_or("", machine_of).to_owned();
    let cpu = |record: &Record| record.environment.machine.cpu_model.clone().unwrap_or_default();
    let (first_was, first_is) = (first(kept), first(new));
    let (cpu_was, cpu_is) = (cpu(kept), cpu(new));
    let mut machine = machine;
    if first_was != first_is {
        if changes.is_empty() {
            changes.push(format!(
                "ran beside other hosts: rank 0 was on {first_was} ({cpu_was}), is on {first_is} \
                 ({cpu_is})"
            ));
        }
    } else if cpu_was != cpu_is && (changes.is_empty() || first_is == machine) {
        machine = &first_is;
        changes.push(format!("had {cpu_was}, has {cpu_is}"));
    }
    let changes =
        if changes.is_empty() { "was another machine".to_owned() } else { changes.join("; ") };
    Some(format!("{machine} {changes}"))
}

/// Finds the first rank on each machine.
fn first_ranks(record: &Record) -> BTreeMap<&str, &RankRecord> {
    let mut found = BTreeMap::new();
    for rank in &record.ranks {
        found.entry(machine_of(rank)).or_insert(rank);
    }
    found
}

/// Returns the node's name if known, or else the host's.
pub fn machine_of(rank: &RankRecord) -> &str {
    rank.node.as_deref().unwrap_or(&rank.host)
}

fn device_of(rank: &RankRecord) -> &str {
    rank.device.as_ref().map_or("no GPU", |device| device.name.as_str())
}

#[cfg(test)]
mod tests {
    use super::super::open_folder;
    use super::*;
    use record::fixtures::comparable;

    #[test]
    fn a_machine_that_lost_threads_has_changed_and_another_one_has_not() {
        let folder = tempfile::tempdir().unwrap();
        let store = Baselines::at(open_folder, folder.path().to_str().unwrap()).unwrap();
        let mut before = comparable();
        before.ranks.iter_mut().for_each(|rank| rank.threads = 2);
        store.add(&before).unwrap();
        let changed = |new: &Record| store.changed_machine(new).unwrap().unwrap_or_default();
        let of_night = |night: u64| {
            let mut record = comparable();
            record.attempts[0].started_unix_ms += night;
            record
        };
        let expected = "node-a had 2 threads per rank, has 1: SMT, cpuset, quota?";
        for night in 1..4 {
            let text = changed(&of_night(night));
            assert!(text.starts_with(expected), "night {night}: {text}");
            store.add(&of_night(night)).unwrap();
        }
        before.attempts[0].started_unix_ms += 9;
        assert_eq!(changed(&before), "", "it is what it was before");
        let mut elsewhere = of_night(4);
        elsewhere.ranks.iter_mut().for_each(|rank| rank.host += ".other");
        assert_eq!(changed(&elsewhere), "");
        let mut moved = of_night(4);
        moved.ranks[0].node = Some("n1".to_owned());
        moved.ranks[1].host = "node-a".to_owned();
        assert!(changed(&moved).starts_with("node-a had 2"), "{}", changed(&moved));
        let mut larger = of_night(4);
        larger.ranks.extend_from_within(..);
        assert_eq!(changed(&larger), "", "another world");
        store.promote(&Key::of(&comparable()), 1).unwrap();
        assert_eq!(changed(&of_night(4)), "", "promoted");
    }

    #[test]
    fn another_division_of_its_ranks_does_not_change_a_machine() {
        let folder = tempfile::tempdir().unwrap();
        let store = Baselines::at(open_folder, folder.path().to_str().unwrap()).unwrap();
        let mut record = comparable();
        record.ranks.iter_mut().for_each(|rank| rank.threads = 2);
        store.add(&record).unwrap();
        let changed = |new: &Record| store.changed_machine(new).unwrap().unwrap_or_default();
        record.attempts[0].started_unix_ms += 1;
        record.run["parallel"]["sharded"] = "weights".into();
        assert_eq!(changed(&record), "");
        record.ranks.iter_mut().for_each(|rank| rank.threads = 1);
        let text = changed(&record);
        assert!(text.starts_with("node-a had 2 threads per rank, has 1"), "{text}");
    }

    /// A gate compares with copies of the newest nights, all of which followed the larger world.
    #[test]
    fn copies_know_since_when_there_is_a_baseline() {
        let folders = [(); 3].map(|()| tempfile::tempdir().unwrap());
        let [store, copy, again] = folders
            .each_ref()
            .map(|it| Baselines::at(open_folder, it.path().to_str().unwrap()).unwrap());
        let of_night = |night: u64, ranks: usize| {
            let mut record = comparable();
            record.attempts[0].started_unix_ms += night;
            record.ranks.truncate(ranks);
            record
        };
        for (night, ranks) in [(1, 1), (2, 2), (3, 1), (4, 1)] {
            store.add(&of_night(night, ranks)).unwrap();
        }
        let changed = |store: &Baselines, night| {
            store.changed_machine(&of_night(night, 1)).unwrap().unwrap_or_default()
        };
        assert_eq!(changed(&store, 5), "");
        for (from, to) in [(&store, &copy), (&copy, &again)] {
            for key in from.keys().unwrap() {
                to.copy(from, &key, &from.records(&key).unwrap(), 1).unwrap();
            }
            let kept = to.records(&Key::of(&of_night(4, 1))).unwrap();
            assert_eq!(kept.iter().filter(|kept| kept.is_promoted).count(), 1);
            assert_eq!(changed(to, 5), "");
        }
        let list = again.place.path(&format!("{}/COPIED.json", Key::of(&of_night(4, 1))));
        let text = std::fs::read_to_string(&list).unwrap();
        let origin = store.place.path(&Key::of(&of_night(4, 1)).to_string());
        assert!(text.contains(&origin.display().to_string()), "{text}");
        let damaged = text.replace("since_unix_ms\": ", "since_unix_ms\": 9");
        for content in [damaged.as_str(), "{}", ""] {
            std::fs::write(&list, content).unwrap();
            assert!(again.changed_machine(&of_night(5, 1)).is_err(), "{content}");
        }
        std::fs::remove_file(&list).unwrap();
        assert!(again.changed_machine(&of_night(5, 1)).is_err(), "it is missing");
    }

    /// The newest nights of a pool may all have run on other nodes.
    #[test]
    fn copies_know_what_each_machine_was_and_miss_what_is_removed() {
        let folders = [(); 2].map(|()| tempfile::tempdir().unwrap());
        let [store, copy] = folders
            .each_ref()
            .map(|it| Baselines::at(open_folder, it.path().to_str().unwrap()).unwrap());
        let on = |night: u64, host: &str, threads: usize| {
            let mut record = comparable();
            record.attempts[0].started_unix_ms += night;
            for rank in &mut record.ranks {
                (rank.host, rank.node, rank.threads) = (host.to_owned(), None, threads);
            }
            record
        };
        for (night, host) in [(1, "node-a"), (2, "node-b"), (3, "node-b")] {
            store.add(&on(night, host, 2)).unwrap();
        }
        let key = Key::of(&on(1, "node-a", 2));
        copy.copy(&store, &key, &store.records(&key).unwrap(), 1).unwrap();
        for place in [&store, &copy] {
            let changed = |host| place.changed_machine(&on(4, host, 1)).unwrap();
            let text = changed("node-a").unwrap_or_default();
            assert!(text.starts_with("node-a had 2 threads per rank, has 1"), "{text}");
            let is_copy = std::ptr::eq(place, &copy);
            assert_eq!(text.contains("; these are copies of "), is_copy, "{text}");
            assert_eq!(changed("node-c"), None);
        }
        for StoredRecord { path, .. } in copy.records(&key).unwrap() {
            let text = std::fs::read(&path).unwrap();
            std::fs::remove_file(&path).unwrap();
            let error = copy.records(&key).unwrap_err().to_string();
            assert!(
                error.contains("COPIED.json: names ") && error.contains("does not exist"),
                "{error}"
            );
            std::fs::write(&path, text).unwrap();
        }
    }

    #[test]
    fn a_host_is_not_blamed_for_the_processor_of_another() {
        let of = |first: &str, second: &str, cpu: &str| {
            let mut record = comparable();
            for (rank, host) in record.ranks.iter_mut().zip([first, second]) {
                (rank.host, rank.node) = (host.to_owned(), None);
            }
            record.environment.machine.cpu_model = Some(cpu.to_owned());
            record
        };
        let text = another_machine(&of("a", "b", "EPYC"), &of("c", "a", "Xeon")).unwrap();
        let expected = "a ran beside other hosts: rank 0 was on a (EPYC), is on c (Xeon)";
        assert_eq!(text, expected);
        let text = another_machine(&of("a", "b", "EPYC"), &of("a", "c", "Xeon")).unwrap();
        assert_eq!(text, "a had EPYC, has Xeon");
    }

    #[test]
    fn fewer_ranks_on_the_same_machines_have_changed_and_another_job_has_not() {
        let folder = tempfile::tempdir().unwrap();
        let store = Baselines::at(open_folder, folder.path().to_str().unwrap()).unwrap();
        let on = |night: u64, ranks: &[(&str, usize)], job: Option<&str>| {
            let mut record = comparable();
            record.attempts[0].started_unix_ms += night;
            let rank = record.ranks[0].clone();
            record.ranks.clear();
            for (host, count) in ranks {
                let of_host = RankRecord { host: (*host).to_owned(), node: None, ..rank.clone() };
                record.ranks.extend(vec![of_host; *count]);
            }
            let job = job.map(|id| JobRecord { name: "nightly".to_owned(), id: id.to_owned() });
            record.job = job;
            record
        };
        let changed = |new: &Record| store.changed_machine(new).unwrap().unwrap_or_default();
        store.add(&on(1, &[("a", 8), ("b", 8)], Some("12"))).unwrap();
        let expected = "b had 8 ranks, has 7: a GPU or a host lost? (by ";
        for night in 2..4 {
            let lost_gpu = on(night, &[("a", 8), ("b", 7)], Some("12"));
            assert!(changed(&lost_gpu).starts_with(expected), "night {night}");
            store.add(&lost_gpu).unwrap();
        }
        let lost_host = changed(&on(5, &[("a", 8)], None));
        assert!(lost_host.starts_with("b had 7 ranks, has 0: "), "{lost_host}");
        assert_eq!(changed(&on(5, &[("c", 8)], None)), "", "elsewhere");
        assert_eq!(changed(&on(5, &[("a", 8)], Some("13"))), "", "as many as its benchmark says");
        assert_eq!(changed(&on(0, &[("a", 8)], None)), "", "the larger world came later");
        let mut trial = on(0, &[("a", 8)], None);
        trial.status = record::Status::Failed;
        store.add(&trial).unwrap();
        assert_eq!(changed(&on(5, &[("a", 8)], None)), lost_host, "a failed run is no baseline");
        store.promote(&Key::of(&on(2, &[("a", 8), ("b", 7)], None)), 1).unwrap();
        assert_eq!(changed(&on(5, &[("a", 8), ("b", 7)], Some("12"))), "", "promoted");
    }
}
