//! One communicator of NCCL. Its calls do not block.
#![allow(unsafe_code)] // calls of NCCL

use std::ffi::{c_int, c_void};
use std::fmt;
use std::mem::ManuallyDrop;
use std::sync::mpsc::channel;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use device::Keeper;
use device::cuda::nccl::{
    self, BFLOAT16, Config, FLOAT32, FLOAT64, Handle, Registration, SUM, Status, UINT8, UniqueId,
};
use device::cuda::{Cuda, Stream};

use super::log_settings::LogSettings;
use crate::{Dtype, Message, Operation, RawBuffer};

/// Time that `ncclCommAbort` may take before it is given up.
const ABORT_GRACE: Duration = Duration::from_secs(1);

/// End of a wait for a communicator.
#[derive(Debug, Clone, Copy)]
pub(super) struct Until<'queue> {
    pub(super) deadline: Instant,
    /// Set when the queue is stopped, which ends the wait before its deadline.
    pub(super) stopped: &'queue OnceLock<Arc<str>>,
}

impl Until<'_> {
    fn is_over(&self) -> bool {
        self.stopped.get().is_some() || Instant::now() >= self.deadline
    }
}

/// Reason why a communicator did not become ready.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NotReady {
    /// It was not ready before the end of the wait.
    Deadline,
    /// It failed.
    Failed(Status),
}

/// A communicator, until it is aborted or destroyed.
pub(super) struct Communicator {
    functions: &'static nccl::Nccl,
    handle: Handle,
    device: Cuda,
    rank: usize,
    world: usize,
    /// Memory that NCCL knows. Never freed unless the communicator is closed in order: peers that
    /// have not ended may still write to it.
    registered: ManuallyDrop<Vec<Registered>>,
}

struct Registered {
    registration: *mut c_void,
    _keeper: Keeper,
}

// SAFETY: NCCL's functions may be called on any thread, one at a time, with the communicator's
// device as the current one, which every method here ensures.
unsafe impl Send for Communicator {}

impl Communicator {
    /// Begins to connect to the other ranks, which do the same.
    pub(super) fn begin(
        functions: &'static nccl::Nccl,
        device: &Cuda,
        id: UniqueId,
        rank: usize,
        world: usize,
    ) -> Result<Self, Status> {
        let mut handle: Handle = std::ptr::null_mut();
        let mut config = Config::non_blocking();
        let numbers = [world, rank].map(|number| number as c_int);
        // SAFETY: pointers to values that live through the call.
        let status = unsafe {
            let [world, rank] = numbers;
            (functions.ncclCommInitRankConfig)(&raw mut handle, world, id, rank, &raw mut config)
        };
        match status {
            Status::SUCCESS | Status::IN_PROGRESS => {
                let device = device.clone();
                let registered = ManuallyDrop::default();
                Ok(Self { functions, handle, device, rank, world, registered })
            }
            refused => Err(refused),
        }
    }

    /// Status of the last call: in progress, over, or the error since.
    pub(super) fn state(&self) -> Status {
        let mut state = Status::SUCCESS;
        // SAFETY: a live communicator.
        let asked = unsafe { (self.functions.ncclCommGetAsyncError)(self.handle, &raw mut state) };
        if asked == Status::SUCCESS { state } else { asked }
    }

    /// Waits until a call is no longer in progress.
    pub(super) fn await_ready(&self, status: Status, until: Until<'_>) -> Result<(), NotReady> {
        let mut status = status;
        let mut pause = Pause::default();
        loop {
            match status {
                Status::SUCCESS => return Ok(()),
                Status::IN_PROGRESS if until.is_over() => return Err(NotReady::Deadline),
                Status::IN_PROGRESS => pause.next(),
                failed => return Err(NotReady::Failed(failed)),
            }
            status = self.state();
        }
    }

    /// Submits an operation to a stream.
    ///
    /// # Safety
    /// The buffer is valid, and nobody else uses it, until the stream has passed the operation.
    pub(super) unsafe fn launch(
        &self,
        operation: Operation,
        buffer: RawBuffer,
        stream: &Stream,
    ) -> Status {
        let functions = self.functions;
        let stream = stream.handle();
        let all: *mut c_void = buffer.start().as_ptr().cast();
        let part_len = buffer.len() / self.world;
        let part = all.wrapping_byte_add(self.rank * part_len * buffer.dtype().bytes());
        let dtype = nccl_type(buffer.dtype());
        // SAFETY: the caller's promise; a rank's part lies inside the buffer.
        unsafe {
            match operation {
                Operation::AllReduceSum => {
                    let len = buffer.len();
                    (functions.ncclAllReduce)(all, all, len, dtype, SUM, self.handle, stream)
                }
                Operation::ReduceScatterSum => (functions.ncclReduceScatter)(
                    all,
                    part,
                    part_len,
                    dtype,
                    SUM,
                    self.handle,
                    stream,
                ),
                // Bytes, whatever they mean.
                Operation::AllGather => {
                    let part_bytes = part_len * buffer.dtype().bytes();
                    (functions.ncclAllGather)(part, all, part_bytes, UINT8, self.handle, stream)
                }
                Operation::Broadcast { root } => {
                    let root = root as c_int;
                    let bytes = buffer.bytes();
                    (functions.ncclBroadcast)(all, all, bytes, UINT8, root, self.handle, stream)
                }
                // Messages of one pair have one order, and no tags.
                Operation::Send { to, .. } => {
                    let bytes = buffer.bytes();
                    (functions.ncclSend)(all, bytes, UINT8, to as c_int, self.handle, stream)
                }
                Operation::Receive { from, .. } => {
                    let bytes = buffer.bytes();
                    (functions.ncclRecv)(all, bytes, UINT8, from as c_int, self.handle, stream)
                }
                Operation::Barrier | Operation::Messages => {
                    unreachable!("{operation} on a device was refused before")
                }
            }
        }
    }

