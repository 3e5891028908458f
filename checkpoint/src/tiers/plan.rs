//! Plan of a restore: a function of what all ranks see, without any input or output.
//!
//! Its work is proportional to the copies that are seen, so that it can be simulated for worlds of
//! any size.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;

use serde::{Deserialize, Serialize};

use crate::format::name::CheckpointName;
use crate::tier::Scope;

/// View of one rank of one tier.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct TierInventory {
    /// Number of the tier, the nearest first.
    pub tier: usize,
    /// Name of the disk that the rank sees, on a tier of node scope: the same for all ranks of a
    /// node. `None` where it is not known, which counts as a disk of its own.
    pub disk: Option<String>,
    /// Copies of checkpoints, whole ones or parts.
    pub copies: Vec<FoundCopy>,
    /// Checkpoint that an earlier restore rejected, where nothing is committed.
    pub rejected: Option<String>,
    /// Reason why the tier could not be listed.
    pub flaw: Option<Flaw>,
    /// Reason why a tier that refused writes could not be listed: it counts as empty.
    pub refused: Option<String>,
}

/// Copy of a checkpoint that is committed where it was seen.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct FoundCopy {
    /// Name of the checkpoint.
    pub checkpoint: String,
    /// Result of reading the copy.
    pub found: Found,
}

/// State of a copy that a rank found.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum Found {
    /// A valid manifest and files.
    Files {
        /// Digest of the manifest: copies with the same one are of the same bytes.
        digest: String,
        /// Ranks that saved it.
        world: usize,
        /// Saved ranks whose files are there.
        ranks: Vec<Range<usize>>,
    },
    /// A manifest of another run, workload or format.
    Refused,
    /// Its manifest is damaged or cannot be read.
    Flawed(Flaw),
}

/// Reason why something is not usable.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Flaw {
    /// The error, as text.
    pub reason: String,
    /// Set if trying again may help.
    pub is_transient: bool,
}

/// Place that holds copies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Source {
    /// Number of the tier.
    pub tier: usize,
    /// The rank whose node it is, on a tier of node scope.
    pub node_of: Option<usize>,
}

impl Source {
    /// The rank that lists and changes it.
    pub fn owner(self) -> usize {
        self.node_of.unwrap_or(0)
    }

    /// The place that a rank sees on a tier.
    pub(super) fn seen(scope: Scope, tier: usize, rank: usize) -> Self {
        Self { tier, node_of: (scope == Scope::Node).then_some(rank) }
    }
}

/// Disks of nodes, which all ranks of a node see.
#[derive(Debug, Default)]
struct Disks {
    /// For each source, that of the first rank with the same disk.
    first: BTreeMap<Source, Source>,
}

impl Disks {
    fn of(scopes: &[Scope], inventories: &[Vec<TierInventory>]) -> Self {
        let mut named: BTreeMap<(usize, &str), Source> = BTreeMap::new();
        let mut disks = Self::default();
        for (rank, inventories) in inventories.iter().enumerate() {
            for inventory in inventories {
                let source = Source::seen(scopes[inventory.tier], inventory.tier, rank);
                if let Some(disk) = &inventory.disk {
                    let first = *named.entry((inventory.tier, disk)).or_insert(source);
                    disks.first.insert(source, first);
                }
            }
        }
        disks
    }

    /// The source that stands for all ranks with the disk of this one.
    fn first(&self, source: Source) -> Source {
        self.first.get(&source).copied().unwrap_or(source)
    }
}

/// Checkpoints that could be restored.
#[derive(Debug, Default)]
pub struct Plan {
    /// Newest first.
    pub candidates: Vec<Candidate>,
}

/// Checkpoint that is committed somewhere.
#[derive(Debug, Default)]
pub struct Candidate {
    /// Name of the checkpoint.
    pub checkpoint: String,
    /// Versions: one, unless manifests of the same name differ.
    pub versions: Vec<Version>,
    /// Copies whose manifests are not usable.
    pub flawed: Vec<(Source, Flaw)>,
    /// A copy of another run, workload or format.
    pub refused: Option<Source>,
    /// Places that have something of it.
    pub holders: Vec<Source>,
    disks: Rc<Disks>,
}

