//! Saves that run while training continues: one at a time, in phases that each end with a small
//! gather when all ranks are ready for it.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, sync_channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use device::threads;

use super::partner::{Partner, PartnerCopy};
use super::protocol::{Participant, Publication, Written};
use super::rank_writer;
use super::request::{Save, SaveReport};
use super::snapshot::{Frozen, Snapshot};
use super::staging::{Loan, Staged, Staging};
use super::writes;
use crate::error::{Error, Result};
use crate::failpoints::Failpoints;
use crate::peers::Peers;
use crate::store::Store;
use crate::tensor::TensorBox;
use crate::tier::Scope;

/// Interval at which a waiting rank checks whether its own threads have ended.
const POLL: Duration = Duration::from_millis(1);

/// Check of a rank before it votes for a checkpoint, on the thread that writes. Returns the reason
/// why it must not be committed, if there is one.
pub type Veto = Box<dyn FnOnce() -> std::result::Result<(), String> + Send>;

/// Failpoints that the threads of a save reach.
pub type SharedFailpoints = Box<dyn Failpoints + Send + Sync>;

/// Work that follows a save, which the next one waits for before it writes.
pub type Afterwards = Box<dyn FnOnce() + Send>;

/// Saves the state of one rank in the background.
///
/// Every rank calls [`Saver::start`] after the same step. Then ranks exchange by any means whether
/// they are [ready](Saver::is_ready), and when all are, every rank calls [`Saver::advance`]; and so
/// on until that returns the report of the save.
#[derive(Debug)]
pub struct Saver {
    files: Arc<Files>,
    /// Longest duration of a phase.
    timeout: Duration,
    staging: Staging,
    /// Store of the save that the staging memory was lent to last.
    borrower: Arc<Store>,
    /// See [`Saver::with_partner`].
    partner: Option<Partner>,
    in_flight: Option<InFlight>,
    /// Thread that runs after the last save, when late threads of it have ended.
    afterwards: Option<JoinHandle<()>>,
}

/// State that the threads of all saves of a rank share.
#[derive(Debug, Clone)]
struct Files {
    store: Arc<Store>,
    boxes: Arc<[TensorBox]>,
    /// The order in which boxes are written.
    order: Arc<[usize]>,
    rank: usize,
}

/// A save, as its threads see it.
struct Job {
    files: Arc<Files>,
    request: Save,
    failpoints: SharedFailpoints,
}

#[derive(Debug)]
struct InFlight {
    job: Arc<Job>,
    snapshot: Snapshot,
    started: Instant,
    /// Time at which its phase must have ended.
    deadline: Instant,
    phase: Phase,
}

#[derive(Debug)]
enum Phase {
    /// Each rank writes.
    Writing(Started<Written>),
    /// All ranks have written. Each writes what its partner has sent in the last round, and reads
    /// what it sends in the next one.
    Copying { copier: Started<PartnerCopy>, votes: Vec<Written> },
    /// All ranks have written, rank 0 or every rank commits.
    Publishing { publisher: Option<Started<Publication>>, written: AllWritten },
}

/// Outcome of a phase.
enum Ended {
    /// The next phase has begun.
    Phase(Phase),
    /// The checkpoint is committed.
    Save(SaveReport),
}

/// State of a save that all ranks have written, as this rank knows it.
#[derive(Debug)]
struct AllWritten {
    bytes: u64,
    bytes_total: u64,
    writes: Vec<Duration>,
}

/// Thread of a save; where it could not begin, the reason.
type Started<T> = Result<JoinHandle<Result<T>>>;

/// Receives the thread that another one has to wait for.
type Before = Receiver<Option<JoinHandle<()>>>;

impl Saver {
    /// Creates a saver for a rank that saves these boxes each time. `timeout` limits each phase of
    /// a save.
    ///
    /// # Panics
    /// When a box lies outside its tensor.
    pub fn new(
        store: Arc<Store>,
        rank: usize,
        boxes: Vec<TensorBox>,
        staging: Staging,
        timeout: Duration,
    ) -> Self {
        boxes.iter().for_each(|tensor| tensor.assert_valid(tensor.size_bytes()));
        let order = rank_writer::order(boxes.iter());
        Self {
            borrower: Arc::clone(&store),
            files: Arc::new(Files { store, boxes: boxes.into(), order: order.into(), rank }),
            timeout,
            staging,
            partner: None,
            in_flight: None,
            afterwards: None,
        }
    }

