//! Run on nodes that each have a disk of their own, and the faults that happen to it.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Instant;

use checkpoint::Failpoint;
use serde_json::Value;

use crate::layout::{Layout, Layouts};
use crate::shared_tier::{SharedTier, StoreFault};
use crate::survey::{self, Committed};
use crate::{Random, damage};
use support::{Folder, RunResult, Running, add_node, launch};

const STEPS: usize = 48;

/// Sequences of a step: as many as ranks of two and of three share equally.
const SEQUENCES: &str = "batch.global_sequences=6";

/// As many as ranks of jobs with partner copies: with one micro-batch, bits do not depend on what
/// is sharded.
const SEQUENCES_OF_FOUR: &str = "batch.global_sequences=4";

/// A fault.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Fault {
    /// SIGKILL of a rank.
    Kill { rank: usize },
    /// SIGKILL of all ranks.
    KillAll,
    /// SIGKILL of a rank at a failpoint of a save or a promotion.
    KillInside { rank: usize, failpoint: Failpoint },
    /// SIGKILL of a rank, and its disk is gone.
    LoseNode { rank: usize },
    /// SIGKILL of a rank, and the shared tier is gone.
    LoseShared { rank: usize },
    /// SIGKILL of a rank, and a file is damaged.
    Damage { rank: usize },
    /// SIGKILL of a rank at a failpoint of a promotion, and a file that was copied is damaged
    /// before its checkpoint is committed there.
    DamageTarget { rank: usize, failpoint: Failpoint },
    /// SIGTERM to all ranks.
    Stop,
}

impl Fault {
    /// Object stores are read where a disk is lost, so that is more frequent with them.
    pub(crate) fn random(job: &Job, random: &mut Random) -> Self {
        let rank = random.below(job.world);
        if job.layouts.is_some() {
            return Self::random_with_partners(rank, random);
        }
        match random.below(9) {
            0 | 1 if matches!(job.shared, SharedTier::Bucket(_)) => Self::LoseNode { rank },
            0 => Self::Kill { rank },
            1 => Self::KillAll,
            2 | 3 => {
                let failpoints = [&Failpoint::ALL[..], &Failpoint::PROMOTION].concat();
                Self::KillInside { rank, failpoint: random.choose(&failpoints) }
            }
            4 => Self::LoseNode { rank },
            5 => Self::LoseShared { rank },
            6 => Self::Damage { rank },
            7 => Self::DamageTarget { rank, failpoint: random.choose(&Failpoint::PROMOTION) },
            _ => Self::Stop,
        }
    }

    /// A fault of a job that has no tier but the disks of its nodes.
    fn random_with_partners(rank: usize, random: &mut Random) -> Self {
        match random.below(8) {
            0 => Self::Kill { rank },
            1 => Self::KillAll,
            2 | 3 => {
                let failpoints = [&Failpoint::ALL[..], &Failpoint::PARTNER].concat();
                Self::KillInside { rank, failpoint: random.choose(&failpoints) }
            }
            4 | 5 => Self::LoseNode { rank },
            6 => Self::Damage { rank },
            _ => Self::Stop,
        }
    }

    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Self::Kill { .. } => "SIGKILL of a rank",
            Self::KillAll => "SIGKILL of all ranks",
            Self::KillInside { failpoint, .. } if Failpoint::PROMOTION.contains(failpoint) => {
                "SIGKILL at a failpoint of a promotion"
            }
            Self::KillInside { .. } => "SIGKILL at a failpoint of a save",
            Self::LoseNode { .. } => "SIGKILL of a rank, its disk lost",
            Self::LoseShared { .. } => "SIGKILL of a rank, the shared tier lost",
            Self::Damage { .. } => "SIGKILL of a rank, a file damaged",
            Self::DamageTarget { .. } => "SIGKILL within a promotion, its target damaged",
            Self::Stop => "SIGTERM of all ranks",
        }
    }

    /// Returns the flags with which the program injects the fault itself.
    fn injection(&self, after: u64, random: &mut Random) -> Vec<String> {
        let (Self::KillInside { rank, failpoint } | Self::DamageTarget { rank, failpoint }) = self
        else {
            return Vec::new();
        };
        let step = after + 2 * (1 + random.below(6) as u64); // saves follow even steps
        let fault = format!("kill@step={step},rank={rank},failpoint={failpoint},attempt=every");
        let is_possible = step <= STEPS as u64;
        let waits = ["--set", "checkpoint.background=false"].map(str::to_owned);
        if is_possible {
            [&["--inject".to_owned(), fault], &waits[..]].concat()
        } else {
            Vec::new()
        }
    }

    /// Returns the signal that is sent from outside, and the ranks that get it.
    fn signal(&self, world: usize) -> Option<(&'static str, Vec<usize>)> {
        match self {
            Self::KillInside { .. } | Self::DamageTarget { .. } => None,
            Self::KillAll => Some(("-KILL", (0..world).collect())),
            Self::Stop => Some(("-TERM", (0..world).collect())),
            Self::Kill { rank }
            | Self::LoseNode { rank }
            | Self::LoseShared { rank }
            | Self::Damage { rank } => Some(("-KILL", vec![*rank])),
        }
    }
}