/// Copies with the same manifest.
#[derive(Debug)]
pub struct Version {
    digest: String,
    /// Source of the manifest.
    pub manifest: Source,
    /// Sources of the files of each saved rank, the nearest first.
    sources: Vec<Vec<Source>>,
    disks: Rc<Disks>,
}

impl Plan {
    /// Puts together what the ranks see, for tiers of these scopes.
    pub fn new(scopes: &[Scope], inventories: &[Vec<TierInventory>]) -> Self {
        let disks = Rc::new(Disks::of(scopes, inventories));
        let mut candidates: BTreeMap<Reverse<CheckpointName>, Candidate> = BTreeMap::new();
        for (rank, inventories) in inventories.iter().enumerate() {
            for inventory in inventories {
                let source = Source::seen(scopes[inventory.tier], inventory.tier, rank);
                for copy in &inventory.copies {
                    let Ok(name) = copy.checkpoint.parse() else { continue };
                    let new = || Candidate { disks: Rc::clone(&disks), ..Candidate::default() };
                    candidates.entry(Reverse(name)).or_insert_with(new).add(copy, source);
                }
            }
        }
        let mut candidates: Vec<_> = candidates.into_values().collect();
        for version in candidates.iter_mut().flat_map(|candidate| &mut candidate.versions) {
            let nearest = |source: &Source| (source.node_of.is_none(), source.tier);
            version.sources.iter_mut().for_each(|sources| sources.sort_by_key(nearest));
        }
        Self { candidates }
    }
}

impl Candidate {
    fn add(&mut self, copy: &FoundCopy, source: Source) {
        self.checkpoint.clone_from(&copy.checkpoint);
        self.holders.push(source);
        match &copy.found {
            Found::Files { digest, world, ranks } => {
                let known = self.versions.iter().position(|version| version.digest == *digest);
                let version = known.unwrap_or_else(|| {
                    let sources = vec![Vec::new(); *world];
                    let (digest, disks) = (digest.clone(), Rc::clone(&self.disks));
                    self.versions.push(Version { digest, manifest: source, sources, disks });
                    self.versions.len() - 1
                });
                let version = &mut self.versions[version];
                for rank in ranks.iter().cloned().flatten() {
                    version.sources[rank].push(source);
                }
            }
            Found::Refused => self.refused = Some(source),
            Found::Flawed(flaw) => self.flawed.push((source, flaw.clone())),
        }
    }
}

impl Candidate {
    /// Returns whether a place is the only one with some of the files, so that the checkpoint could
    /// not be restored without it.
    pub fn needs(&self, source: Source) -> bool {
        let restorable = self.versions.iter().filter(|version| version.missing().is_empty());
        restorable.flat_map(|version| &version.sources).any(|sources| sources[..] == [source])
    }

    /// Returns the source that stands for all ranks that see the same disk.
    pub fn disk(&self, source: Source) -> Source {
        self.disks.first(source)
    }

    /// Takes all files in one place for unusable.
    pub fn withdraw(&mut self, unusable: Source) {
        self.versions.iter_mut().for_each(|version| version.quarantine(unusable, None));
    }
}

impl Version {
    /// Ranks that saved it.
    pub fn world(&self) -> usize {
        self.sources.len()
    }

    /// Saved ranks whose files nobody has.
    pub fn missing(&self) -> Vec<usize> {
        let is_missing = |saved: &usize| self.sources[*saved].is_empty();
        (0..self.world()).filter(is_missing).collect()
    }

    /// Returns the source from which a rank takes the files of a saved rank: its own node, a shared
    /// tier, or else another rank's node.
    ///
    /// # Panics
    /// When no source has them.
    pub fn source(&self, saved: usize, reader: usize) -> Source {
        let sources = &self.sources[saved];
        let is_own = |source: &&Source| source.node_of == Some(reader);
        let is_shared = |source: &&Source| source.node_of.is_none();
        let own = sources.iter().find(is_own).or_else(|| sources.iter().find(is_shared));
        *own.unwrap_or_else(|| self.peer(saved).expect("somebody has them"))
    }

