//! Saves that run while training continues: one at a time, in phases that each end with a small
//! gather when all ranks are ready for it.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use device::threads;

use super::partner::{Partner, PartnerCopy};
use super::protocol::{Participant, Publication, Written};
use super::rank_writer;
use super::request::{Save, SaveReport};
use super::snapshot::{Frozen, Snapshot};
use super::staging::Staging;
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
    /// `None` while a save uses it.
    staging: Option<Staging>,
    /// See [`Saver::with_partner`].
    partner: Option<Partner>,
    in_flight: Option<InFlight>,
    /// The writer of an earlier save that has not ended in time. It has the staging memory.
    late: Option<LateWriter>,
    /// Thread that runs after the last save.
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

/// Writer that is delayed by storage.
#[derive(Debug)]
struct LateWriter {
    thread: Box<dyn Writer>,
    /// Store that it writes to.
    store: Arc<Store>,
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
    Publishing { publisher: Option<Result<JoinHandle<Result<Publication>>>>, written: AllWritten },
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

/// A thread that writes; where it could not begin, the reason.
type Started<T> = Result<JoinHandle<WriterEnd<T>>>;

/// Final state of a thread that writes.
#[derive(Debug)]
struct WriterEnd<T> {
    staging: Staging,
    written: Result<T>,
}

/// A thread that writes, whatever its result is.
trait Writer: fmt::Debug + Send {
    fn is_finished(&self) -> bool;
    /// Waits for its end, and returns the staging memory; `None` after a panic.
    fn into_staging(self: Box<Self>) -> Option<Staging>;
}

impl<T: fmt::Debug> Writer for JoinHandle<WriterEnd<T>> {
    fn is_finished(&self) -> bool {
        Self::is_finished(self)
    }