    /// Lets each save on a tier of node scope copy the files of every rank to its partner's node,
    /// before it commits: then one lost node loses nothing. Without a partner on one rank, none has
    /// one.
    #[must_use]
    pub fn with_partner(self, partner: Option<Partner>) -> Self {
        Self { partner, ..self }
    }

    /// Saves on another tier from now on. What follows the last save, on the tier before, is not
    /// waited for: that tier may be hung.
    ///
    /// # Panics
    /// When a save is in flight.
    pub fn save_on(&mut self, store: Arc<Store>) {
        assert!(self.in_flight.is_none(), "no save is in flight");
        self.files = Arc::new(Files { store, ..(*self.files).clone() });
        self.detach_afterwards();
    }

    /// Step of the save in flight.
    pub fn step_in_flight(&self) -> Option<u64> {
        self.in_flight.as_ref().map(|save| save.job.request.step)
    }

    /// Starts a save. The state may change when the snapshot has ended.
    ///
    /// # Panics
    /// When a save is in flight.
    pub fn start(
        &mut self,
        request: Save,
        state: Box<dyn Frozen>,
        veto: Veto,
        failpoints: SharedFailpoints,
    ) -> Snapshot {
        assert!(self.in_flight.is_none(), "one save at a time");
        let job = Arc::new(Job { files: Arc::clone(&self.files), request, failpoints });
        let snapshot = Snapshot::new();
        let started = Instant::now();
        let writer = self.lend().and_then(|staging| {
            let job = Arc::clone(&job);
            let snapshot = snapshot.clone();
            let write = move |before| job.write(state, veto, &snapshot, staging, before);
            self.spawn_after("writer", write)
        });
        if writer.is_err() {
            snapshot.end();
        }
        let deadline = started + self.timeout;
        let phase = Phase::Writing(writer);
        let save = InFlight { job, snapshot: snapshot.clone(), started, deadline, phase };
        self.in_flight = Some(save);
        snapshot
    }

    /// The file or folder that a save of this rank reads or writes, if there is one.
    pub fn at(&self) -> Option<PathBuf> {
        self.files.store.at()
    }

    /// Returns whether this rank can [advance](Self::advance): its part of the phase has ended, or
    /// is late, or no save is in flight.
    pub fn is_ready(&self) -> bool {
        self.in_flight.as_ref().is_none_or(|save| {
            let has_ended = match &save.phase {
                Phase::Writing(writer) => has_ended(writer),
                Phase::Copying { copier, .. } => has_ended(copier),
                Phase::Publishing { publisher, .. } => publisher.as_ref().is_none_or(has_ended),
            };
            has_ended || Instant::now() >= save.deadline
        })
    }

    /// Ends a phase on all ranks, or a round of copies to partners, with one gather. Returns the
    /// report of the save when it has ended. Collective, for all ranks when all are
    /// [ready](Self::is_ready).
    ///
    /// # Errors
    /// As [`Store::save`]. After [`Error::SaveFailed`] another save can be started.
    pub fn advance(&mut self, peers: &dyn Peers) -> Result<Option<SaveReport>> {
        let Some(save) = self.in_flight.take() else { return Ok(None) };
        let InFlight { job, snapshot, started, phase, .. } = save;
        let ended = match phase {
            Phase::Writing(writer) => self.end_writing(&job, writer, &snapshot, peers),
            Phase::Copying { copier, votes } => self.end_round(&job, copier, votes, peers),
            Phase::Publishing { publisher, written } => {
                self.end_publishing(&job, publisher, written, started, peers)
            }
        };
        match ended.inspect_err(|error| self.discard(error, &job))? {
            Ended::Phase(phase) => {
                let deadline = Instant::now() + self.timeout;
                self.in_flight = Some(InFlight { job, snapshot, started, deadline, phase });
                Ok(None)
            }
            Ended::Save(report) => Ok(Some(report)),
        }
    }