    /// Returns the node that sends the files of a saved rank to ranks that have no other source, if
    /// one has them; the ranks of a node take turns.
    fn peer(&self, saved: usize) -> Option<&Source> {
        let sources = &self.sources[saved];
        let first = sources.first()?;
        let nearest = |source: &&Source| source.tier == first.tier && source.node_of.is_some();
        let count = sources.iter().filter(nearest).count();
        (count > 0).then(|| &sources[saved % count])
    }

    /// The node that sends the files of a saved rank.
    ///
    /// # Panics
    /// When no node has them.
    pub fn sender(&self, saved: usize) -> Source {
        *self.peer(saved).expect("a node has them")
    }

    /// Returns the one of `readers` ranks that reads the index of a saved rank for all, and its
    /// source.
    ///
    /// # Panics
    /// When no source has it.
    pub fn index_source(&self, saved: usize, readers: usize) -> (usize, Source) {
        match self.peer(saved) {
            Some(&source) => (source.owner(), source),
            None => (saved % readers, self.sources[saved][0]),
        }
    }

    /// Takes the files of these saved ranks, or of all, in one place for unusable, whichever rank
    /// reads them there.
    pub fn quarantine(&mut self, unusable: Source, saved: Option<Range<usize>>) {
        let disks = Rc::clone(&self.disks);
        let disk = disks.first(unusable);
        self.retain(saved, |source| disks.first(source) != disk);
    }

    /// Leaves those files to other ranks, which may still be able to read them in the same place.
    pub fn avoid(&mut self, unreadable: Source, saved: Option<Range<usize>>) {
        self.retain(saved, |source| source != unreadable);
    }