/// Outcome of an attempt.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ended {
    /// The run has made its last step.
    pub(crate) is_complete: bool,
}

/// A run and its tiers.
#[derive(Debug)]
pub(crate) struct Job {
    folder: Folder,
    world: usize,
    ranks_per_node: usize,
    shared: SharedTier,
    /// Layouts of the attempts of a job with partner copies.
    layouts: Option<Layouts>,
    /// Tier and name of what this test has damaged.
    damaged: BTreeSet<(PathBuf, String)>,
}

impl Job {
    /// Creates a job whose shared tier is a folder.
    pub(crate) fn on_folders(world: usize) -> Self {
        let folder = Folder::new();
        let shared = SharedTier::Folder(folder.sibling("shared"));
        Self::new(folder, world, shared)
    }

    /// Creates a job whose shared tier is an object store.
    pub(crate) fn on_object_store(world: usize) -> Self {
        Self::new(Folder::new(), world, SharedTier::bucket())
    }

    /// Creates a job of four ranks on nodes that keep copies of each other's files, and have no
    /// other tier.
    pub(crate) fn with_partners(layouts: Layouts, ranks_per_node: usize) -> Self {
        let job = Self::new(Folder::new(), 4, SharedTier::Absent);
        Self { ranks_per_node, layouts: Some(layouts), ..job }
    }

    fn new(folder: Folder, world: usize, shared: SharedTier) -> Self {
        let damaged = BTreeSet::new();
        Self { folder, world, ranks_per_node: 1, shared, layouts: None, damaged }
    }

    pub(crate) fn shared_tier(&self) -> &SharedTier {
        &self.shared
    }

    pub(crate) fn result(&self) -> RunResult {
        self.folder.result()
    }

    /// Returns the disk of a rank's node.
    fn disk(&self, rank: usize) -> PathBuf {
        self.folder.sibling(&format!("nvme{}", rank / self.ranks_per_node))
    }

    fn disks(&self) -> impl Iterator<Item = PathBuf> {
        (0..self.world).step_by(self.ranks_per_node).map(|rank| self.disk(rank))
    }

    fn tiers(&self) -> Vec<PathBuf> {
        self.disks().chain([self.shared.files()]).collect()
    }

    fn process_file(&self, rank: usize) -> PathBuf {
        self.folder.sibling(&format!("pid{rank}"))
    }

    fn log(&self) -> String {
        fs::read_to_string(self.folder.sibling("log")).unwrap_or_default()
    }