    fn into_staging(self: Box<Self>) -> Option<Staging> {
        self.join().ok().map(|end| end.staging)
    }
}

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
            files: Arc::new(Files { store, boxes: boxes.into(), order: order.into(), rank }),
            timeout,
            staging: Some(staging),
            partner: None,
            in_flight: None,
            late: None,
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
        let writer = self.staging().and_then(|staging| {
            let job = Arc::clone(&job);
            let snapshot = snapshot.clone();
            let before = self.afterwards.take();
            let write = move || job.write(state, veto, &snapshot, staging, before);
            Ok(threads::spawn("writer", write)?)
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
        let before = self.afterwards.take();
        let thread = threads::spawn("afterwards", move || {
            before.map(JoinHandle::join);
            work();
        });
        self.afterwards = thread.ok();
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

    /// The staging memory, unless an earlier writer still has it.
    fn staging(&mut self) -> Result<Staging> {
        if let Some(late) = self.late.take_if(|late| late.thread.is_finished()) {
            self.staging = late.thread.into_staging();
        }
        let store = self.late.as_ref().map_or(&self.files.store, |late| &late.store);
        let error = self.late("an earlier save's writer", store);
        self.staging.take().ok_or(error)
    }

    /// Takes the result of a thread that writes. A late one is left alone.
    fn writer_end<T: fmt::Debug + Send + 'static>(
        &mut self,
        writer: Started<T>,
        what: &'static str,
    ) -> Result<T> {
        let writer = writer?;
        if !writer.is_finished() {
            let store = Arc::clone(&self.files.store);
            self.late = Some(LateWriter { thread: Box::new(writer), store });
            return Err(self.late(what, &self.files.store));
        }
        let end = writer.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        self.staging = Some(end.staging);
        end.written
    }

    /// Ends the phase in which ranks write, with their vote.
    fn end_writing(
        &mut self,
        job: &Arc<Job>,
        writer: Started<Written>,
        snapshot: &Snapshot,
        peers: &dyn Peers,
    ) -> Result<Ended> {
        let own = self.writer_end(writer, "this rank's writer");
        if own.is_err() {
            snapshot.abort(); // nothing reads the rest of it
        }
        let participant = job.participant();
        let votes = participant.vote(own, peers)?;
        Ok(Ended::Phase(match self.partner.filter(|_| job.files.store.scope() == Scope::Node) {
            Some(partner) => {
                let copy = PartnerCopy::new(partner, &participant, &votes);
                Phase::Copying { copier: self.start_copying(job, copy), votes }
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
        let (copy, own) = match self.writer_end(copier, "the copy of another rank's files") {
            Ok(copy) => (Some(copy), Ok(())),
            Err(error) => (None, Err(error)),
        };
        let agreed = job.participant().agree_on_copies(own, peers);
        let (Some(mut copy), Some(staging)) = (copy, &mut self.staging) else {
            return Err(agreed.expect_err("this rank has failed"));
        };
        if let Err(error) = agreed {
            copy.release(staging);
            return Err(error);
        }
        Ok(Ended::Phase(if copy.is_exchanged() {
            start_publishing(job, votes)
        } else {
            let copy = copy.exchange(staging, peers)?;
            Phase::Copying { copier: self.start_copying(job, copy), votes }
        }))
    }

    /// Starts the work between two rounds.
    fn start_copying(&mut self, job: &Arc<Job>, mut copy: PartnerCopy) -> Started<PartnerCopy> {
        let mut staging = self.staging()?;
        let job = Arc::clone(job);
        let work = move || {
            let worked = copy.work(&job.participant(), &mut staging);
            if worked.is_err() {
                copy.release(&staging);
            }
            WriterEnd { staging, written: worked.map(|()| copy) }
        };
        Ok(threads::spawn("partner copy", work)?)
    }

    /// Ends the save.
    fn end_publishing(
        &mut self,
        job: &Job,
        publisher: Option<Result<JoinHandle<Result<Publication>>>>,
        written: AllWritten,
        started: Instant,
        peers: &dyn Peers,
    ) -> Result<Ended> {
        let participant = job.participant();
        let own = self.publisher_end(publisher);
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

    /// Takes the result of this rank's publisher. A late one may still commit: nothing of its save
    /// is removed before it has ended.
    fn publisher_end(
        &mut self,
        publisher: Option<Result<JoinHandle<Result<Publication>>>>,
    ) -> Result<Publication> {
        let Some(publisher) = publisher else { return Ok(Publication::default()) };
        let publisher = publisher?;
        if publisher.is_finished() {
            return publisher.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        }
        self.then(Box::new(move || drop(publisher.join())));
        Err(self.late("the manifest", &self.files.store))
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
        mut staging: Staging,
        before: Option<JoinHandle<()>>,
    ) -> WriterEnd<Written> {
        let Files { store, boxes, order, .. } = &*self.files;
        store.set_at(None); // it waits for what follows the last save
        let staging_pieces = staging.pieces();
        let (copier, mut staged) = staging.ring();
        let written = thread::scope(|scope| {
            let copy = move || snapshot.copy(state, order, copier);
            let copying = threads::spawn_scoped(scope, "snapshot", copy);
            copying.inspect_err(|_| snapshot.end())?;
            before.map(JoinHandle::join);
            let boxes: Vec<_> = order.iter().map(|&index| &boxes[index]).collect();
            veto().map_err(Error::Vetoed)?;
            let mut written = self.participant().write(&boxes, &mut staged)?;
            written.staging_pieces = staging_pieces;
            Ok(written)
        });
        snapshot.abort(); // nothing reads the rest of it after a failure
        staged.recycle();
        let written = written.map_err(|error| match (error, snapshot.take_failure()) {
            (Error::SnapshotAborted, Some(failure)) => Error::Snapshot(failure),
            (error, _) => error,
        });
        WriterEnd { staging, written }
    }
}

impl fmt::Debug for Job {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { files, request, .. } = self;
        f.debug_struct("Job").field("files", files).field("request", request).finish()
    }
}