    fn retain(&mut self, saved: Option<Range<usize>>, is_kept: impl Fn(Source) -> bool) {
        let ranks = saved.unwrap_or(0..self.world());
        let sources = self.sources[ranks].iter_mut();
        sources.for_each(|sources| sources.retain(|source| is_kept(*source)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAME: &str = "s000000010-a0001-00000001";

    fn files(digest: &str, world: usize, ranks: Range<usize>) -> Found {
        Found::Files { digest: digest.to_owned(), world, ranks: vec![ranks] }
    }

    fn inventory(tier: usize, found: &[(&str, Found)]) -> TierInventory {
        let copy = |(name, found): &(&str, Found)| FoundCopy {
            checkpoint: (*name).to_owned(),
            found: found.clone(),
        };
        let copies = found.iter().map(copy).collect();
        TierInventory { tier, disk: None, copies, rejected: None, flaw: None, refused: None }
    }

    fn node(tier: usize, rank: usize) -> Source {
        Source { tier, node_of: Some(rank) }
    }

    fn shared(tier: usize) -> Source {
        Source { tier, node_of: None }
    }

    #[test]
    fn the_nearest_source_is_own_then_shared_then_of_a_peer() {
        let scopes = [Scope::Node, Scope::Shared, Scope::Shared];
        let whole = |tier| inventory(tier, &[(NAME, files("x", 2, 0..2))]);
        let inventories =
            [vec![whole(2), whole(1)], vec![inventory(0, &[(NAME, files("x", 2, 1..2))])]];
        let mut plan = Plan::new(&scopes, &inventories);
        let version = &mut plan.candidates[0].versions[0];
        assert_eq!([version.source(0, 0), version.source(0, 1)], [shared(1); 2]);
        assert_eq!([version.source(1, 0), version.source(1, 1)], [shared(1), node(0, 1)]);
        version.quarantine(shared(1), Some(1..2));
        assert_eq!([version.source(0, 0), version.source(1, 0)], [shared(1), shared(2)]);
        version.quarantine(shared(2), None);
        assert_eq!([version.source(1, 0), version.source(1, 1)], [node(0, 1); 2]);
        assert_eq!(version.missing(), [0; 0]);
        version.quarantine(node(0, 1), Some(1..2));
        assert_eq!(version.missing(), [1]);
    }

    #[test]
    fn a_damaged_file_is_not_read_again_through_another_rank_of_its_node() {
        let whole = files("x", 8, 0..8);
        let on_disk = |disk: &str| TierInventory {
            disk: Some(disk.to_owned()),
            ..inventory(0, &[(NAME, whole.clone())])
        };
        let disks = ["a", "b", "a", "b", "a", "b"].map(|disk| vec![on_disk(disk)]);
        let unknown = [(); 2].map(|()| vec![inventory(0, &[(NAME, whole.clone())])]);
        let mut plan = Plan::new(&[Scope::Node], &[&disks[..], &unknown].concat());
        let candidate = &mut plan.candidates[0];
        assert_eq!(candidate.disk(node(0, 4)), node(0, 0));
        assert_eq!(candidate.disk(node(0, 7)), node(0, 7), "nobody else's");
        let version = &mut candidate.versions[0];
        version.quarantine(node(0, 2), Some(0..1));
        assert_eq!(version.sources[0], [1, 3, 5, 6, 7].map(|rank| node(0, rank)));
        assert_eq!(version.sources[1].len(), 8, "files of other ranks are intact there");
        version.avoid(node(0, 3), Some(0..1));
        assert_eq!(version.sources[0], [1, 5, 6, 7].map(|rank| node(0, rank)));
        version.quarantine(node(0, 6), Some(0..1));
        assert_eq!(version.sources[0], [1, 5, 7].map(|rank| node(0, rank)));
    }

    #[test]
    fn a_place_is_needed_where_no_other_is_left() {
        let whole = |tier| inventory(tier, &[(NAME, files("x", 2, 0..2))]);
        let mut plan = Plan::new(&[Scope::Shared; 2], &[vec![whole(0), whole(1)], vec![]]);
        let candidate = &mut plan.candidates[0];
        candidate.versions[0].quarantine(shared(0), Some(1..2));
        assert!(!candidate.needs(shared(0)) && candidate.needs(shared(1)), "rank 1 is only there");
        candidate.withdraw(shared(0));
        candidate.versions[0].quarantine(shared(1), Some(1..2));
        assert!(!candidate.needs(shared(1)), "nothing can be restored any more");
    }

    #[test]
    fn copies_of_other_bytes_do_not_complete_each_other() {
        let inventory =
            |rank: usize, digest| inventory(0, &[(NAME, files(digest, 2, rank..rank + 1))]);
        let plan = Plan::new(&[Scope::Node], &[vec![inventory(0, "x")], vec![inventory(1, "y")]]);
        let missing: Vec<_> =
            plan.candidates[0].versions.iter().map(|version| version.missing()).collect();
        assert_eq!(missing, [[1], [0]]);
        assert_eq!(plan.candidates[0].holders, [node(0, 0), node(0, 1)]);
    }

    /// Three tiers, eight ranks on a node, three checkpoints on each tier; a hundred nodes are new.
    #[test]
    fn a_large_world_is_planned() {
        let world = 16_384;
        let names = ["s000000030-a0002-00000001", "s000000020-a0001-00000002", NAME];
        let scopes = [Scope::Node, Scope::Shared, Scope::Shared];
        let mut inventories: Vec<Vec<TierInventory>> = Vec::new();
        for rank in 0..world {
            let ranks = rank / 8 * 8..rank / 8 * 8 + 8;
            let copies = names.map(|name| (name, files("x", world, ranks.clone())));
            let is_new = rank < 800;
            inventories.push(vec![inventory(0, if is_new { &[] } else { &copies })]);
        }
        let copies = [1, 2].map(|first| (names[first], files("x", world, 0..world)));
        inventories[0].extend([inventory(1, &copies[..1]), inventory(2, &copies[1..])]);
        let plan = Plan::new(&scopes, &inventories);
        let found: Vec<_> =
            plan.candidates.iter().map(|candidate| candidate.checkpoint.as_str()).collect();
        assert_eq!(found, names, "newest first");
        assert_eq!(plan.candidates[0].versions[0].missing(), (0..800).collect::<Vec<_>>());
        let version = &plan.candidates[1].versions[0];
        assert_eq!(version.missing(), [0; 0]);
        let sources = (0..world).map(|rank| version.source(rank, rank));
        assert_eq!(sources.filter(|source| *source == shared(1)).count(), 800);
    }
}
