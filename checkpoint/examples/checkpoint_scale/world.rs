//! A world of many ranks in one process.

use std::error::Error;
use std::path::Path;
use std::sync::Arc;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use checkpoint::tier::LocalTier;
use checkpoint::tiers::plan::{Found, FoundCopy, Plan, TierInventory};
use checkpoint::{
    Claim, Dtype, Identity, NoFailpoints, Part, Peers, PeersError, Save, Scope, SingleRank, Store,
    TensorBox,
};

/// Number of ranks on most nodes with GPUs.
pub(crate) const RANKS_PER_NODE: usize = 8;
/// Nodes that are replaced, and have nothing.
const LOST_NODES: usize = 100;
/// Checkpoints on each tier.
const CHECKPOINTS: u64 = 3;

/// Memory and time that rank 0 needs.
pub(crate) struct Measured {
    pub(crate) manifest_bytes: u64,
    /// Time of the commit, once the votes are there.
    pub(crate) commit_seconds: f64,
    pub(crate) inventory_bytes: usize,
    pub(crate) decode_seconds: f64,
    /// Time to plan which source each rank reads from.
    pub(crate) plan_seconds: f64,
    /// Time to plan what is removed from the shared tier.
    pub(crate) retention_seconds: f64,
}

/// Saves checkpoints of so many ranks in a folder, and plans a restore after lost nodes.
pub(crate) fn measure(ranks: usize, folder: &Path) -> Result<Measured, Box<dyn Error>> {
    let folder = tempfile::tempdir_in(folder)?;
    let tier = Arc::new(LocalTier::new(folder.path()));
    let store = Store::open(tier, &Identity::new("run", "workload"))?;
    let claim = store.claim_attempt(1, &SingleRank)?;
    let mut commit_seconds = 0.0;
    for step in 1..=CHECKPOINTS {
        commit_seconds = save(&store, ranks, step, claim)?.as_secs_f64();
    }
    let newest = store.newest()?.ok_or("nothing is committed")?.name;
    let manifest_bytes = folder.path().join(&newest).join("MANIFEST.json").metadata()?.len();
    let start = Instant::now();
    let removed = store.plan_retention(claim.attempt, 2)?.len();
    let retention_seconds = start.elapsed().as_secs_f64();
    assert_eq!(removed, 1, "the oldest of three");

    let inventories: Vec<_> = (0..ranks).map(|rank| inventories(rank, ranks)).collect();
    let sent: Vec<Vec<u8>> =
        inventories.iter().map(serde_json::to_vec).collect::<Result<_, _>>()?;
    let start = Instant::now();
    let received = sent.iter().map(|bytes| serde_json::from_slice(bytes));
    let received: Vec<Vec<TierInventory>> = received.collect::<Result<_, _>>()?;
    let decode_seconds = start.elapsed().as_secs_f64();
    let start = Instant::now();
    let plan = Plan::new(&[Scope::Node, Scope::Shared, Scope::Shared], &received);
    let covered = plan.candidates.iter().flat_map(|candidate| &candidate.versions);
    let version = covered.into_iter().find(|version| version.missing().is_empty());
    let version = version.ok_or("no checkpoint is covered")?;
    let from_shared = (0..ranks).filter(|&rank| version.source(rank, rank).tier > 0).count();
    let plan_seconds = start.elapsed().as_secs_f64();
    assert_eq!(from_shared, lost_ranks(ranks), "ranks of lost nodes read from farther tiers");
    Ok(Measured {
        manifest_bytes,
        commit_seconds,
        inventory_bytes: sent.iter().map(Vec::len).sum(),
        decode_seconds,
        plan_seconds,
        retention_seconds,
    })
}

fn lost_ranks(ranks: usize) -> usize {
    (LOST_NODES * RANKS_PER_NODE).min(ranks / 2)
}

/// View of a rank after nodes were lost: three checkpoints on its node; on rank 0 also all but the
/// newest on the second tier, and all but two on the third.
fn inventories(rank: usize, ranks: usize) -> Vec<TierInventory> {
    let node = rank / RANKS_PER_NODE * RANKS_PER_NODE;
    let of_node = node..(node + RANKS_PER_NODE).min(ranks);
    let copy = |step: u64, saved: std::ops::Range<usize>| FoundCopy {
        checkpoint: format!("s{step:09}-a0001-0000000{step}"),
        found: Found::Files { digest: "0".repeat(64), world: ranks, ranks: vec![saved] },
    };
    let inventory = |tier, copies| TierInventory {
        tier,
        disk: (tier == 0).then(|| format!("{:036} 64512:{node}", 0)),
        copies,
        rejected: None,
        flaw: None,
        refused: None,
    };
    let is_new = rank < lost_ranks(ranks);
    let steps = if is_new { 0 } else { CHECKPOINTS };
    let own = (1..=steps).map(|step| copy(step, of_node.clone())).collect();
    let mut inventories = vec![inventory(0, own)];
    if rank == 0 {
        for tier in [1, 2] {
            let steps = 1..=CHECKPOINTS - tier as u64;
            inventories.push(inventory(tier, steps.map(|step| copy(step, 0..ranks)).collect()));
        }
    }
    inventories
}

/// Saves a small checkpoint of all ranks; returns the time that rank 0 takes when it has all votes.
fn save(store: &Store, ranks: usize, step: u64, claim: Claim) -> Result<Duration, Box<dyn Error>> {
    let votes = Mutex::new(Vec::new());
    let voted = Mutex::new(Instant::now());
    let write = |rank: usize, gather: Gather<'_>| {
        let tensor = TensorBox {
            name: "weights".to_owned(),
            dtype: Dtype::F32,
            shape: vec![ranks],
            offset: vec![rank],
            extent: vec![1],
        };
        let save = Save { step, claim, number: 0, state: serde_json::json!({}), parent: None };
        let parts = [Part { tensor, data: &[0; 4] }];
        store.save(&save, &parts, &Rank { rank, ranks, gather }, &NoFailpoints)
    };
    // Rank 0 waits for the votes of the other ranks, which are written meanwhile.
    let gather = |own: &[u8]| {
        let mut all = votes.lock().expect("one thread");
        if !all.is_empty() {
            return Ok(vec![own.to_vec(); ranks]); // after the commit
        }
        all.push(own.to_vec());
        for rank in 1..ranks {
            let other = Mutex::new(Vec::new());
            let vote = |vote: &[u8]| {
                *other.lock().expect("one thread") = vote.to_vec();
                Err(PeersError::new("the rest is rank 0's"))
            };
            drop(write(rank, &vote)); // an error now, as its vote was taken
            all.push(other.into_inner().expect("one thread"));
        }
        *voted.lock().expect("one thread") = Instant::now();
        Ok(all.clone())
    };
    write(0, &gather)?;
    Ok(voted.into_inner()?.elapsed())
}

type Gather<'a> = &'a dyn Fn(&[u8]) -> Result<Vec<Vec<u8>>, PeersError>;

struct Rank<'a> {
    rank: usize,
    ranks: usize,
    gather: Gather<'a>,
}

impl Peers for Rank<'_> {
    fn rank(&self) -> usize {
        self.rank
    }

    fn world(&self) -> usize {
        self.ranks
    }

    fn all_gather(&self, payload: &[u8]) -> Result<Vec<Vec<u8>>, PeersError> {
        (self.gather)(payload)
    }
}