    /// The newest checkpoint that the tiers together have without `lost`, apart from copies that
    /// were damaged.
    fn newest_without(&self, lost: Option<&(PathBuf, Option<String>)>) -> Option<Committed> {
        let has = |tier: PathBuf| {
            let is_lost = |found: &Committed| {
                let (place, name) = lost?;
                let all = *place == tier && name.as_ref().is_none_or(|name| *name == found.name);
                all.then_some(())
            };
            let mut found = survey::committed(&tier);
            found.retain(|it| is_lost(it).is_none());
            found.retain(|it| !self.damaged.contains(&(tier.clone(), it.name.clone())));
            found
        };
        let shared = has(self.shared.files());
        self.covered(has).into_iter().chain(shared).max()
    }

    /// Returns the checkpoints of which the disks have the files of all ranks together.
    fn covered(&self, has: impl Fn(PathBuf) -> BTreeSet<Committed>) -> BTreeSet<Committed> {
        let mut ranks: BTreeMap<Committed, BTreeSet<_>> = BTreeMap::new();
        for disk in self.disks() {
            for found in has(disk.clone()) {
                let indexes = survey::indexes(&disk, &found.name);
                ranks.entry(found).or_default().extend(indexes);
            }
        }
        ranks.retain(|_, indexes| indexes.len() == self.world);
        ranks.into_keys().collect()
    }

    /// Returns whether only the shared tier has the newest checkpoint.
    pub(crate) fn needs_shared(&self) -> bool {
        let on_disks = self.covered(|tier| {
            let mut found = survey::committed(&tier);
            found.retain(|it| !self.damaged.contains(&(tier.clone(), it.name.clone())));
            found
        });
        self.newest_intact().as_ref() != on_disks.last()
    }

    /// The newest checkpoint that can be restored.
    pub(crate) fn newest_intact(&self) -> Option<Committed> {
        self.newest_without(None)
    }

    fn command(&self, extra: &[String]) -> Command {
        let steps = STEPS.to_string();
        let script = r#"echo $$ >"$1"; export LOCAL_CHECKPOINT_DIR="$2"; shift 2; exec "$@""#;
        let mut command = launch(1, "env");
        command.envs(self.shared.environment());
        for rank in 0..self.world {
            if rank > 0 {
                command.args([":", "-np", "1", "env"]);
            }
            if self.layouts.is_some() {
                add_node(&mut command, rank / self.ranks_per_node, &self.disk(rank));
            }
            command.args(["sh", "-c", script, "sh"]);
            command.arg(self.process_file(rank)).arg(self.disk(rank));
            command.args([env!("CARGO_BIN_EXE_yardstick"), "train", "--out", &self.folder.text()]);
            command.args(["--steps", &steps, "--threads", "1", "--checkpoint-every", "2steps"]);
            for setting in self.shared.settings() {
                command.args(["--set", &setting]);
            }
            for setting in [
                "batch.micro_sequences=1",
                if self.layouts.is_some() { SEQUENCES_OF_FOUR } else { SEQUENCES },
                "telemetry.matmul_probe=0s",
                "collectives.deadline=20s",
                "checkpoint.deadline=20s",
            ] {
                command.args(["--set", setting]);
            }
            command.args(extra);
        }
        command
    }

    fn start(&self, extra: &[String]) -> Running {
        for rank in 0..self.world {
            drop(fs::remove_file(self.process_file(rank))); // of the attempt before
        }
        let log = fs::File::create(self.folder.sibling("log")).unwrap();
        let mut command = self.command(extra);
        command.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
        Running::spawn(command)
    }

    /// Returns the step after which each attempt resumed; `None` for one that did not get so far.
    fn resumed(&self) -> Vec<Option<u64>> {
        if !self.folder.path().join("record.json").exists() {
            return Vec::new();
        }
        let record = self.folder.record();
        let attempts = record["attempts"].as_array().unwrap().iter();
        attempts.map(|attempt| attempt["resumed_after_step"].as_u64()).collect()
    }

    /// Files of attempts so far.
    fn attempt_files(&self) -> Vec<PathBuf> {
        let Ok(entries) = fs::read_dir(self.folder.path().join("attempts")) else {
            return Vec::new();
        };
        let mut files: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
        files.retain(|file| file.extension().is_some_and(|extension| extension == "json"));
        files.sort();
        files
    }