    /// Submits messages to a stream that run together.
    ///
    /// # Safety
    /// As of [`launch`](Self::launch), for all buffers.
    pub(super) unsafe fn launch_group(&self, messages: &[Message], stream: &Stream) -> Status {
        // SAFETY: it counts the starts and ends of this thread.
        let mut status = unsafe { (self.functions.ncclGroupStart)() };
        // Both ends know that a message is empty.
        for &Message { operation, buffer } in messages.iter().filter(|it| !it.buffer.is_empty()) {
            // SAFETY: the caller's promise.
            let launched = unsafe { self.launch(operation, buffer, stream) };
            status = worse(status, launched);
        }
        // SAFETY: it ends the group that was started here, also after an error.
        worse(status, unsafe { (self.functions.ncclGroupEnd)() })
    }

    /// Registers memory that operations will use.
    pub(super) fn register(&mut self, buffer: RawBuffer, keeper: Keeper) -> Result<(), String> {
        let Some(Registration { ncclCommRegister: register, .. }) = Registration::find() else {
            return Err("it can since version 2.19".to_owned());
        };
        let mut registration = std::ptr::null_mut();
        let start = buffer.start().as_ptr().cast();
        // SAFETY: valid memory of the device, which the keeper keeps for as long as it is known.
        let status = unsafe { register(self.handle, start, buffer.bytes(), &raw mut registration) };
        if status != Status::SUCCESS {
            return Err(self.functions.text(status));
        }
        self.registered.push(Registered { registration, _keeper: keeper });
        Ok(())
    }

    /// NCCL's description of a failure.
    pub(super) fn failure(&self, status: Status) -> String {
        failure(self.functions, status)
    }

    /// Ends in order, after all ranks have completed what they started.
    pub(super) fn close(mut self, until: Until<'_>) -> Result<(), NotReady> {
        if let Some(Registration { ncclCommDeregister: deregister, .. }) = Registration::find() {
            for Registered { registration, .. } in &*self.registered {
                // SAFETY: a registration of this communicator, which is ready.
                unsafe { deregister(self.handle, *registration) };
            }
        }
        // SAFETY: a live communicator.
        let finalizing = unsafe { (self.functions.ncclCommFinalize)(self.handle) };
        if let Err(error) = self.await_ready(finalizing, until) {
            self.abort();
            return Err(error);
        }
        self.registered.clear();
        // SAFETY: finalized, and not used after this.
        unsafe { (self.functions.ncclCommDestroy)(self.handle) };
        Ok(())
    }

    /// Ends at once, as [`abort_all`].
    pub(super) fn abort(self) {
        abort_all([self]);
    }

    fn abort_and_wait(self) {
        if self.device.bind().is_ok() {
            // SAFETY: a live communicator, which nobody has any more.
            unsafe { (self.functions.ncclCommAbort)(self.handle) };
        }
    }
}

/// Ends communicators at once: operations in flight stop. It gives up when NCCL does not return,
/// because a process that never ends is worse. One that hangs does not keep the others.
pub(super) fn abort_all(communicators: impl IntoIterator<Item = Communicator>) {
    let (sender, ended) = channel();
    let mut started = 0;
    for communicator in communicators {
        let sender = sender.clone();
        let abort = move || {
            communicator.abort_and_wait();
            let _ = sender.send(());
        };
        started += usize::from(device::threads::spawn("nccl-abort", abort).is_ok());
    }
    let deadline = Instant::now() + ABORT_GRACE;
    for _ in 0..started {
        let _ = ended.recv_timeout(deadline.saturating_duration_since(Instant::now()));
    }
}

/// NCCL's description of a failure, and the file that has more.
pub(super) fn failure(functions: &nccl::Nccl, status: Status) -> String {
    let text = functions.text(status);
    match LogSettings::written_file() {
        Some(file) => format!("{text}; NCCL's log is {}", file.display()),
        None => text,
    }
}

/// The first status that is an error, or else in progress if one of them is.
fn worse(first: Status, second: Status) -> Status {
    match first {
        Status::SUCCESS => second,
        Status::IN_PROGRESS if second == Status::SUCCESS => first,
        Status::IN_PROGRESS => second,
        failed => failed,
    }
}

/// NCCL's element type.
fn nccl_type(dtype: Dtype) -> c_int {
    match dtype {
        Dtype::Bf16 => BFLOAT16,
        Dtype::F32 => FLOAT32,
        Dtype::F64 => FLOAT64,
        Dtype::U8 => UINT8,
    }
}

impl fmt::Debug for Communicator {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Communicator(rank {} of {})", self.rank, self.world)
    }
}

/// Pause between two polls of the device or a peer: short at first.
#[derive(Debug, Default)]
pub(super) struct Pause {
    rounds: u32,
}

impl Pause {
    const YIELDS: u32 = 50;
    const SLEEP: Duration = Duration::from_micros(20);

    pub(super) fn next(&mut self) {
        self.rounds = self.rounds.saturating_add(1);
        if self.rounds <= Self::YIELDS {
            std::thread::yield_now();
        } else {
            std::thread::sleep(Self::SLEEP);
        }
    }
}