    /// Waits until the save in flight has ended, if there is one, and returns its report. While
    /// this rank waits for its own threads, `on_wait` is called again and again. Collective.
    ///
    /// # Errors
    /// As [`Self::advance`].
    pub fn finish(
        &mut self,
        peers: &dyn Peers,
        on_wait: &mut dyn FnMut(&Self),
    ) -> Result<Option<SaveReport>> {
        while self.in_flight.is_some() {
            while !self.is_ready() {
                on_wait(self);
                thread::sleep(POLL);
            }
            if let Some(report) = self.advance(peers)? {
                return Ok(Some(report));
            }
        }
        Ok(None)
    }

    /// Runs something in the background. The next save waits for it before it writes.
    pub fn then(&mut self, work: Afterwards) {
        let work = move |before| {
            await_end(before);
            work();
        };
        if let Ok(thread) = self.spawn_after("afterwards", work) {
            self.afterwards = Some(thread);
        }
    }

    /// Returns whether the work that follows the last save has ended.
    pub fn has_ended_afterwards(&self) -> bool {
        self.afterwards.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Waits for what follows the last save.
    pub fn finish_afterwards(&mut self) {
        self.afterwards.take().map(JoinHandle::join);
    }

    /// Detaches the thread that runs after the last save.
    pub fn detach_afterwards(&mut self) {
        self.afterwards = None;
    }

    /// Lends the staging memory, unless a thread of an earlier save still uses it.
    fn lend(&mut self) -> Result<Loan> {
        let late = self.late("an earlier save's writer", &self.borrower);
        let loan = self.staging.lend().ok_or(late)?;
        self.borrower = Arc::clone(&self.files.store);
        Ok(loan)
    }

    /// Starts a thread, which gets the one that runs after the last save when it has started: one
    /// that cannot be started must not lose it.
    fn spawn_after<T: Send + 'static>(
        &mut self,
        purpose: &str,
        work: impl FnOnce(Before) -> T + Send + 'static,
    ) -> Result<JoinHandle<T>> {
        let (hand_over, before) = sync_channel(1);
        let thread = threads::spawn(purpose, move || work(before))?;
        drop(hand_over.send(self.afterwards.take()));
        Ok(thread)
    }

    /// Takes the result of a thread of the save. A late one may still write, or commit: what
    /// follows the save waits for it, so nothing of the save is removed before.
    fn end_of<T: Send + 'static>(&mut self, thread: Started<T>, what: &'static str) -> Result<T> {
        let thread = thread?;
        if thread.is_finished() {
            return thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        }
        self.then(Box::new(move || drop(thread.join())));
        Err(self.late(what, &self.files.store))
    }

    /// Ends the phase in which ranks write, with their vote.
    fn end_writing(
        &mut self,
        job: &Arc<Job>,
        writer: Started<Written>,
        snapshot: &Snapshot,
        peers: &dyn Peers,
    ) -> Result<Ended> {
        let own = self.end_of(writer, "this rank's writer");
        if own.is_err() {
            snapshot.abort(); // nothing reads the rest of it
        }
        let participant = job.participant();
        let votes = participant.vote(own, peers)?;
        Ok(Ended::Phase(match self.partner.filter(|_| job.files.store.scope() == Scope::Node) {
            Some(partner) => {
                let copier = self.lend().and_then(|staging| {
                    let copy = PartnerCopy::new(partner, &participant, &votes, staging);
                    start_copying(job, copy)
                });
                Phase::Copying { copier, votes }
            }
            None => start_publishing(job, votes),
        }))
    }

    /// Exchanges the next round of copies, unless there is none.
    fn end_round(
        &mut self,
        job: &Arc<Job>,
        copier: Started<PartnerCopy>,
        votes: Vec<Written>,
        peers: &dyn Peers,
    ) -> Result<Ended> {
        let (copy, own) = match self.end_of(copier, "the copy of another rank's files") {
            Ok(copy) => (Some(copy), Ok(())),
            Err(error) => (None, Err(error)),
        };
        job.participant().agree_on_copies(own, peers)?;
        let copy = copy.expect("a failure fails the save on all ranks");
        Ok(Ended::Phase(if copy.is_exchanged() {
            start_publishing(job, votes)
        } else {
            let copy = copy.exchange(peers, Instant::now() + self.timeout)?;
            Phase::Copying { copier: start_copying(job, copy), votes }
        }))
    }

    /// Ends the save.
    fn end_publishing(
        &mut self,
        job: &Job,
        publisher: Option<Started<Publication>>,
        written: AllWritten,
        started: Instant,
        peers: &dyn Peers,
    ) -> Result<Ended> {
        let participant = job.participant();
        let own = publisher
            .map_or(Ok(Publication::default()), |publisher| self.end_of(publisher, "the manifest"));
        let publication = participant.settle(own, peers)?;
        Ok(Ended::Save(SaveReport {
            checkpoint: participant.checkpoint(),
            step: job.request.step,
            bytes: written.bytes,
            bytes_total: written.bytes_total,
            writes: written.writes,
            commit: started.elapsed(),
            warnings: publication.warnings,
        }))
    }

    fn late(&self, what: &'static str, store: &Store) -> Error {
        Error::Late { what, path: store.at(), timeout: self.timeout }
    }

    /// Frees the space of a save that failed on all ranks, in the background: what stays is removed
    /// before the next save.
    fn discard(&mut self, error: &Error, job: &Arc<Job>) {
        if job.participant().has_to_discard(error) {
            let job = Arc::clone(job);
            self.then(Box::new(move || drop(job.participant().discard())));
        }
    }
}