    /// Returns the newest step that the last attempt with a checkpoint has recorded as committed.
    /// Steps of attempts before it may be newer: it has said so when it resumed.
    fn newest_recorded(&self) -> Option<u64> {
        let files = self.attempt_files();
        let attempts = files.iter().map(|file| serde_json::from_slice(&fs::read(file).unwrap()));
        attempts.rev().find_map(|it: Result<Value, _>| it.unwrap()["committed_step"].as_u64())
    }

    /// The step of the first checkpoint that the newest attempt has saved, as far as it knew;
    /// `None` if there are no more than so many attempts.
    fn first_saved(&self, earlier: usize) -> Option<u64> {
        let files = self.attempt_files();
        let newest = files.get(earlier..)?.last()?;
        let attempt: Value = serde_json::from_slice(&fs::read(newest).unwrap()).unwrap();
        let [resumed, committed] =
            ["resumed_after_step", "committed_step"].map(|key| attempt[key].as_u64());
        committed.filter(|_| committed != resumed)
    }

    pub(crate) fn run_to_its_end(&self, random: &mut Random) {
        let expected = self.newest_intact();
        let recorded = self.newest_recorded();
        let code = self.start(&self.layout(random)).wait();
        assert_eq!(code, Some(0), "{}", self.log());
        assert!(self.check_resumed(expected.as_ref(), recorded), "{}", self.log());
    }

    /// Returns whether the last attempt has resumed, and checks the step. It may have found more
    /// than is known to be whole, as when other files of a damaged copy are fine. Resuming from an
    /// older step than one that was recorded before is reported.
    fn check_resumed(&self, expected: Option<&Committed>, recorded: Option<u64>) -> bool {
        let Some(resumed) = self.resumed().last().copied().flatten() else { return false };
        let expected = expected.map_or(0, |checkpoint| checkpoint.step);
        assert!(
            resumed >= expected,
            "resumed after step {resumed}, not {expected}\n{}",
            self.log()
        );
        let is_older = recorded.is_some_and(|recorded| resumed < recorded);
        let is_said = self.log().contains("resumes from the checkpoint of step");
        assert_eq!(is_said, is_older && resumed > 0, "{resumed} of {recorded:?}\n{}", self.log());
        true
    }

    /// Returns the settings of the next attempt's layout.
    fn layout(&self, random: &mut Random) -> Vec<String> {
        let Some(layouts) = self.layouts else { return Vec::new() };
        let settings = Layout::settings(layouts.next(random)).into_iter();
        let settings = settings.chain(["checkpoint.nvme.partner=true".to_owned()]);
        settings.flat_map(|setting| ["--set".to_owned(), setting]).collect()
    }

    /// Starts the run, and lets a fault happen to it, and one to its object store.
    pub(crate) fn attempt(
        &self,
        fault: &Fault,
        of_store: Option<&StoreFault>,
        random: &mut Random,
    ) -> Ended {
        let expected = self.newest_intact();
        let attempts = self.resumed().len();
        let files = self.attempt_files().len();
        let after = expected.as_ref().map_or(0, |checkpoint| checkpoint.step);
        let recorded = self.newest_recorded();
        let (at_start, mut later): (Vec<_>, Vec<_>) =
            of_store.into_iter().partition(|fault| fault.is_at_start);
        at_start.into_iter().for_each(|fault| self.shared.begin(fault));
        let flags = [fault.injection(after, random), self.layout(random)].concat();
        let mut running = self.start(&flags);
        let moment = random.moment();
        let start = Instant::now();
        let is_sent = Cell::new(false);
        let code = running.poll_until_exit(|_| {
            if start.elapsed() >= moment / 2 {
                later.drain(..).for_each(|fault| self.shared.begin(fault));
            }
            if !is_sent.get() && start.elapsed() >= moment {
                is_sent.set(self.send(fault));
            }
        });
        if self.resumed().len() > attempts {
            self.check_resumed(expected.as_ref(), recorded);
        }
        self.check_copies();
        let is_refused = code == Some(6) || code == Some(2);
        assert!(!is_refused, "{fault:?}: {code:?}\n{}", self.log());
        let saved = self.first_saved(files);
        let left = self.newest_intact().map(|checkpoint| checkpoint.step);
        assert!(left >= saved, "{fault:?}: step {saved:?} was committed, and {left:?} is left");
        Ended { is_complete: code == Some(0) }
    }