/// Starts the work between two rounds of copies.
fn start_copying(job: &Arc<Job>, mut copy: PartnerCopy) -> Started<PartnerCopy> {
    let job = Arc::clone(job);
    let work = move || copy.work(&job.participant()).map(|()| copy);
    Ok(threads::spawn("partner copy", work)?)
}

/// Starts to publish what all ranks have written.
fn start_publishing(job: &Arc<Job>, votes: Vec<Written>) -> Phase {
    let written = AllWritten {
        bytes: votes[job.files.rank].files.bytes,
        bytes_total: votes.iter().map(|vote| vote.files.bytes).sum(),
        writes: writes(&votes),
    };
    let publishes = Arc::clone(job);
    let publish = move || publishes.participant().publish(&votes);
    let commits = job.participant().commits();
    let publisher = commits.then(|| threads::spawn("publisher", publish).map_err(Error::from));
    Phase::Publishing { publisher, written }
}

/// Waits for the thread that was handed over.
fn await_end(before: Before) {
    before.recv().ok().flatten().map(JoinHandle::join);
}

/// Returns whether a thread has ended, or could not begin.
fn has_ended<T>(thread: &Result<JoinHandle<T>>) -> bool {
    thread.as_ref().map_or(true, JoinHandle::is_finished)
}

impl Job {
    fn participant(&self) -> Participant<'_> {
        let Self { files, request, failpoints } = self;
        let Files { store, rank, .. } = &**files;
        Participant { store, request, rank: *rank, failpoints: &**failpoints }
    }

    /// Copies the state, and writes the copy at the same time when `before` has ended: the copy
    /// does not wait for that, as the state must not change until it has ended.
    fn write(
        &self,
        state: Box<dyn Frozen>,
        veto: Veto,
        snapshot: &Snapshot,
        staging: Loan,
        before: Before,
    ) -> Result<Written> {
        self.files.store.set_at(None); // it waits for what follows the last save
        let (copier, staged) = staging.ring();
        let written = thread::scope(|scope| {
            let copy = move || snapshot.copy(state, &self.files.order, copier);
            let copying = threads::spawn_scoped(scope, "snapshot", copy);
            let copying = copying.inspect_err(|_| snapshot.end());
            await_end(before);
            let written = copying.map_err(Error::from).and_then(|_| {
                veto().map_err(Error::Vetoed)?;
                let mut written = self.write_staged(staged)?;
                written.staging_pieces = staging.pieces();
                Ok(written)
            });
            snapshot.abort(); // nothing reads the rest of it after a failure
            written
        });
        match (written, snapshot.take_failure()) {
            (Err(Error::SnapshotAborted), Some(failure)) => Err(Error::Snapshot(failure)),
            (written, _) => written,
        }
    }

    /// Writes the copy of the state.
    fn write_staged(&self, mut staged: Staged) -> Result<Written> {
        let Files { boxes, order, .. } = &*self.files;
        let boxes: Vec<_> = order.iter().map(|&index| &boxes[index]).collect();
        self.participant().write(&boxes, &mut staged)
    }
}

impl fmt::Debug for Job {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { files, request, .. } = self;
        f.debug_struct("Job").field("files", files).field("request", request).finish()
    }
}