    /// Checks that each node with copies has the files of its ranks and of as many others of what
    /// it has committed, unless a restore may have rejected some.
    fn check_copies(&self) {
        for disk in self.disks().filter(|_| self.layouts.is_some()) {
            let is_damaged =
                |found: &Committed| self.damaged.contains(&(disk.clone(), found.name.clone()));
            for found in survey::committed(&disk).into_iter().filter(|it| !is_damaged(it)) {
                let indexes = survey::indexes(&disk, &found.name).len();
                assert_eq!(indexes, 2 * self.ranks_per_node, "{found:?} on {}", disk.display());
            }
        }
    }

    /// Sends the signal of a fault; false if the ranks are not there yet.
    fn send(&self, fault: &Fault) -> bool {
        let Some((signal, ranks)) = fault.signal(self.world) else { return true };
        let process = |rank: &usize| {
            let text = fs::read_to_string(self.process_file(*rank)).ok()?;
            text.ends_with('\n').then(|| text.trim().to_owned())
        };
        let Some(processes) = ranks.iter().map(process).collect::<Option<Vec<_>>>() else {
            return false;
        };
        let mut command = Command::new("kill");
        command.arg(signal).args(processes).stderr(Stdio::null()).status().unwrap();
        true
    }

    /// Loses what the fault takes away, unless nothing would be left to resume from: then it is a
    /// kill, which is returned.
    pub(crate) fn lose(&mut self, fault: Fault, random: &mut Random) -> Fault {
        let (rank, lost) = match fault {
            Fault::LoseNode { rank } => (rank, Some((self.disk(rank), None))),
            Fault::LoseShared { rank } => (rank, Some((self.shared.files(), None))),
            Fault::Damage { rank } => (rank, self.choose_copy(random)),
            Fault::DamageTarget { rank, failpoint } => {
                let is_damaged = self.damage_target(random);
                return if is_damaged { fault } else { Fault::KillInside { rank, failpoint } };
            }
            _ => return fault,
        };
        let Some(lost) = lost else { return Fault::Kill { rank } };
        if self.newest_without(Some(&lost)).is_none() {
            return Fault::Kill { rank };
        }
        match lost {
            (tier, None) => drop(fs::remove_dir_all(tier)),
            (tier, Some(name)) => {
                let files = survey::files(&tier, &name);
                damage::damage(&files[random.below(files.len())], random);
                self.damaged.insert((tier, name));
            }
        }
        fault
    }

    /// Damages a file of a checkpoint that the shared tier does not have yet as a whole: nothing is
    /// lost by that. False if there is none.
    fn damage_target(&self, random: &mut Random) -> bool {
        let shared = self.shared.files();
        let mut files: Vec<PathBuf> = survey::uncommitted_files(&shared);
        files.retain(|file| fs::metadata(file).unwrap().len() > 0);
        if !files.is_empty() {
            damage::damage(&files[random.below(files.len())], random);
        }
        !files.is_empty()
    }

    /// Some copy of a checkpoint, as a rule of the newest.
    fn choose_copy(&self, random: &mut Random) -> Option<(PathBuf, Option<String>)> {
        let tiers = self.tiers();
        let tier = tiers[random.below(tiers.len())].clone();
        let copies: Vec<_> = survey::committed(&tier).into_iter().collect();
        let newest = copies.last()?.name.clone();
        let name = if random.chance() { newest } else { random_name(&copies, random) };
        Some((tier, Some(name)))
    }
}

fn random_name(copies: &[Committed], random: &mut Random) -> String {
    copies[random.below(copies.len())].name.clone()
}
